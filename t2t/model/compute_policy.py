"""The compute policy of a model: its dtypes, and the implementation of each operation.

`t2t/ops/choose.py` creates the policy from the config and the platform of the mesh. Every module
receives it at construction, so no code in this folder has to ask for the platform.
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
    """The implementation of each operation: the formula named here, or a faster twin in `t2t/ops`.

    A twin has the signature of its formula and returns the same values up to rounding.
    """

    attention: Callable[..., Float[Array, "B T H U"]]  # attention.dot_product_attention
    multiply: Callable[..., Float[Array, "..."]]  # matmul.multiply
    project: Callable[..., Sequence[Float[Array, "B T G _"]]]  # matmul.project
    standardize: Callable[..., Float[Array, "B T D"]]  # norm.standardize
    relu: Callable[[Float[Array, "..."]], Float[Array, "..."]]  # jax.nn.relu
    dropout: Callable[[Array, float, jax.Array | None], Float[Array, "..."]]  # dropout.dropout
    # The identity on (module, x), see `Policy.order_gradients`.
    order_gradients: Callable[[nnx.Module, Array], tuple[nnx.Module, Float[Array, "B T D"]]]
    # Both losses: t2t/training/loss.py.
    smoothed_cross_entropy: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
    sentence_losses: Callable[..., Float[Array, "B"]]


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes and operations that every module of a model uses."""

    dtype: jnp.dtype  # of activations
    product_dtype: jnp.dtype  # of both operands in a product of activations and weights
    operations: Operations

    def multiply(
        self,
        subscripts: str,
        x: Float[Array, "..."],
        weights: Float[Array, "..."],
        out_sharding: Placement = None,
    ) -> Float[Array, "..."]:
        """Computes einsum(subscripts, x, weights) with operands in `product_dtype`."""
        operation = self.operations.multiply
        return operation(subscripts, x, weights, self.product_dtype, out_sharding)

    def project(
        self, x: Float[Array, "B T D"], weights: Float[Array, "D G P"], splits: tuple[int, ...]
    ) -> Sequence[Float[Array, "B T G _"]]:
        """Splits the weights along P at the indices `splits`; returns x times each part."""
        return self.operations.project(x, weights, splits, self.product_dtype)

    def order_gradients(
        self, module: Module, x: Float[Array, "B T D"]
    ) -> tuple[Module, Float[Array, "B T D"]]:
        """Returns (module, x) unchanged; may set the order in which their gradients are computed.

        `t2t/ops/gradient_order.py` says why.
        """
        ordered, x = self.operations.order_gradients(module, x)
        assert isinstance(ordered, type(module))
        return ordered, x

    def describe_products(self) -> str:
        """Returns the operand dtypes of products in words, for the records of runs and scores."""
        bf16, f32 = "bfloat16 operands", "float32 operands at full precision"
        if self.dtype == jnp.bfloat16:
            return bf16
        mixed = self.product_dtype == jnp.bfloat16
        return f"{bf16} with weights, else {f32}" if mixed else f32
