"""How a model computes: the dtypes, and the implementation of each operation.

`t2t/ops/choose.py` resolves the policy once, from the config and the mesh's devices; modules are
built with it, and nothing in this folder asks on which platform it runs.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

Module = TypeVar("Module", bound=nnx.Module)
Placement = PartitionSpec | NamedSharding | None


@dataclasses.dataclass(frozen=True)
class Operations:
    """The implementation of each operation: the textbook's formula, or a faster twin in `t2t/ops`.

    A twin has the signature and the values of its formula.
    """

    attention: Callable[..., Float[Array, "B T H V"]]  # attention.dot_product_attention
    multiply: Callable[..., Float[Array, "..."]]  # matmul.multiply
    project: Callable[..., Sequence[Float[Array, "B T G _"]]]  # matmul.project
    standardize: Callable[..., Float[Array, "B T D"]]  # norm.standardize
    relu: Callable[[Float[Array, "..."]], Float[Array, "..."]]
    dropout: Callable[[Array, float, jax.Array | None], Float[Array, "..."]]  # dropout.dropout
    order_gradients: Callable[[nnx.Module, Array], tuple[nnx.Module, Float[Array, "B T D"]]]
    smoothed_cross_entropy: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
    sentence_losses: Callable[..., Float[Array, "B"]]  # both: t2t.training.loss


@dataclasses.dataclass(frozen=True)
class Policy:
    """What a model computes with, besides its parameters."""

    dtype: jnp.dtype  # of activations
    product_dtype: jnp.dtype  # of the operands of products with weights
    operations: Operations

    def multiply(
        self,
        subscripts: str,
        x: Float[Array, "..."],
        weights: Float[Array, "..."],
        out_sharding: Placement = None,
    ) -> Float[Array, "..."]:
        """einsum(subscripts, x, weights) in the dtypes of this policy."""
        operation = self.operations.multiply
        return operation(subscripts, x, weights, self.product_dtype, out_sharding)

    def project(
        self, x: Float[Array, "B T D"], weights: Float[Array, "D G P"], splits: tuple[int, ...]
    ) -> Sequence[Float[Array, "B T G _"]]:
        """The products of x with each part of the weights, which are split along P."""
        return self.operations.project(x, weights, splits, self.product_dtype)

    def order_gradients(
        self, module: Module, x: Float[Array, "B T D"]
    ) -> tuple[Module, Float[Array, "B T D"]]:
        """(module, x), unchanged; a twin decides in which order their gradients are computed."""
        same, x = self.operations.order_gradients(module, x)
        assert isinstance(same, type(module))
        return same, x

    def describe_products(self) -> str:
        """Dtypes and precision of all products, as runs and scores record them."""
        narrow, wide = "bfloat16 operands", "float32 operands at full precision"
        if self.dtype == jnp.bfloat16:
            return narrow
        mixed = self.product_dtype == jnp.bfloat16
        return f"{narrow} with weights, else {wide}" if mixed else wide
