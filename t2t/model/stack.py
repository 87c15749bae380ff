"""Section 3.1: blocks of sub-layers, and stacks of them.

A block is what the paper calls a layer: self-attention, attention over a memory if the stack has
one, and a feed-forward. Each of these sub-layers has a residual connection and a norm around it.
All families of models are stacks of this block (`transformer.py`, `decoder_only.py`,
`encoder_only.py`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.config.variants import CHOICES, call_variant
from t2t.data.batch import PAD_ID
from t2t.model.attention import Context, MultiHeadAttention, find_sub_layer
from t2t.model.compute_policy import Policy
from t2t.model.experts import Experts
from t2t.model.kv_cache import BlockCache, DecodingCache, KeyValue
from t2t.model.layers import FeedForward, Identity, Norm, is_layer, make_norm, normalize, split
from t2t.model.masks import (
    ancestor_mask,
    padding_mask,
    positions_in_segments,
    source_mask,
    source_segment_ids,
)
from t2t.model.parametrization import find_branch_factor, scale
from t2t.model.position import Position, make_block_position

# What feed-forwards return beside their output, summed over blocks; most return nothing. "loss" is
# added to the loss of each predicted token, so it is a mean over the tokens that the layer sees.
# Other entries are vectors of counts, whose shares of their sum are metrics of training, and the
# figures of a registered loss: scalars, which are metrics as means per predicted token.
Auxiliary = dict[str, Float[Array, "..."]]


class Shared(NamedTuple):
    """The input of a sub-layer, for each of its uses.

    `arrays` has one of three forms:

        (x,)             one array for all uses
        (x, norm(x))     pre-norm: the first is for the residual connection
        (x, x1, x2, x3)  one array for each use: the residual connection, W^Q, W^K and W^V

    The third is that of `t2t/ops/fused_norm.py`, which adds the gradients of the uses itself.
    Otherwise JAX adds them.
    """

    arrays: tuple[Float[Array, "B T D"], ...]

    @property
    def residual(self) -> Float[Array, "B T D"]:
        """The array x of the residual connection x + f(x)."""
        return self.arrays[0]

    @property
    def inputs(self) -> tuple[Float[Array, "B T D"], ...]:
        """The operands of the sub-layer's products: one array, or one for each of Q, K and V."""
        return self.arrays[1:] or self.arrays


class Residual(nnx.Module):
    """Dropout, residual connection and norm around a sub-layer f.

    With y = f(before(x)), the result of the sub-layer is after(x, y):

        model.norm_position=post (the paper)  norm(x + dropout(f(x)))
        model.norm_position=pre               x + dropout(f(norm(x)))

    With model.residual=False "x +" is left out. With `model.base_layers` f(x) has a factor.
    """

    def __init__(self, config: ModelConfig, policy: Policy):
        """Creates the norm."""
        if config.norm_position not in ("post", "pre"):
            raise ValueError(f"model.norm_position={config.norm_position!r} is unknown")
        self.policy = policy
        self.norm = make_norm(config, policy)
        self.is_pre = config.norm_position == "pre"
        self.residual = config.residual
        self.branch_factor = find_branch_factor(config)
        self.dropout_rate = config.dropout

    def before(self, x: Shared) -> Shared:
        """Returns the input of the sub-layer, beside x for the residual connection."""
        if not self.is_pre:
            return x
        shared: Shared = self.policy.add_and_norm(self, x.residual)
        return shared

    def after(
        self, x: Float[Array, "B T D"], y: Float[Array, "B T D"], key: jax.Array | None
    ) -> Shared:
        """Returns the result, from the input x and the sub-layer's output y."""
        y = scale(y.astype(x.dtype), self.branch_factor)
        if self.is_pre:
            return Shared((self.add(x, y, key),))
        shared: Shared = self.policy.add_and_norm(self, x, y, key)
        return shared

    def add(
        self, x: Float[Array, "B T D"], y: Float[Array, "B T D"], key: jax.Array | None
    ) -> Float[Array, "B T D"]:
        """Returns x + dropout(y)."""
        y = self.policy.dropout(y, self.dropout_rate, key)
        return x + y if self.residual else y


def add_and_norm(
    residual: Residual,
    x: Float[Array, "B T D"],
    y: Float[Array, "B T D"] | None = None,
    key: jax.Array | None = None,
) -> Shared:
    """Returns norm(x + dropout(y)), as post-norm does after a sub-layer with the output y.

    Without y it returns x and norm(x), as pre-norm does before a sub-layer.
    """
    if y is None:
        return Shared((x, normalize(residual.norm, x)))
    return Shared((normalize(residual.norm, residual.add(x, y, key)),))


def make_feed_forward(config: ModelConfig, policy: Policy, key: jax.Array) -> Any:
    """Creates the feed-forward that `model.feed_forward` names, or None for "none".

    It is called as (x, key, is_token), and returns y or (y, auxiliary).
    """
    match config.feed_forward:
        case "none":
            return None
        case "moe":
            return Experts(config, policy, key)
        case own if own in CHOICES["model.feed_forward"]:
            return FeedForward(config, policy, key)
        case other:
            arguments = config, policy, key
            return call_variant("model.feed_forward", other, *arguments, is_valid=is_layer)


class Block(nnx.Module):
    """Self-attention, attention over a memory (`over_memory`), then feed-forward.

    With model.feed_forward=none there is no third sub-layer.
    """

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        key: jax.Array,
        *,
        over_memory: bool = False,
        causal: bool = False,
    ):
        """Creates the two or three sub-layers; `causal`: keys never lie right of their query."""
        self_key, cross_key, feed_forward_key = jax.random.split(key, 3)
        self.policy = policy
        self.over_memory = over_memory
        position_key = jax.random.fold_in(key, 3)
        self.own_position: Any = make_block_position(config, position_key, causal=causal)
        attention = find_sub_layer(config.attention)
        self.self_attention = attention(config, policy, self_key, over_memory=False)
        self.self_residual = Residual(config, policy)
        if over_memory:
            self.cross_attention = attention(config, policy, cross_key, over_memory=True)
            self.cross_residual = Residual(config, policy)
        self.feed_forward = make_feed_forward(config, policy, feed_forward_key)
        if self.feed_forward is not None:
            self.feed_forward_residual = Residual(config, policy)

    def __call__(
        self,
        x: Shared,
        context: Context,
        cache: BlockCache | None = None,
        dropout_keys: jax.Array | None = None,
    ) -> tuple[Shared, KeyValue | BlockCache, Auxiliary]:
        """Applies the block; returns (output, cache, auxiliary losses).

        Without a cache, the T positions attend to each other, and their keys and values are
        returned in its place. With a cache (decoding), their keys and values are written to it,
        and they attend to the whole cache. In training there are `DROPOUTS` keys of dropout.
        """
        sites = [None if dropout_keys is None else dropout_keys[i] for i in range(DROPOUTS)]
        self_weights, self_output, cross_weights, cross_output, inner, output = sites
        if self.own_position is not None:
            keys_at = context.key_positions
            keys_at = context.positions if keys_at is None else keys_at
            context = context._replace(bias=self.own_position.bias(context.positions, keys_at))
        residual = self.self_residual
        x = residual.before(x)
        y, written = _attend_to_self(self.self_attention, x, context, cache, self_weights)
        assert written is not None  # of cross-attention alone
        x = residual.after(x.residual, y, self_output)
        if self.over_memory:
            residual = self.cross_residual
            x = residual.before(x)
            y, _ = self.cross_attention(x.inputs[0], context, cache, cross_weights)
            x = residual.after(x.residual, y, cross_output)
        auxiliary: Auxiliary = {}
        if self.feed_forward is not None:
            residual = self.feed_forward_residual
            x = residual.before(x)
            y = self.feed_forward(x.inputs[0], inner, context.is_token)
            y, auxiliary = y if isinstance(y, tuple) else (y, auxiliary)
            x = residual.after(x.residual, y, output)
        return x, written, auxiliary


def _attend_to_self(
    attention: Any,
    x: Shared,
    context: Context,
    cache: BlockCache | None,
    key: jax.Array | None,
) -> tuple[Float[Array, "B T D"], Any]:
    """Applies self-attention; a registered sub-layer is called with one array."""
    if type(attention) is MultiHeadAttention and len(x.inputs) > 1:
        heads, written = attention.find_heads(x.inputs, context, cache, key)
        return attention.join(heads), written
    output, written = attention(x.inputs[0], context, cache, key)
    return output, written


DROPOUTS = 6  # sites of dropout in a block: weights and output of each sub-layer


class Stack(NamedTuple):
    """Blocks one after the other, and what stands before and after them: a view of a model."""

    policy: Policy
    position: Position
    embedding_norm: Norm  # before the first block, of `model.embedding_norm`
    blocks: Sequence[Block]
    norm: Norm  # after the last block, which only pre-norm needs
    dropout_rate: float
    scanned: bool  # of `model.scan_layers`

    def begin(
        self,
        embedded: Float[Array, "B T D"],
        positions: Int[Array, "*#B T"],
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the input of the first block; a key switches dropout on (section 5.4)."""
        x = normalize(self.embedding_norm, self.position.add(embedded, positions))
        x = self.policy.dropout(x, self.dropout_rate, key)
        return x.astype(self.policy.dtype)  # a registered position may have added float32 numbers

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        mask: Bool[Array, "B 1 T T"],
        key: jax.Array | None = None,
        *,
        in_attention: Int[Array, "*#B T"] | None = None,
        **others: Any,
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Returns (output, auxiliary losses); a key switches dropout on.

        Args:
            embedded: the embedded tokens.
            positions: of the tokens in their sentences, for encodings that are added.
            mask: which position sees which.
            key: of dropout.
            in_attention: positions for rotations and biases of attention, which need nothing but
                their differences; default: the indices in the row.
            others: further fields of `Context`.
        """
        begin_key, key = split(key, 2)
        length = embedded.shape[1]
        self.position.check_length(length)
        at = jnp.arange(length) if in_attention is None else in_attention
        context = Context(mask, self.position, at, self.position.bias(at, at), **others)
        x = self.begin(embedded, positions, begin_key)
        dropout_keys = None if key is None else jax.random.split(key, (len(self.blocks), DROPOUTS))
        apply = _scan if self.scanned else _unroll
        x, auxiliary = apply(self.blocks, x, context, dropout_keys)
        return normalize(self.norm, x), auxiliary

    def encode(
        self, embedded: Float[Array, "B S D"], src: Int[Array, "B S"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B S D"], Auxiliary]:
        """As a call, for the source tokens `src`, which all see those of their segment."""
        segments = source_segment_ids(src)
        mask, positions = source_mask(segments, src), positions_in_segments(segments)
        return self(embedded, positions, mask, key, is_token=src != PAD_ID)

    def step(
        self, embedded: Float[Array, "B W D"], parents: Int[Array, "B W"], cache: DecodingCache
    ) -> tuple[Float[Array, "B W D"], DecodingCache]:
        """Returns (output, cache) after one more token in each of the W slots of the beam.

        Slot w of sentence b continues the hypothesis that was in slot `parents[b, w]` before. The
        cache is not reordered for this: the W slots are the query positions of one attention over
        the whole cache, and a mask shows each slot only its own ancestors.
        """
        ancestors = cache.follow_parents(parents)
        positions, key_positions = cache.find_positions()
        mask = ancestor_mask(ancestors, cache.step)
        write_at = cache.step * ancestors.shape[1]
        if cache.has_prefix:  # in front of the steps' keys
            prefix = padding_mask(cache.src)
            prefix = jnp.broadcast_to(prefix, (*mask.shape[:3], prefix.shape[3]))
            mask, write_at = jnp.concatenate([prefix, mask], axis=-1), write_at + prefix.shape[3]
        context = Context(
            mask,
            self.position,
            positions,
            self.position.bias(positions, key_positions),
            # In decoding each row of the source is one sentence, so only padding is masked.
            memory_mask=padding_mask(cache.src),
            write_at=write_at,
            key_positions=key_positions,
        )
        x, blocks = Shared((self.begin(embedded, positions),)), []
        for block, own in zip(self.blocks, cache.blocks, strict=True):
            x, written, _ = block(x, context, own)
            assert isinstance(written, BlockCache)
            blocks.append(written)
        cache = cache._replace(blocks=blocks, ancestors=ancestors, step=cache.step + 1)
        return normalize(self.norm, x.residual), cache


def make_outer_norms(config: ModelConfig, policy: Policy) -> tuple[Norm, Norm]:
    """Creates the norms of a stack before its first block, and after its last.

    The first is that of `model.embedding_norm`; only pre-norm needs the last.
    """
    needed = config.embedding_norm, config.norm_position == "pre"
    first, last = (make_norm(config, policy) if each else Identity() for each in needed)
    return first, last


def _unroll(
    blocks: Sequence[Block],
    x: Float[Array, "B T D"],
    context: Context,
    dropout_keys: jax.Array | None,
) -> tuple[Float[Array, "B T D"], Auxiliary]:
    total: Auxiliary = {}
    shared = Shared((x,))
    for number, block in enumerate(blocks):
        shared, auxiliary = _apply(
            block, shared, context, None if dropout_keys is None else dropout_keys[number]
        )
        total = auxiliary if number == 0 else jax.tree.map(jnp.add, total, auxiliary)
    return shared.residual, total


def _scan(
    blocks: Sequence[Block],
    x: Float[Array, "B T D"],
    context: Context,
    dropout_keys: jax.Array | None,
) -> tuple[Float[Array, "B T D"], Auxiliary]:
    """As `_unroll`, by one compiled block in a loop: time to compile does not grow with the depth.

    For this it copies the parameters into one array for all blocks; the parameters of the model,
    and so its checkpoints, are the same in both forms.
    """
    structure, _ = nnx.split(blocks[0])
    params = [nnx.split(block)[1] for block in blocks]
    stacked = jax.tree.map(lambda *layers: jnp.stack(layers), *params)

    def apply_one(
        x: Float[Array, "B T D"], inputs: tuple[Any, jax.Array | None]
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        params, dropout_keys = inputs
        block = nnx.merge(structure, params)
        shared, auxiliary = _apply(block, Shared((x,)), context, dropout_keys)
        return shared.residual, auxiliary

    x, auxiliary = jax.lax.scan(apply_one, x, (stacked, dropout_keys))
    return x, jax.tree.map(lambda layers: layers.sum(axis=0), auxiliary)


def _apply(
    block: Block, x: Shared, context: Context, dropout_keys: jax.Array | None
) -> tuple[Shared, Auxiliary]:
    block, (x, memory) = block.policy.order_gradients(block, (x, context.memory))
    x, _, auxiliary = block(x, context._replace(memory=memory), dropout_keys=dropout_keys)
    return x, auxiliary


def keep_order(module: nnx.Module, inputs: Any) -> tuple[nnx.Module, Any]:
    """Returns its arguments, a block and its inputs; XLA orders the computation of gradients.

    The twin computes the gradients of the block's parameters first, which saves memory.
    """
    return module, inputs
