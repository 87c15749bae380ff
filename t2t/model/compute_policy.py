"""The compute policy of a model: its dtypes, and the implementation of each operation.

`t2t/ops/select_kernels.py` creates the policy from the config and the platform of the mesh. The
modules that depend on it receive it at construction, so no code in this folder asks for the
platform.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

Module = TypeVar("Module", bound=nnx.Module)
Placement = PartitionSpec | NamedSharding | None
Inputs = TypeVar("Inputs")  # arrays, or tuples of arrays


def keep_order(module: nnx.Module, inputs: Inputs) -> tuple[nnx.Module, Inputs]:
    """Returns its arguments; XLA decides in which order their gradients are computed."""
    return module, inputs


@dataclasses.dataclass(frozen=True)
class Operations:
    """The implementation of each operation: the formula named here, or a faster twin in `t2t/ops`.

    A twin has the signature of its formula and returns the same values up to rounding.
    """

    attention: Callable[..., Float[Array, "B T H U"]]  # attention.dot_product_attention
    multiply: Callable[..., Float[Array, "..."]]  # matmul.multiply
    project: Callable[..., Sequence[Float[Array, "B T G _"]]]  # matmul.project
    standardize: Callable[..., Float[Array, "B T D"]]  # layers.standardize
    apply_experts: Callable[..., Float[Array, "B T D"]]  # experts.apply_experts
    relu: Callable[[Float[Array, "..."]], Float[Array, "..."]]  # jax.nn.relu
    rotate: Callable[[Array, Array], Float[Array, "B T H K"]]  # position.rotate
    dropout: Callable[[Array, float, jax.Array | None], Float[Array, "..."]]  # layers.dropout
    # The identity on (module, inputs), see `Policy.order_gradients`.
    order_gradients: Callable[[nnx.Module, Any], tuple[nnx.Module, Any]]
    # of loss.py:
    smoothed_cross_entropy: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
    r_drop_cross_entropy: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
    sentence_losses: Callable[..., Float[Array, "B"]]


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes and operations of a model, shared by the modules that depend on them."""

    dtype: jnp.dtype  # of activations
    product_dtype: jnp.dtype  # of both operands of `multiply`, `project` and the output logits
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
        """Returns x times each part of the weights, which are split along P at indices `splits`.

        P is the concatenated width of the parts, such as W^Q, W^K and W^V.
        """
        return self.operations.project(x, weights, splits, self.product_dtype)

    def order_gradients(self, module: Module, inputs: Inputs) -> tuple[Module, Inputs]:
        """Returns its arguments; may set the order in which their gradients are computed.

        Computing the gradients of the module's parameters early saves memory: the activations that
        they need can be freed sooner (see `t2t/ops/fast_layers.py`).
        """
        ordered, inputs = self.operations.order_gradients(module, inputs)
        assert isinstance(ordered, type(module))
        return ordered, inputs

    def describe_products(self) -> str:
        """Returns the operand dtypes of products in words, for the records of runs and scores."""
        bf16, f32 = "bfloat16 operands", "float32 operands at full precision"
        if self.dtype == jnp.bfloat16:
            return bf16
        # Do not reword these texts: a saved evaluation contains one, and is only found again if the
        # text is still the same.
        mixed = self.product_dtype == jnp.bfloat16
        return f"{bf16} with weights, else {f32}" if mixed else f32
