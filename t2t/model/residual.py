"""Section 3.1: the residual connection and the norm around each sub-layer."""

from collections.abc import Callable
from typing import TypeVar

import jax
from flax import nnx
from jaxtyping import Array, Float

from t2t.config.fields import ModelConfig
from t2t.model.compute_policy import Policy
from t2t.model.norm import Identity, Norm, make_norm

Module = TypeVar("Module", bound=nnx.Module)
Apply = Callable[[Module, Float[Array, "B T D"]], Float[Array, "B T D"]]


class Residual(nnx.Module):
    """Applies dropout, residual connection and norm around a sub-layer.

    With model.norm_position=post (the paper) it computes norm(x + dropout(sublayer(x))), with pre
    it computes x + dropout(sublayer(norm(x))). With model.residual=False it leaves out "x +".
    """

    def __init__(self, config: ModelConfig, policy: Policy):
        """Creates the norm; the sub-layer is an argument of `__call__`."""
        self.policy = policy
        self.norm = make_norm(config, policy)
        self.norm_position = config.norm_position
        self.residual = config.residual
        self.dropout_rate = config.dropout

    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Module,
        apply: Apply[Module],
        key: jax.Array | None,
    ) -> Float[Array, "B T D"]:
        """Applies the sub-layer, apply(sublayer, x), with dropout, residual connection and norm.

        The module `sublayer` is an argument of its own, because `order_gradients`, which saves
        memory in the backward pass (see `Policy`), needs its parameters.
        """
        sublayer, x = self.policy.order_gradients(sublayer, x)

        def sublayer_output(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
            y = apply(sublayer, x)
            return self.policy.operations.dropout(y, self.dropout_rate, key)

        match self.norm_position:
            case "post":
                return self.norm(self._add(x, sublayer_output(x)))
            case "pre":
                return self._add(x, sublayer_output(self.norm(x)))
            case other:
                raise ValueError(f"model.norm_position={other!r} is unknown")

    def _add(self, x: Float[Array, "B T D"], y: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return x + y if self.residual else y


def make_final_norm(config: ModelConfig, policy: Policy) -> Norm:
    """Creates the norm after the last layer of a stack, which only pre-norm needs."""
    return make_norm(config, policy) if config.norm_position == "pre" else Identity()
