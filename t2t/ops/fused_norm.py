"""Dropout, residual connection and norm in one Pallas kernel for GPUs, forward and backward.

The rate of memory limits these operations. XLA computes them in two kernels, and their gradients in
three or four, which read the same arrays again. These kernels read and write each array once:

    forward    reads x and y; writes s = x + dropout(y) and norm(s)
    backward   reads s and the gradients of all uses of norm(s); writes the gradients of x and y

Without y, as in pre-norm, s is x: the kernel computes the norm alone, and its backward pass adds
the gradient that x has by its residual connection. The backward pass computes mean, variance and
dropout's mask again. The mask is that of `t2t.model.layers.dropout`, a hash of the key and of an
element's index in the whole batch. Each device knows the index of its first element, so the mask is
the same on every mesh.

The kernels are written for Triton, which needs powers of two. No GPU has run or timed them. JAX
0.11.2 compiles Pallas by Triton, but a later JAX will not; its successor Mosaic does not compile
without a GPU.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, UInt32

from t2t.model.layers import LayerNorm, RMSNorm, hash_index, is_kept
from t2t.model.stack import Residual, Shared
from t2t.runtime.mesh import platform

TILE = 2048  # elements that a program holds at once, as whole rows
# Tiles that a program of the backward pass reads, one after the other. Each program writes one sum
# of the gradients of scale and bias.
STEPS = 16
PRODUCTS = 3  # with W^Q, W^K and W^V; with the residual connection these are the most uses
WARPS = 4

Rows = Float[Array, "B T D"]
Vector = Float[Array, "D"]


class _Options(NamedTuple):
    """The settings of dropout and norm."""

    rate: float  # of dropout
    centred: bool  # layer norm; False: RMS norm
    epsilon: float


class _Parameters(NamedTuple):
    scale: Vector
    bias: Vector | None


def add_and_norm(
    residual: Residual, x: Rows, y: Rows | None = None, key: jax.Array | None = None
) -> Shared:
    """As `t2t.model.stack.add_and_norm`, with one array for each use.

    It rounds the sum and the result, and nothing before them. It supports layer norm and RMS norm,
    of widths that are a power of two. On a CPU, Pallas interprets the kernels, for tests.
    """
    norm = residual.norm
    assert isinstance(norm, LayerNorm | RMSNorm)
    assert y is None or residual.residual
    rate = 0.0 if y is None or key is None else residual.dropout_rate
    options = _Options(rate, isinstance(norm, LayerNorm), norm.epsilon)
    bias = norm.bias[...] if isinstance(norm, LayerNorm) else None
    key_data = jnp.zeros(2, jnp.uint32) if key is None else jax.random.key_data(key)
    return Shared(_make_norm(options)(x, y, _Parameters(norm.scale[...], bias), key_data))


def _make_norm(options: _Options) -> Callable[..., tuple[Rows, ...]]:
    def share(x: Rows, y: Rows | None, result: Rows) -> tuple[Rows, ...]:
        return (x if y is None else result, *[result] * PRODUCTS)

    @jax.custom_vjp
    def run(
        x: Rows, y: Rows | None, parameters: _Parameters, key_data: UInt32[Array, "2"]
    ) -> tuple[Rows, ...]:
        (result,) = _normalize(options, (x, y), parameters, key_data, keeps_sum=False)
        return share(x, y, result)

    def forward(*arguments: Any) -> tuple[tuple[Rows, ...], Any]:
        # With `symbolic_zeros` JAX wraps each array in an object.
        x, y, parameters, key_data = jax.tree.map(lambda wrapped: wrapped.value, arguments)
        keeps_sum = y is not None
        rows, constants = (x, y), (parameters, key_data)
        *kept, result = _normalize(options, rows, *constants, keeps_sum=keeps_sum)
        return share(x, y, result), ((kept or [x])[0], *constants, keeps_sum)

    def backward(kept: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
        total, parameters, key_data, has_y = kept
        by_residual, *others = [None if isinstance(g, SymbolicZero) else g for g in gradients]
        if has_y:  # the residual connection, too, uses norm(s)
            by_residual, others = None, [by_residual, *others]
        used = [g for g in others if g is not None] or [jnp.zeros_like(total)]
        rows: Any = total, used, by_residual
        *by_rows, by_parameters = _differentiate(options, rows, parameters, key_data, has_y=has_y)
        x_gradient, y_gradient = by_rows[0], by_rows[-1] if has_y else None
        return x_gradient, y_gradient, by_parameters, None

    run.defvjp(forward, backward, symbolic_zeros=True)
    return run


def _normalize(
    options: _Options,
    rows: tuple[Rows, Rows | None],
    parameters: _Parameters,
    key_data: UInt32[Array, "2"],
    *,
    keeps_sum: bool,
) -> Sequence[Rows]:
    """Returns norm(s), and s before it if `keeps_sum`."""
    kernel = functools.partial(_normalize_tile, options)
    call = _Call("add_and_norm", kernel, steps=1, outputs=1 + keeps_sum, sums=0)
    return call.on_each_device(rows, parameters, key_data)


def _differentiate(
    options: _Options,
    rows: tuple[Rows, list[Rows], Rows | None],
    parameters: _Parameters,
    key_data: UInt32[Array, "2"],
    *,
    has_y: bool,
) -> list[Any]:
    """Returns the gradients of x, of y unless it is the same, and of the parameters."""
    kernel = functools.partial(_differentiate_tiles, options)
    outputs = 1 + (has_y and options.rate > 0)
    call = _Call("add_and_norm_backward", kernel, STEPS, outputs, sums=2)
    *results, scales, biases = call.on_each_device(rows, parameters, key_data)
    bias = None if parameters.bias is None else biases.sum(axis=0)
    return [*results, _Parameters(scales.sum(axis=0), bias)]


class _Call(NamedTuple):
    """A kernel and what it returns."""

    name: str
    kernel: Callable[..., None]
    steps: int  # tiles of whole rows that a program of the kernel gets, at most
    outputs: int  # number of arrays [B, T, D]
    sums: int  # number of arrays with a vector of each program: [programs, D]

    def on_each_device(
        self, rows: Any, parameters: _Parameters, key_data: UInt32[Array, "2"]
    ) -> Sequence[Float[Array, "..."]]:
        """Calls the kernel on each device, on its rows of the arrays.

        `rows` is a tree of arrays [B, T, D], in which None stands for what is absent.
        """
        if jax.sharding.get_abstract_mesh().empty:
            return self.on_device((), rows, parameters, key_data)
        axes = jax.typeof(jax.tree.leaves(rows)[0]).sharding.spec[0] or ()
        mapped = jax.shard_map(
            functools.partial(self.on_device, axes),
            in_specs=(PartitionSpec(axes), PartitionSpec(), PartitionSpec()),
            out_specs=PartitionSpec(axes),
            check_vma=False,
        )
        results: Sequence[Array] = mapped(rows, parameters, key_data)
        return results

    def on_device(
        self,
        axes: str | tuple[str, ...],
        rows: Any,
        parameters: _Parameters,
        key_data: UInt32[Array, "2"],
    ) -> Sequence[Float[Array, "..."]]:
        """Calls the kernel on the rows of one device; `axes` of the mesh divide all rows."""
        from jax.experimental import pallas as pl  # here because it takes 0.1 s, and few need it
        from jax.experimental.pallas import triton

        like = jax.tree.leaves(rows)[0]
        width, count = like.shape[-1], math.prod(like.shape[:-1])
        tile = math.gcd(count, max(1, TILE // width))
        tiles = count // tile
        steps = math.gcd(tiles, self.steps)
        first_row = jax.lax.axis_index(axes) * count if axes else 0
        seed = jnp.append(key_data, jnp.asarray(first_row * width, jnp.uint32))
        in_tiles = jax.tree.map(lambda x: x.reshape(tiles, tile, width), rows)
        result = jax.ShapeDtypeStruct((tiles, tile, width), like.dtype)
        total = jax.ShapeDtypeStruct((tiles // steps, width), jnp.float32)
        of_result = pl.BlockSpec((steps, tile, width), lambda program: (program, 0, 0))
        of_total = pl.BlockSpec((1, width), lambda program: (program, 0))
        of_vector = pl.BlockSpec((width,), lambda _: (0,))
        found = pl.pallas_call(
            self.kernel,
            grid=(tiles // steps,),
            in_specs=[
                jax.tree.map(lambda _: of_result, rows),
                jax.tree.map(lambda _: of_vector, parameters),
                pl.BlockSpec(seed.shape, lambda _: (0,)),
            ],
            out_specs=[of_result] * self.outputs + [of_total] * self.sums,
            out_shape=[result] * self.outputs + [total] * self.sums,
            interpret=platform() != "gpu",
            compiler_params=triton.CompilerParams(num_warps=WARPS),
            name=self.name,
        )(in_tiles, parameters, seed)
        results = [x.reshape(like.shape) for x in found[: self.outputs]]
        return [*results, *found[self.outputs :]]


# The arguments of a kernel are Pallas Refs: a tree of blocks [steps, tile, D], the parameters, and
# (k0, k1, index of the device's first element).


def _normalize_tile(
    options: _Options, rows: Any, parameters: Any, seed: Any, *outputs: Any
) -> None:
    from jax.experimental import pallas as pl

    x, y = rows
    total = x[0].astype(jnp.float32)
    if y is not None:
        total += _drop(options, y[0].astype(jnp.float32), seed, pl.program_id(0))
    rounded = total.astype(x.dtype)
    normalized, _ = _standardize(options, rounded)
    result = normalized * parameters.scale[...]
    if parameters.bias is not None:
        result += parameters.bias[...]
    outputs[-1][0] = result.astype(x.dtype)
    for kept in outputs[:-1]:
        kept[0] = rounded


def _differentiate_tiles(
    options: _Options, rows: Any, parameters: Any, seed: Any, *outputs: Any
) -> None:
    from jax.experimental import pallas as pl

    total, gradients, by_residual = rows
    *by_rows, scale_sum, bias_sum = outputs
    steps = total.shape[0]
    before = pl.program_id(0) * steps  # tiles of other programs
    scale = parameters.scale[...]

    def add(step: Any, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        gradient = sum(each[step].astype(jnp.float32) for each in gradients)
        normalized, inverse = _standardize(options, total[step])
        # For n = (s - mean) * inverse: ds = (dn - n mean(n dn) - mean(dn)) * inverse. The last mean
        # is that of the centring.
        inner = gradient * scale
        projected = inner - normalized * _mean(normalized * inner)
        if options.centred:
            projected -= _mean(inner)
        result = projected * inverse
        if by_residual is not None:
            result += by_residual[step].astype(jnp.float32)
        by_rows[0][step] = result.astype(total.dtype)
        if len(by_rows) > 1:
            by_rows[1][step] = _drop(options, result, seed, before + step).astype(total.dtype)
        return sums[0] + (gradient * normalized).sum(axis=0), sums[1] + gradient.sum(axis=0)

    zero = jnp.zeros(scale.shape, jnp.float32)
    scale_sum[0], bias_sum[0] = jax.lax.fori_loop(0, steps, add, (zero, zero))


def _standardize(options: _Options, x: Float[Array, "R D"]) -> tuple[Array, Array]:
    """Returns x, centred and divided by its standard deviation, and the factor of this division."""
    x = x.astype(jnp.float32)
    if options.centred:
        x -= _mean(x)
    inverse = jax.lax.rsqrt(_mean(jnp.square(x)) + options.epsilon)
    return x * inverse, inverse


def _mean(x: Float[Array, "R D"]) -> Float[Array, "R 1"]:
    return x.mean(axis=-1, keepdims=True)


def _drop(options: _Options, x: Float[Array, "R D"], seed: Any, tile: Any) -> Float[Array, "R D"]:
    """Applies dropout to a tile; `tile` is its number on this device."""
    if options.rate == 0:
        return x
    rows, columns = (jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis) for axis in (0, 1))
    index = (
        seed[2]
        + tile.astype(jnp.uint32) * jnp.uint32(x.size)
        + rows * jnp.uint32(x.shape[1])
        + columns
    )
    bits = hash_index(index, seed[0], seed[1])
    return jnp.where(is_kept(bits, options.rate), x / (1 - options.rate), 0)
