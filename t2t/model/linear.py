"""Products of activations with weights, sums with biases, and initial values.

Float32 operands are multiplied in float32 on any device. JAX's default precision would round them
to TF32 on GPUs and to bfloat16 on TPUs.
"""

import math
from collections.abc import Sequence
from types import EllipsisType

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2t.model.compute_policy import Placement, Policy
from t2t.model.parametrization import Kind
from t2t.runtime.mesh import spec


class Linear(nnx.Module):
    """x W + b, where W has any number of dimensions; without a bias x W.

    Subscripts such as BTD,DF->BTF say how x and W are multiplied. A weight with a leading dimension
    stacks several, as in gated feed-forwards; `index` of a call picks one.
    """

    def __init__(
        self,
        policy: Policy,
        subscripts: str,
        weight: Float[Array, "..."],
        names: Sequence[str | None],
        *,
        matrix: tuple[int, int],
        biased: bool,
        kind: Kind = "hidden",
    ):
        """Takes the weight (`draw_glorot`), and initialises the bias with zeros.

        Args:
            policy: of the model.
            subscripts: as of einsum, for one weight.
            weight: float32, sharded.
            names: logical names of its dimensions (`t2t.runtime.mesh.RULES`).
            matrix: the dimensions of the weight that are inputs and outputs of a matrix, for Muon
                and for gradient accumulation. Other dimensions count matrices.
            biased: whether there is a bias, which has the dimensions of the weight but its inputs.
            kind: of the weight (`t2t.model.parametrization`).
        """
        self.policy, self.subscripts, self.biased = policy, subscripts, biased
        self.weight = nnx.Param(weight, matrix=matrix, kind=kind)
        letters, outputs = subscripts.replace("->", ",").split(",")[1:]
        own = dict(zip(letters, names[-len(letters) :], strict=True))
        # Activations are not sharded over d_model.
        own = {letter: None if name == "d_model" else name for letter, name in own.items()}
        self.placed = "batch", *(own.get(letter) for letter in outputs[1:])
        if biased:
            inputs = [
                weight.ndim - len(letters) + i for i, x in enumerate(letters) if x not in outputs
            ]
            kept = [axis for axis in range(weight.ndim) if axis not in inputs]
            sharding = spec(*(None if names[axis] == "d_model" else names[axis] for axis in kept))
            shape = [weight.shape[axis] for axis in kept]
            self.bias = nnx.Param(jnp.zeros(shape, out_sharding=sharding))

    def __call__(
        self, x: Float[Array, "..."], index: int | EllipsisType = ...
    ) -> Float[Array, "..."]:
        """Returns x W + b; `index` says which of several weights."""
        weight, placed = self.weight[index], spec(*self.placed)
        if self.biased:
            return self.policy.affine(self.subscripts, x, weight, self.bias[index], placed)
        return self.policy.multiply(self.subscripts, x, weight, placed)

    def split(
        self, x: Float[Array, "B T D"] | Sequence[Float[Array, "B T D"]], splits: Sequence[int]
    ) -> list[Float[Array, "B T G _"]]:
        """Returns the parts of x W + b that end at these indices of its last dimension.

        x may be several equal arrays, one for each part.
        """
        parts = self.policy.multiply_parts(x, self.weight[...], splits)
        if not self.biased:
            return list(parts)
        biases = jnp.split(self.bias[...], splits, axis=-1)
        return [add_bias(part, bias) for part, bias in zip(parts, biases, strict=True)]


def draw_linear(
    policy: Policy,
    subscripts: str,
    key: jax.Array,
    shape: Sequence[int],
    names: Sequence[str | None],
    *,
    matrix: tuple[int, int],
    biased: bool = False,
    kind: Kind = "hidden",
) -> Linear:
    """Creates a `Linear` with a weight of this shape, drawn as in Glorot and Bengio (2010)."""
    letters, outputs = subscripts.replace("->", ",").split(",")[1:]
    sizes = dict(zip(letters, shape[-len(letters) :], strict=True))
    fan_in = math.prod(size for letter, size in sizes.items() if letter not in outputs)
    fan_out = math.prod(size for letter, size in sizes.items() if letter in outputs)
    weight = draw_glorot(key, shape, fan_in, fan_out, *names)
    return Linear(policy, subscripts, weight, names, matrix=matrix, biased=biased, kind=kind)


def choose_precision(*operands: Float[Array, "..."]) -> jax.lax.Precision | None:
    """Returns HIGHEST if the operands' common dtype is float32, else None (JAX's default).

    HIGHEST has no effect on operands in bfloat16, and Pallas kernels for TPUs do not accept it
    for them.
    """
    return jax.lax.Precision.HIGHEST if jnp.result_type(*operands) == jnp.float32 else None


def einsum(
    subscripts: str,
    *operands: Float[Array, "..."],
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Placement = None,
) -> Float[Array, "..."]:
    """As `jnp.einsum`, at full precision; JAX computes its gradients at the same precision."""
    return jnp.einsum(
        subscripts,
        *operands,
        precision=choose_precision(*operands),
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )


def multiply(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    out_sharding: Placement = None,
    *,
    dtype: jnp.dtype,
) -> Float[Array, "..."]:
    """Computes einsum(subscripts, x, weights) with operands cast to `dtype`.

    The result has the dtype of `x`.
    """
    return einsum(
        subscripts,
        x.astype(dtype),
        weights.astype(dtype),
        preferred_element_type=x.dtype,
        out_sharding=out_sharding,
    )


def affine(
    subscripts: str,
    x: Float[Array, "..."],
    weights: Float[Array, "..."],
    bias: Float[Array, "..."],
    out_sharding: Placement = None,
    *,
    dtype: jnp.dtype,
) -> Float[Array, "..."]:
    """Computes `multiply` plus a bias, as `add_bias` adds it."""
    return add_bias(multiply(subscripts, x, weights, out_sharding, dtype=dtype), bias)


def multiply_parts(
    x: Float[Array, "B T D"] | Sequence[Float[Array, "B T D"]],
    weights: Float[Array, "D G P"],
    splits: Sequence[int],
    *,
    dtype: jnp.dtype,
) -> Sequence[Float[Array, "B T G _"]]:
    """Returns x times each part of the weights, which are split along P at indices `splits`.

    For self-attention the weights are [W^Q W^K W^V], and the results X W^Q, X W^K and X W^V. x may
    be several equal arrays, one for each part (`t2t.model.stack.Shared`).
    """
    parts = jnp.split(weights, splits, axis=-1)
    return [
        multiply("BTD,DGP->BTGP", one, part, dtype=dtype)
        for one, part in zip(repeat_operand(x, len(parts)), parts, strict=True)
    ]


def repeat_operand(
    x: Float[Array, "B T D"] | Sequence[Float[Array, "B T D"]], number: int
) -> Sequence[Float[Array, "B T D"]]:
    """Returns the left operand of each of several products: x, or the equal arrays that it has."""
    return [x] * number if isinstance(x, jax.Array) else x


def add_bias(x: Float[Array, "..."], bias: Float[Array, "..."]) -> Float[Array, "..."]:
    """Adds a float32 bias in float32, and rounds the sum to the dtype of x.

    So JAX sums the bias's gradient over all positions in float32.
    """
    return (x + bias).astype(x.dtype)


def draw_glorot(
    key: jax.Array, shape: Sequence[int], fan_in: int, fan_out: int, *names: str | None
) -> Float[Array, "..."]:
    """Draws weights uniformly from [-limit, limit), limit = sqrt(6 / (fan_in + fan_out)).

    Source: Glorot and Bengio (2010). `names` are the logical names of the dimensions
    (`t2t.runtime.mesh.RULES`).
    """
    limit = math.sqrt(6 / (fan_in + fan_out))
    return jax.random.uniform(key, shape, minval=-limit, maxval=limit, out_sharding=spec(*names))


def init_glorot(
    key: jax.Array,
    shape: Sequence[int],
    fan_in: int,
    fan_out: int,
    *names: str | None,
    matrix: tuple[int, int] | None = None,
    kind: Kind = "hidden",
) -> nnx.Param[jax.Array]:
    """Creates a parameter by `draw_glorot`.

    `matrix` says which dimensions are inputs and outputs of a matrix that enters products alone,
    for Muon and for gradient accumulation. Other dimensions count matrices. `kind` is that of
    `t2t.model.parametrization`.
    """
    return nnx.Param(draw_glorot(key, shape, fan_in, fan_out, *names), matrix=matrix, kind=kind)
