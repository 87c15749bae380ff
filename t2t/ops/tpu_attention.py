"""Equation 1 as one Pallas kernel for TPUs, which never writes the weights to HBM.

The S * Q weights of a key/value head have to fit into VMEM at once; for sentences they do. So the
kernel computes each softmax over all keys at once, without the running maximum and sum of
FlashAttention (Dao et al. 2022). The backward pass computes the weights again.

Inside the kernel positions are the last dimension, and weights are [S, Q]. Positions are last
because a head's width, often 64, would fill only half of the 128 lanes. Keys are the first
dimension of the weights because then sums over keys stay within a lane, and the forward pass
multiplies the values [U, S] by the weights without transposing either. Q = H/G * T as in
`recomputed_attention.py`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int8

from t2t.model.attention import MASKED, apply_mask
from t2t.model.kv_cache import KeyValue
from t2t.model.linear import choose_precision
from t2t.ops.recomputed_attention import group_mask, group_queries, ungroup_results
from t2t.runtime.mesh import platform, spec

LANES = 128
MAX_WEIGHTS_PER_HEAD = 2**20
# Largest number of weights in a block of several key/value heads; a block of one head may have up
# to `MAX_WEIGHTS_PER_HEAD`. 2**19 weights are 2 MB in float32, and the backward pass holds a few
# arrays of this size.
MAX_WEIGHTS_PER_BLOCK = 2**19

Query = Float[Array, "B G K Q"]
Keys = Float[Array, "B G K S"]
Values = Float[Array, "B G U S"]
Results = Float[Array, "B G U Q"]
Mask = Int8[Array, "B S Q"]  # 0: masked


def supports(
    query: Float[Array, "B T H K"],
    key_value: KeyValue,
    bias: Float[Array, "*#B #H #T #S"] | None,
    dropout_rate: float,
) -> bool:
    """Returns whether the kernel supports these operands of attention on this platform.

    It needs a TPU, operands that are all bfloat16, no bias, no dropout of the weights, Q and S of
    128 or more, widths K and U that are multiples of 16, and Q * S <= `MAX_WEIGHTS_PER_HEAD`, where
    Q and S count with their padding (`_pad`), which may be half of the weights.
    """
    _, length, heads, width = query.shape
    _, keys, groups, value_width = key_value.values.shape
    queries = heads // groups * length
    weights = (queries + _pad(queries)) * (keys + _pad(keys))
    return (
        platform() == "tpu"
        and query.dtype == key_value.keys.dtype == key_value.values.dtype == jnp.bfloat16
        and bias is None
        and dropout_rate == 0
        and min(queries, keys) >= LANES
        and width % 16 == value_width % 16 == 0
        and weights <= min(MAX_WEIGHTS_PER_HEAD, 2 * queries * keys)
    )


def _pad(length: int) -> int:
    """The positions that are missing to a multiple of 128; none for tests with fewer than 128."""
    return -length % LANES if length > LANES else 0


def tpu_attention(
    query: Float[Array, "B T H K"],
    key_value: KeyValue,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "*#B #H #T #S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """As `t2t.model.attention.dot_product_attention`, without bias and without dropout."""
    assert bias is None
    assert key is None or dropout_rate == 0
    groups = key_value.keys.shape[2]
    operands = group_queries(query, groups), *(x.transpose(0, 2, 1, 3) for x in key_value)
    mask = group_mask(mask, query.shape[2] // groups)
    divisor = math.sqrt(query.shape[-1]) if scaled else 1.0
    num_queries, num_keys = operands[0].shape[2], operands[1].shape[2]
    grouped, keys, values = (
        jnp.pad(x, [(0, 0), (0, 0), (0, _pad(x.shape[2])), (0, 0)]) for x in operands
    )
    more = _pad(num_queries) if mask.shape[2] > 1 else 0
    mask = jnp.pad(mask, [(0, 0), (0, 0), (0, more), (0, _pad(num_keys))])  # no query sees them
    results = fused_attention(grouped, keys, values, mask, divisor)
    return ungroup_results(results[:, :, :num_queries], query.shape)


def fused_attention(
    query: Float[Array, "B G Q K"],
    keys: Float[Array, "B G S K"],
    values: Float[Array, "B G S U"],
    mask: Bool[Array, "#B 1 #Q S"],
    divisor: float,
) -> Float[Array, "B G Q U"]:
    """Computes softmax(Q K^T / divisor) V by the kernel, with the softmax in float32.

    On other platforms than TPUs, Pallas interprets the kernel, for tests.
    """
    shape = query.shape[0], 1, query.shape[2], keys.shape[2]
    full_mask = jnp.broadcast_to(mask, shape, out_sharding=spec("batch", None, None, None))
    kernel_mask = full_mask[:, 0].swapaxes(1, 2).astype(jnp.int8)
    transposed = [x.swapaxes(2, 3) for x in (query, keys, values)]
    if (heads := spec("batch", "heads", None, None)) is not None:
        transposed = [jax.sharding.reshard(x, heads) for x in transposed]
    return _make_attend(divisor)(kernel_mask, *transposed).swapaxes(2, 3)


def _make_attend(divisor: float) -> Callable[[Mask, Query, Keys, Values], Results]:
    @jax.custom_vjp
    def attend(mask: Mask, query: Query, keys: Keys, values: Values) -> Results:
        def run(mask: Mask, query: Query, keys: Keys, values: Values) -> Sequence[Array]:
            results = jax.ShapeDtypeStruct((*values.shape[:3], query.shape[3]), values.dtype)
            kernel, width = _attend_heads, keys.shape[2] + values.shape[2]
            return _call(kernel, divisor, width, mask, (query, keys, values), (results,))

        return _on_each_device(run, mask, query, keys, values)[0]

    def forward(*arrays: Array) -> tuple[Results, tuple[Array, ...]]:
        return attend(*arrays), arrays

    def backward(arrays: tuple[Array, ...], gradient: Results) -> tuple[Array | None, ...]:
        def run(mask: Mask, *arrays: Array) -> Sequence[Array]:
            kernel, width = _attend_heads_backward, sum(x.shape[2] for x in (*arrays, arrays[1]))
            return _call(kernel, divisor, width, mask, arrays, arrays[:3])

        return None, *_on_each_device(run, *arrays, gradient)

    attend.defvjp(forward, backward)
    return attend


def _on_each_device(run: Callable[..., Sequence[Array]], *arrays: Array) -> Sequence[Array]:
    """Calls `run` on each device with its shards of the arrays, if there is a mesh."""
    heads = spec("batch", "heads", None, None)
    if heads is None:
        return run(*arrays)
    mapped = jax.shard_map(run, out_specs=heads, check_vma=False)
    return mapped(*arrays)


def _call(
    kernel: Callable[..., None],
    divisor: float,
    width: int,
    mask: Mask,
    arrays: Sequence[Array],
    outputs: Sequence[Any],
) -> Sequence[Array]:
    """Runs a kernel on blocks of one row of the batch and several heads.

    `outputs` have the shapes and dtypes of the results. `width` serves the cost estimate: each
    product in the kernel takes 2 * S * Q * (K or U) FLOPs per head, and `width` is the sum of these
    K and U over the products.
    """
    from jax.experimental import pallas as pl  # here because it takes 0.1 s, and few need it
    from jax.experimental.pallas import tpu as pltpu

    batch, groups = arrays[0].shape[:2]
    weights = math.prod(mask.shape[1:])
    max_heads = max(1, MAX_WEIGHTS_PER_BLOCK // weights)
    heads = max(n for n in range(1, max_heads + 1) if groups % n == 0)

    def block(x: Any) -> Any:
        return pl.BlockSpec((1, heads, *x.shape[2:]), lambda row, part: (row, part, 0, 0))

    return pl.pallas_call(
        functools.partial(kernel, scale=1 / divisor),
        grid=(batch, groups // heads),
        in_specs=[
            pl.BlockSpec((1, *mask.shape[1:]), lambda row, part: (row, 0, 0)),
            *map(block, arrays),
        ],
        out_specs=[*map(block, outputs)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs],
        cost_estimate=pl.CostEstimate(
            flops=2 * batch * groups * weights * width,
            transcendentals=batch * groups * weights,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (mask, *arrays, *outputs)),
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=platform() != "tpu",
    )(mask, *arrays)


# The arguments of a kernel are Pallas Refs to blocks. The block of the mask is [1, S, Q], all
# others are [1, heads, width, positions]. The forward kernel computes Q K^T of all heads, then all
# exponentials, then all averages; the backward kernel begins with two products of all heads. So the
# compiler can overlap the products of one head with the softmax of another, which halves its
# estimate of the cycles.


def _attend_heads(
    mask: Any, query: Any, keys: Any, values: Any, results: Any, *, scale: float
) -> None:
    heads = range(query.shape[1])
    products = [_multiply(keys[0, h], 0, query[0, h], 0) for h in heads]
    exp_logits = [_exponentiate(product * scale, mask) for product in products]
    averages = [
        _multiply(values[0, h], 1, numerators.astype(values.dtype), 0) / sums
        for h, (numerators, sums) in enumerate(exp_logits)
    ]
    for h in heads:
        results[0, h] = averages[h].astype(results.dtype)


def _attend_heads_backward(
    mask: Any,
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
    gradients = []
    for h, (product, weight_gradient) in enumerate(products):
        exp_logits, sums = _exponentiate(product * scale, mask)
        weights = exp_logits * (1 / sums)
        # The softmax's gradient is P (dP - sum(P dP)), P the weights.
        weighted = weights * weight_gradient
        weighted_sum = weighted.sum(axis=0, keepdims=True)
        product_gradient = ((weighted - weights * weighted_sum) * scale).astype(keys.dtype)
        gradients.append(
            (
                _multiply(keys[0, h], 1, product_gradient, 0),
                _multiply(query[0, h], 1, product_gradient, 1),
                _multiply(gradient[0, h], 1, weights.astype(values.dtype), 1),
            )
        )
    for h in heads:
        for output, result in zip(outputs, gradients[h], strict=True):
            output[0, h] = result.astype(output.dtype)


def _multiply(left: Array, left_axis: int, right: Array, right_axis: int) -> Float[Array, "_ _"]:
    """Contracts `left_axis` of `left` with `right_axis` of `right`, in float32."""
    return jax.lax.dot_general(
        left,
        right,
        (((left_axis,), (right_axis,)), ((), ())),
        precision=choose_precision(left, right),
        preferred_element_type=jnp.float32,
    )


def _exponentiate(
    logits: Float[Array, "S Q"], mask: Any
) -> tuple[Float[Array, "S Q"], Float[Array, "1 Q"]]:
    """Returns the softmax's numerators, and its denominators: inf where all keys are masked."""
    masked = apply_mask(logits, mask[0].astype(jnp.int32) != 0)
    largest = masked.max(axis=0, keepdims=True)
    exp_logits = jnp.exp(masked - largest)
    return exp_logits, jnp.where(largest > MASKED, exp_logits.sum(axis=0, keepdims=True), jnp.inf)
