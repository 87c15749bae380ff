"""Equation 1 as one kernel for TPUs: the weights, T x S numbers a head, never leave the chip.

For rows so short that all weights of a head are there at once, as those of sentences are: no part
of the softmax has to be corrected later as in FlashAttention (Dao et al. 2022), and the backward
pass makes the weights again from queries, keys and values.

Positions come last, and weights are [S, T]: a head's numbers, often 64, would fill half of the
chip's 128 lanes; a sum over keys stays within its lane; and no product has to turn the weights.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int8

from t2t.model.kv_cache import KeyValue
from t2t.model.masks import HIDDEN, apply_mask
from t2t.model.precision import choose_precision
from t2t.ops.recomputed_attention import group_rows, ungroup_rows
from t2t.runtime.mesh import platform, spec

LANES = 128
MOST_WEIGHTS = 2**20  # of one head
WEIGHTS_AT_ONCE = 2**19  # of several: 2 MB in float32, of which the backward pass needs a few

Shape = tuple[int, ...]
Query = Float[Array, "B G K Q"]
Keys = Float[Array, "B G K S"]
Values = Float[Array, "B G V S"]
Results = Float[Array, "B G V Q"]
Seen = Int8[Array, "B S Q"]  # 0: hidden


def suits(
    query: Float[Array, "B T H K"],
    memory: KeyValue,
    bias: Float[Array, "H T S"] | None,
    dropout_rate: float,
) -> bool:
    """Returns whether the kernel computes attention of these operands."""
    batch, length, heads, width = query.shape
    groups = memory.keys.shape[2]
    rows = batch, groups, heads // groups * length, width
    values = batch, groups, memory.values.shape[1], memory.values.shape[3]
    return bias is None and dropout_rate == 0 and suits_kernel(rows, values, query.dtype)


def suits_kernel(query: Shape, values: Shape, dtype: jnp.dtype) -> bool:
    """Returns whether the kernel is made for queries [B, G, Q, K] and values [B, G, S, V].

    On a TPU, in bfloat16, for rows of whole lanes, and no longer than the chip's memory allows.
    """
    lengths, widths = (query[2], values[2]), (query[3], values[3])
    return (
        platform() == "tpu"
        and dtype == jnp.bfloat16
        and all(length % LANES == 0 for length in lengths)
        and all(width % 16 == 0 for width in widths)
        and math.prod(lengths) <= MOST_WEIGHTS
    )


def dot_product_attention(
    query: Float[Array, "B T H K"],
    memory: KeyValue,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H V"]:
    """As `t2t.model.attention.dot_product_attention`, without bias and without dropout."""
    assert bias is None
    assert key is None or dropout_rate == 0
    groups = memory.keys.shape[2]
    keys, values = (x.transpose(0, 2, 1, 3) for x in memory)
    if mask.shape[2] > 1:
        mask = jnp.tile(mask, (1, 1, query.shape[2] // groups, 1))
    divisor = math.sqrt(query.shape[-1]) if scaled else 1.0
    results = fused_attention(group_rows(query, groups), keys, values, mask, divisor)
    return ungroup_rows(results, query.shape)


def fused_attention(
    query: Float[Array, "B G Q K"],
    keys: Float[Array, "B G S K"],
    values: Float[Array, "B G S V"],
    mask: Bool[Array, "#B 1 #Q S"],
    divisor: float,
) -> Float[Array, "B G Q V"]:
    """softmax(Q K^T / divisor) V, the softmax in float32. Elsewhere than on a TPU, interpreted."""
    shape = query.shape[0], 1, query.shape[2], keys.shape[2]
    whole = jnp.broadcast_to(mask, shape, out_sharding=spec("batch", None, None, None))
    seen = whole[:, 0].swapaxes(1, 2).astype(jnp.int8)
    transposed = [x.swapaxes(2, 3) for x in (query, keys, values)]
    if (heads := spec("batch", "heads", None, None)) is not None:
        transposed = [jax.sharding.reshard(x, heads) for x in transposed]
    return _make_attend(divisor)(seen, *transposed).swapaxes(2, 3)


def _make_attend(divisor: float) -> Callable[[Seen, Query, Keys, Values], Results]:
    @jax.custom_vjp
    def attend(seen: Seen, query: Query, keys: Keys, values: Values) -> Results:
        def run(seen: Seen, query: Query, keys: Keys, values: Values) -> Sequence[Array]:
            results = jax.ShapeDtypeStruct((*values.shape[:3], query.shape[3]), values.dtype)
            kernel, width = _attend_heads, keys.shape[2] + values.shape[2]
            return _call(kernel, divisor, width, seen, (query, keys, values), (results,))

        return _on_each_device(run, seen, query, keys, values)[0]

    def forward(*arrays: Array) -> tuple[Results, tuple[Array, ...]]:
        return attend(*arrays), arrays

    def backward(arrays: tuple[Array, ...], gradient: Results) -> tuple[Array | None, ...]:
        def run(seen: Seen, *arrays: Array) -> Sequence[Array]:
            kernel, width = _attend_heads_backward, sum(x.shape[2] for x in (*arrays, arrays[1]))
            return _call(kernel, divisor, width, seen, arrays, arrays[:3])

        return None, *_on_each_device(run, *arrays, gradient)

    attend.defvjp(forward, backward)
    return attend


def _on_each_device(run: Callable[..., Sequence[Array]], *arrays: Array) -> Sequence[Array]:
    heads = spec("batch", "heads", None, None)
    if heads is None:
        return run(*arrays)
    mapped = jax.shard_map(run, out_specs=heads, check_vma=False)
    outputs: Sequence[Array] = mapped(*arrays)
    return outputs


def _call(
    kernel: Callable[..., None],
    divisor: float,
    width: int,
    seen: Seen,
    arrays: Sequence[Array],
    outputs: Sequence[Any],
) -> Sequence[Array]:
    """A row of the batch and some of its heads at a time; `width`: of all products, in sum."""
    batch, groups = arrays[0].shape[:2]
    weights = math.prod(seen.shape[1:])
    at_most = max(1, WEIGHTS_AT_ONCE // weights)
    heads = max(n for n in range(1, at_most + 1) if groups % n == 0)

    def block(x: Any) -> pl.BlockSpec:
        return pl.BlockSpec((1, heads, *x.shape[2:]), lambda row, part: (row, part, 0, 0))

    called: Sequence[Array] = pl.pallas_call(
        functools.partial(kernel, scale=1 / divisor),
        grid=(batch, groups // heads),
        in_specs=[
            pl.BlockSpec((1, *seen.shape[1:]), lambda row, part: (row, 0, 0)),
            *map(block, arrays),
        ],
        out_specs=[*map(block, outputs)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs],
        cost_estimate=pl.CostEstimate(
            flops=2 * batch * groups * weights * width,
            transcendentals=batch * groups * weights,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (seen, *arrays, *outputs)),
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=platform() != "tpu",
    )(seen, *arrays)
    return called


# The kernels see [1, S, Q] of the mask, and [1, heads, width, positions] of all else. Each stage is
# done for all heads before the next: while one waits for its product another has work for the chip,
# which halves the time.


def _attend_heads(
    seen: Any, query: Any, keys: Any, values: Any, results: Any, *, scale: float
) -> None:
    heads = range(query.shape[1])
    products = [_multiply(keys[0, h], 0, query[0, h], 0) for h in heads]
    exp_logits = [_exponentiate(product * scale, seen) for product in products]
    found = [
        _multiply(values[0, h], 1, own.astype(values.dtype), 0) / sums
        for h, (own, sums) in enumerate(exp_logits)
    ]
    for h in heads:
        results[0, h] = found[h].astype(results.dtype)


def _attend_heads_backward(
    seen: Any,
    query: Any,
    keys: Any,
    values: Any,
    gradient: Any,
    *outputs: Any,  # the gradients of query, keys and values
    scale: float,
) -> None:
    heads = range(query.shape[1])
    products = [
        (_multiply(keys[0, h], 0, query[0, h], 0), _multiply(values[0, h], 0, gradient[0, h], 0))
        for h in heads
    ]
    found = []
    for h, (product, weight_gradient) in enumerate(products):
        exp_logits, sums = _exponentiate(product * scale, seen)
        weights = exp_logits * (1 / sums)
        # Of the softmax: P (dP - sum P dP).
        weighted = weights * weight_gradient
        mean = weighted.sum(axis=0, keepdims=True)
        logit_gradient = ((weighted - weights * mean) * scale).astype(keys.dtype)
        found.append(
            (
                _multiply(keys[0, h], 1, logit_gradient, 0),
                _multiply(query[0, h], 1, logit_gradient, 1),
                _multiply(gradient[0, h], 1, weights.astype(values.dtype), 1),
            )
        )
    for h in heads:
        for output, own in zip(outputs, found[h], strict=True):
            output[0, h] = own.astype(output.dtype)


def _multiply(left: Array, left_axis: int, right: Array, right_axis: int) -> Float[Array, "_ _"]:
    """The sum over these axes, in float32."""
    return jax.lax.dot_general(
        left,
        right,
        (((left_axis,), (right_axis,)), ((), ())),
        precision=choose_precision(left, right),
        preferred_element_type=jnp.float32,
    )


def _exponentiate(
    logits: Float[Array, "S Q"], seen: Any
) -> tuple[Float[Array, "S Q"], Float[Array, "1 Q"]]:
    """The softmax's numerators and denominators, infinite where all keys are hidden."""
    hidden = apply_mask(logits, seen[0].astype(jnp.int32) != 0)
    largest = hidden.max(axis=0, keepdims=True)
    exp_logits = jnp.exp(hidden - largest)
    return exp_logits, jnp.where(largest > HIDDEN, exp_logits.sum(axis=0, keepdims=True), jnp.inf)
