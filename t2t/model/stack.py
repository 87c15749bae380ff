"""A stack of blocks, unrolled or scanned."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2t.model.attention import Context
from t2t.model.block import Auxiliary, Block, DropoutKeys
from t2t.model.kv_cache import BlockCache


def apply_stack(
    blocks: Sequence[Block],
    x: Float[Array, "B T D"],
    context: Context,
    key: jax.Array | None = None,
    *,
    scanned: bool = False,
) -> tuple[Float[Array, "B T D"], Auxiliary]:
    """Returns (output, auxiliary losses) of the blocks one after the other; a key: with dropout.

    With `scanned` (model.scan_layers) it runs one compiled block in a loop, so that the time to
    compile does not grow with the depth. For this it copies the parameters into one array for all
    blocks; the parameters of the model, and so its checkpoints, are the same in both forms.
    """
    sites = len(DropoutKeys._fields)
    keys = None if key is None else jax.random.split(key, (len(blocks), sites))
    if scanned:
        return _scan(blocks, x, context, keys)
    total: Auxiliary = {}
    for number, block in enumerate(blocks):
        x, auxiliary = _apply(block, x, context, None if keys is None else keys[number])
        total = auxiliary if number == 0 else jax.tree.map(jnp.add, total, auxiliary)
    return x, total


def _scan(
    blocks: Sequence[Block],
    x: Float[Array, "B T D"],
    context: Context,
    keys: jax.Array | None,
) -> tuple[Float[Array, "B T D"], Auxiliary]:
    structure, _ = nnx.split(blocks[0])
    params = [nnx.split(block)[1] for block in blocks]
    stacked = jax.tree.map(lambda *layers: jnp.stack(layers), *params)

    def apply_one(
        x: Float[Array, "B T D"], inputs: tuple[Any, jax.Array | None]
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        params, keys = inputs
        return _apply(nnx.merge(structure, params), x, context, keys)

    x, auxiliary = jax.lax.scan(apply_one, x, (stacked, keys))
    return x, jax.tree.map(lambda layers: layers.sum(axis=0), auxiliary)


def _apply(
    block: Block, x: Float[Array, "B T D"], context: Context, keys: jax.Array | None
) -> tuple[Float[Array, "B T D"], Auxiliary]:
    # `order_gradients` saves memory in the backward pass (see `Policy`).
    block, (x, memory) = block.policy.order_gradients(block, (x, context.memory))
    sites = DropoutKeys() if keys is None else DropoutKeys(*keys)
    x, _, auxiliary = block(x, context._replace(memory=memory), keys=sites)
    return x, auxiliary


def step_stack(
    blocks: Sequence[Block],
    x: Float[Array, "B W D"],
    context: Context,
    caches: Sequence[BlockCache],
) -> tuple[Float[Array, "B W D"], list[BlockCache]]:
    """Returns (output, caches) of one decoding step."""
    written = []
    for block, cache in zip(blocks, caches, strict=True):
        x, new, _ = block(x, context, cache)
        assert isinstance(new, BlockCache)
        written.append(new)
    return x, written
