"""A mixture of experts in place of the feed-forward (Shazeer et al. 2017).

In shapes, E counts the experts, and C the experts that a token chooses.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ModelConfig
from t2t.model.compute_policy import Policy
from t2t.model.linear import draw_glorot, einsum, init_glorot, multiply
from t2t.model.parametrization import find_router_factor, scale
from t2t.runtime.mesh import reshard, spec

# Returned beside the output: the load-balancing loss, and tokens per expert.
Balance = dict[str, Float[Array, "..."]]


class Experts(nnx.Module):
    """y = sum of p_e(x) relu(x W1_e) W2_e over the C experts e with the largest p_e(x).

    The router computes p(x) = softmax(x W_r) in float32. The factors p_e(x) of the chosen experts
    do not add up to 1 (Fedus et al. 2022, equation 2), so that the router has a gradient with
    C = 1, too. Every token has all its experts: none is dropped where an expert is in demand.
    """

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array):
        """Initialises weights as in Glorot and Bengio (2010)."""
        experts, d_model, d_ff = config.num_experts, config.d_model, config.d_ff
        router_key, inner_key, outer_key = jax.random.split(key, 3)
        self.policy = policy
        self.num_choices = config.experts_per_token
        self.load_balance = config.load_balance
        sizes = d_model, experts
        router = draw_glorot(router_key, sizes, *sizes, "d_model", None)
        self.router = nnx.Param(scale(router, find_router_factor(config)), kind="router")
        inner, outer = (experts, d_model, d_ff), (experts, d_ff, d_model)
        self.inner = init_glorot(inner_key, inner, d_model, d_ff, "experts", "d_model", None)
        self.outer = init_glorot(outer_key, outer, d_ff, d_model, "experts", None, "d_model")

    def __call__(
        self,
        x: Float[Array, "B T D"],
        key: jax.Array | None = None,
        is_token: Bool[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Balance]:
        """Returns y, and what `balance` does for the positions that are no padding."""
        del key  # there is no dropout inside
        by_row = spec("batch", None, None)
        logits = einsum("BTD,DE->BTE", x.astype(jnp.float32), self.router[...], out_sharding=by_row)
        probabilities = jax.nn.softmax(logits)
        factors, chosen = jax.lax.top_k(probabilities, self.num_choices)
        y = self.policy.apply_experts(x, factors, chosen, self.inner[...], self.outer[...])
        counted = jnp.ones_like(factors[..., 0]) if is_token is None else is_token
        return y, balance(probabilities, chosen, counted.astype(jnp.float32), self.load_balance)


def apply_experts(
    x: Float[Array, "B T D"],
    factors: Float[Array, "B T C"],
    chosen: Int[Array, "B T C"],
    inner: Float[Array, "E D F"],
    outer: Float[Array, "E F D"],
    *,
    dtype: jnp.dtype,
) -> Float[Array, "B T D"]:
    """Returns the sum over all e of g_e relu(x W1_e) W2_e; products have operands in `dtype`.

    g_e is the token's factor for an expert that it has chosen, and 0 for the others.
    """
    is_chosen = jax.nn.one_hot(chosen, len(inner), dtype=jnp.float32)
    gates = reshard(einsum("BTCE,BTC->BTE", is_chosen, factors), "batch", None, "experts")
    by_expert, by_row = spec("batch", None, "experts", None), spec("batch", None, None)
    activations = jax.nn.relu(multiply("BTD,EDF->BTEF", x, inner, by_expert, dtype=dtype))
    weighted = (activations * gates[..., None]).astype(x.dtype)
    return multiply("BTEF,EFD->BTD", weighted, outer, by_row, dtype=dtype)


def balance(
    probabilities: Float[Array, "B T E"],
    chosen: Int[Array, "B T C"],
    counted: Float[Array, "B T"],
    coefficient: float,
) -> Balance:
    """Returns the loss coefficient * E * sum_e f_e P_e (Fedus et al. 2022, equations 4 to 6).

    f_e is the share of choices that fall on expert e, and P_e its mean probability, over the
    positions where `counted` is 1. Both are 1/E if all experts are used alike; then the loss is
    the coefficient.
    """
    experts = probabilities.shape[-1]
    is_chosen = jax.nn.one_hot(chosen, experts, dtype=jnp.float32).sum(axis=2)
    tokens = (is_chosen * counted[..., None]).sum(axis=(0, 1))
    mass = (probabilities * counted[..., None]).sum(axis=(0, 1))
    shares, means = (x / jnp.maximum(x.sum(), 1) for x in (tokens, mass))  # probabilities add to 1
    loss = coefficient * experts * (shares * means).sum()
    return {"loss": loss, "expert_share": tokens}
