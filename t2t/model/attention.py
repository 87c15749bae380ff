"""Section 3.2: scaled dot-product attention, multi-head attention, and the cache for decoding."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.dropout import dropout
from t2t.model.layers import glorot_limit, init_glorot, init_uniform
from t2t.model.masks import apply_mask, masked_softmax
from t2t.model.position import Position
from t2t.model.precision import einsum
from t2t.model.products import multiply, product_dtype
from t2t.ops.tpu_attention import fused_attention, suits_kernel
from t2t.runtime.mesh import platform, reshard_like, spec

# R heads share the keys of one group, and their T positions lie behind each other: Q = R T rows.
Grouped = Float[Array, "B G Q _"]  # queries or their results
Weights = Float[Array, "B G Q S"]


class KeyValue(NamedTuple):
    """What a query attends to."""

    keys: Float[Array, "B S G K"]
    values: Float[Array, "B S G V"]


def dot_product_attention(
    query: Float[Array, "B T H K"],
    memory: KeyValue,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
    kernel: bool = True,
) -> Float[Array, "B T H V"]:
    """Equation 1: softmax(Q K^T / sqrt(d_k)) V, the softmax in float32; unscaled: softmax(Q K^T) V.

    G key/value heads serve H query heads, H/G each (Ainslie et al. 2023). The weights, the largest
    array here, are not kept for the backward pass: it makes them again, from the logarithm of the
    softmax's denominator (Dao et al. 2022). With `kernel`, where it suits, they do not even leave
    the chip.
    """
    batch, length, heads, width = query.shape
    groups, value_width = memory.values.shape[2:]
    repeats = heads // groups
    grouped = _reshape_heads(query, batch, length, groups, repeats, width)
    rows = grouped.transpose(0, 2, 3, 1, 4)
    rows = _reshape_heads(rows, batch, groups, repeats * length, width, axis=1)
    keys, values = (x.transpose(0, 2, 1, 3) for x in memory)
    if mask.shape[2] > 1:
        mask = jnp.tile(mask, (1, 1, repeats, 1))
    if bias is not None:
        by_group = groups, repeats * length, bias.shape[-1]
        bias = jnp.reshape(bias, by_group, out_sharding=spec("heads", None, None))

    def drop(weights: Weights) -> Weights:
        return dropout(weights, dropout_rate, key)

    divisor = math.sqrt(width) if scaled else 1.0
    kernel &= bias is None and (key is None or dropout_rate == 0)
    if kernel and suits_kernel(rows.shape, values.shape, rows.dtype):
        results = fused_attention(rows, keys, values, mask, divisor)
    else:
        results = _attend_rows(rows, keys, values, mask, bias, divisor, drop)
    turned = results.reshape(batch, groups, repeats, length, value_width).transpose(0, 3, 1, 2, 4)
    return _reshape_heads(turned, batch, length, heads, value_width)


def _attend_rows(
    query: Grouped,
    keys: Float[Array, "B G S K"],
    values: Float[Array, "B G S V"],
    mask: Bool[Array, "#B 1 #Q S"],
    bias: Float[Array, "G Q S"] | None,
    divisor: float,
    drop: Callable[[Weights], Weights],
) -> Grouped:
    """drop(softmax(Q K^T / divisor + bias)) V, and its gradients."""

    def compute_logits(query: Grouped, keys: Array, bias: Array | None) -> Weights:
        logits = einsum("BGQK,BGSK->BGQS", query, keys, preferred_element_type=jnp.float32)
        logits /= divisor
        return apply_mask(logits if bias is None else logits + bias, mask)

    def sum_rows(powers: Weights) -> Float[Array, "B G Q _"]:
        if platform() == "cpu":
            return powers.sum(axis=-1, keepdims=True)
        # Accelerators do this faster as a product, of powers rounded as those that meet the values;
        # with the sum in every column of what it will divide.
        narrow = powers.astype(values.dtype)
        ones = jnp.ones(values.shape[2:], values.dtype)
        return einsum("BGQS,SV->BGQV", narrow, ones, preferred_element_type=jnp.float32)

    @jax.custom_vjp
    def attend(query: Grouped, keys: Array, values: Array, bias: Array | None) -> Grouped:
        return forward(query, keys, values, bias)[0]

    def forward(
        query: Grouped, keys: Array, values: Array, bias: Array | None
    ) -> tuple[Grouped, tuple[Any, ...]]:
        logits = compute_logits(query, keys, bias)
        largest = logits.max(axis=-1, keepdims=True)
        powers = jnp.exp(logits - largest)
        narrow = drop(powers).astype(values.dtype)
        heads = einsum("BGQS,BGSV->BGQV", narrow, values, preferred_element_type=jnp.float32)
        sums = jnp.where(mask.any(axis=-1, keepdims=True), sum_rows(powers), jnp.inf)
        heads = (heads / sums).astype(values.dtype)
        normalizer = largest + jnp.log(sums[..., :1])
        return heads, (query, keys, values, bias, heads, normalizer)

    def backward(residuals: tuple[Any, ...], gradient: Grouped) -> tuple[Array | None, ...]:
        # The barrier keeps the compiler from finding the weights of the forward pass again here.
        query, keys, values, bias, heads, normalizer = jax.lax.optimization_barrier(residuals)
        weights = jnp.exp(compute_logits(query, keys, bias) - normalizer)
        narrow = drop(weights).astype(values.dtype)
        value_gradient = einsum("BGQS,BGQV->BGSV", narrow, gradient)
        weight_gradient = drop(
            einsum("BGQV,BGSV->BGQS", gradient, values, preferred_element_type=jnp.float32)
        )
        # Of the softmax: P (dP - sum P dP), and the sum is that of the heads times their gradient.
        mean = jnp.sum(gradient.astype(jnp.float32) * heads, axis=-1, keepdims=True)
        wide = weights * (weight_gradient - mean)
        logit_gradient = (wide / divisor).astype(query.dtype)
        query_gradient = einsum("BGQS,BGSK->BGQK", logit_gradient, keys)
        key_gradient = einsum("BGQS,BGQK->BGSK", logit_gradient, query)
        gradients = query_gradient, key_gradient, value_gradient
        placed = map(reshard_like, gradients, (query, keys, values))  # of one head, JAX forgets it
        return *placed, None if bias is None else reshard_like(wide.sum(axis=0), bias)

    attend.defvjp(forward, backward)
    return attend(query, keys, values, bias)


def _reshape_heads(
    x: Float[Array, "B *widths"], *shape: int, axis: int = 2
) -> Float[Array, "B *others"]:
    """Reshapes, `axis` being the heads' dimension; JAX cannot infer where a single head lies."""
    names: list[str | None] = ["batch", *[None] * (len(shape) - 1)]
    names[axis] = "heads"
    return jnp.reshape(x, shape, out_sharding=spec(*names))


class KVCache(NamedTuple):
    """What the queries of many steps attend to, laid out so that no product has to turn it.

    Of the source, S positions; of a layer's own past, W slots a step, in the order in which they
    were made and never moved.
    """

    keys: Float[Array, "B G K S"]
    values: Float[Array, "B G S V"]

    @classmethod
    def arrange(cls, memory: KeyValue) -> "KVCache":
        """The same keys and values."""
        return cls(memory.keys.transpose(0, 2, 3, 1), memory.values.transpose(0, 2, 1, 3))

    @classmethod
    def allocate(cls, like: "KVCache", size: int) -> "KVCache":
        """An empty past, whose heads are as those of the memory, and on the same devices."""
        keys, values = jnp.zeros_like(like.keys[..., :1]), jnp.zeros_like(like.values[:, :, :1])
        return cls(jnp.tile(keys, (1, 1, 1, size)), jnp.tile(values, (1, 1, size, 1)))

    def write(self, step: Int[Array, ""], new: KeyValue) -> "KVCache":
        """The cache with the W slots of this step.

        It is read as it is written: of any other shape XLA would make a copy at each step.
        """
        start, more = step * new.keys.shape[1], self.arrange(new)
        update = jax.lax.dynamic_update_slice_in_dim
        return KVCache(
            update(self.keys, more.keys, start, axis=3),
            update(self.values, more.values, start, axis=2),
        )

    def extend(self, size: int) -> "KVCache":
        """The cache with room for so many slots."""
        more, none = (0, size - self.keys.shape[3]), (0, 0)
        return KVCache(
            jnp.pad(self.keys, (none, none, none, more)),
            jnp.pad(self.values, (none, none, more, none)),
        )

    def attend(
        self,
        query: Float[Array, "B T H K"],
        mask: Bool[Array, "#B 1 #T S"],
        bias: Float[Array, "H T S"] | None = None,
        *,
        scaled: bool = True,
    ) -> Float[Array, "B T H V"]:
        """As `dot_product_attention`, for decoding."""
        batch, length, heads, width = query.shape
        groups, size, value_width = self.values.shape[1:]
        grouped = _reshape_heads(query, batch, length, groups, heads // groups, width)
        rows = grouped.transpose(0, 2, 3, 1, 4)  # B G R T K
        logits = einsum(
            "BGTK,BGKS->BGTS",
            _reshape_heads(rows, batch, groups, -1, width, axis=1),
            self.keys,
            preferred_element_type=jnp.float32,
        ).reshape(*rows.shape[:4], size)
        logits /= math.sqrt(width) if scaled else 1.0
        if bias is not None:
            logits += bias.reshape(groups, heads // groups, *bias.shape[1:])
        weights = masked_softmax(logits, mask[:, :, None]).astype(self.values.dtype)
        results = einsum(
            "BGTS,BGSV->BGTV",
            _reshape_heads(weights, batch, groups, -1, size, axis=1),
            self.values,
        ).reshape(*rows.shape[:4], value_width)
        turned = results.transpose(0, 3, 1, 2, 4)
        return _reshape_heads(turned, batch, length, heads, value_width)


class MultiHeadAttention(nnx.Module):
    """Section 3.2.2: Concat(head_1, ..., head_h) W^O, without biases as in the paper.

    A key/value head and the queries that it serves are one slice of one projection, which keeps
    the whole of a head on one device and computes Q, K and V of self-attention in one product.
    """

    def __init__(self, config: ModelConfig, key: jax.Array, *, over_memory: bool = False):
        """`over_memory`: keys and values come from the encoder, by a projection of their own."""
        d_model, heads, groups = config.d_model, config.num_heads, config.kv_heads
        self.num_heads = heads
        self.dropout_rate = config.attention_dropout
        self.scaled = config.attention_scale
        self.kernel = config.attention_kernel
        self.product_dtype = product_dtype(config.dtype)
        query_width = heads // groups * config.key_width
        widths = (query_width, config.key_width, config.value_width)
        # Q, K and V are projections of their own, and so are their fans.
        limits = [np.full(width, glorot_limit(d_model, groups * width)) for width in widths]
        query_key, kv_key, output_key = jax.random.split(key, 3)
        names = ("d_model", "heads", None)
        self.splits = (query_width, query_width + config.key_width)
        self.key_width = config.key_width

        def init(key: jax.Array, parts: slice) -> nnx.Param[jax.Array]:
            limit = np.concatenate(limits[parts]).astype(np.float32)
            return init_uniform(key, (d_model, groups, limit.size), limit, *names)

        if over_memory:
            self.query = init(query_key, slice(1))
            self.key_value = init(kv_key, slice(1, 3))
        else:
            self.query_key_value = init(query_key, slice(3))
        out_fans = (heads * config.value_width, d_model)
        self.output = init_glorot(
            output_key, (heads, config.value_width, d_model), *out_fans, "heads", None, "d_model"
        )

    def project(
        self, x: Float[Array, "B T D"], position: Position, positions: Int[Array, "T"]
    ) -> tuple[Float[Array, "B T H K"], KeyValue]:
        """Queries, keys and values of self-attention."""
        query, keys, values = self._project_parts(x, self.query_key_value[...], self.splits)
        query = position.rotate(self._split_heads(query), positions)
        return query, KeyValue(position.rotate(keys, positions), values)

    def project_query(self, x: Float[Array, "B T D"]) -> Float[Array, "B T H K"]:
        """Queries to the memory."""
        return self._split_heads(multiply("BTD,DGP->BTGP", x, self.query[...], self.product_dtype))

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeyValue:
        """Keys and values of the encoder's output, made once a sentence."""
        return KeyValue(*self._project_parts(memory, self.key_value[...], (self.key_width,)))

    def attend(
        self,
        query: Float[Array, "B T H K"],
        memory: KeyValue | KVCache,
        mask: Bool[Array, "#B 1 #T S"],
        bias: Float[Array, "H T S"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """The heads' results, joined by W^O."""
        if isinstance(memory, KVCache):
            heads = memory.attend(query, mask, bias, scaled=self.scaled)
        else:
            heads = dot_product_attention(
                query,
                memory,
                mask,
                bias,
                self.dropout_rate,
                key,
                scaled=self.scaled,
                kernel=self.kernel,
            )
        return multiply(
            "BTHV,HVD->BTD",
            heads,
            self.output[...],
            self.product_dtype,
            out_sharding=spec("batch", None, None),
        )

    def _split_heads(self, query: Float[Array, "B T G RK"]) -> Float[Array, "B T H K"]:
        return _reshape_heads(query, *query.shape[:2], self.num_heads, self.key_width)

    def _project_parts(
        self, x: Float[Array, "B T D"], weights: Float[Array, "D G P"], splits: tuple[int, ...]
    ) -> list[Float[Array, "B T G _"]]:
        """Parts of the product: its weights are cut, or where it is smaller it is cut itself."""
        cut = functools.partial(jnp.split, indices_or_sections=splits, axis=-1)
        project = functools.partial(multiply, "BTD,DGP->BTGP", x, dtype=self.product_dtype)
        if math.prod(x.shape[:2]) < math.prod(weights.shape[1:]):
            return list(cut(project(weights)))
        return [project(part) for part in cut(weights)]
