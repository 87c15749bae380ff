"""The order in which a backward pass computes its gradients."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float


def weights_first(
    module: nnx.Module, x: Float[Array, "B T D"]
) -> tuple[nnx.Module, Float[Array, "B T D"]]:
    """(module, x), whose backward pass computes the gradients of the module's weights first.

    Otherwise XLA puts these off to the end of the pass, and keeps until then what they are computed
    from: on a TPU a third of a step's memory.
    """
    structure, params = nnx.split(module)
    params, x = _wait_for_all(params, x)
    return nnx.merge(structure, params), x


@jax.custom_vjp
def _wait_for_all(params: Any, x: Float[Array, "B T D"]) -> tuple[Any, Float[Array, "B T D"]]:
    return params, x


_wait_for_all.defvjp(
    lambda params, x: ((params, x), None),
    lambda _, gradients: jax.lax.optimization_barrier(gradients),
)
