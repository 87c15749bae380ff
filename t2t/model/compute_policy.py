"""The compute policy of a model: its dtypes, and the implementation of each operation.

`t2t/ops/select_kernels.py` creates the policy from the config and the platform of the mesh. The
modules that depend on it receive it at construction, so no code in this folder asks for the
platform.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

Placement = PartitionSpec | NamedSharding | None


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes and operations of a model, shared by the modules that depend on them.

    An operation is the formula named here, or a faster twin in `t2t/ops`. A twin has the signature
    of its formula and returns the same values up to rounding to `dtype`, of logits as well in
    training. Operations with a `dtype` of their operands have it bound here to `product_dtype`.
    """

    dtype: jnp.dtype  # of activations
    product_dtype: jnp.dtype  # of both operands of products with weights and of the output logits
    attention: Callable[..., Float[Array, "B T H U"]]  # attention.dot_product_attention
    # attention whose mask hides all keys to the right of their query: the same formula
    causal_attention: Callable[..., Float[Array, "B T H U"]]
    multiply: Callable[..., Float[Array, "..."]]  # linear.multiply, without its dtype
    affine: Callable[..., Float[Array, "..."]]  # linear.affine, likewise
    multiply_parts: Callable[..., Sequence[Float[Array, "B T G _"]]]  # likewise
    standardize: Callable[..., Float[Array, "B T D"]]  # layers.standardize
    apply_experts: Callable[..., Float[Array, "B T D"]]  # experts.apply_experts, without its dtype
    relu: Callable[[Float[Array, "..."]], Float[Array, "..."]]  # jax.nn.relu
    rotate: Callable[[Array, Array], Float[Array, "B T H K"]]  # position.rotate
    dropout: Callable[[Array, float, jax.Array | None], Float[Array, "..."]]  # layers.dropout
    add_and_norm: Callable[..., Any]  # stack.add_and_norm
    order_gradients: Callable[[nnx.Module, Any], tuple[Any, Any]]  # stack.keep_order
    # of loss.py:
    smoothed_cross_entropy: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
    r_drop_cross_entropy: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
    sentence_losses: Callable[..., Float[Array, "B"]]

    def describe_products(self) -> str:
        """Returns the operand dtypes of products in words, for the records of runs and scores."""
        bf16, f32 = "bfloat16 operands", "float32 operands at full precision"
        if self.dtype == jnp.bfloat16:
            return bf16
        # Do not reword these texts: a saved evaluation contains one, and is only found again if the
        # text is still the same.
        mixed = self.product_dtype == jnp.bfloat16
        return f"{bf16} with weights, else {f32}" if mixed else f32
