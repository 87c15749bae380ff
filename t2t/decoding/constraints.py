"""Constraints on the tokens of hypotheses: forced prefixes and a minimum length."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t.data.batch import EOS_ID, PAD_ID


class Constraints(NamedTuple):
    """Constraints on the hypotheses of each sentence; P is the longest prefix."""

    prefixes: Any  # int B P: the first tokens of each sentence's hypotheses, then PAD
    min_length: Any  # int: least number of tokens before EOS


def constrain(
    logits: Float[Array, "B W V"], constraints: Constraints, length: Int[Array, ""]
) -> Float[Array, "B W V"]:
    """Sets the logits of tokens that may not follow `length` tokens to -inf."""
    tokens = jnp.arange(logits.shape[-1])
    forced = constraints.prefixes.at[:, length].get(mode="fill", fill_value=PAD_ID)[:, None]
    is_allowed = jnp.where(forced == PAD_ID, True, tokens == forced)
    is_allowed &= (tokens != EOS_ID) | (length >= constraints.min_length)
    return jnp.where(is_allowed[:, None], logits, -jnp.inf)
