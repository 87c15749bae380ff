"""Sampling: draws the next token instead of taking the best ones.

The functions are pure and run under `jit`. A search that samples has one slot per row, and one row
per sample. The random numbers of a row depend only on its `Stream` and the step, so they are the
same in any batch, on any mesh and on any number of hosts.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt

from t2t.data.batch import BOS_ID, PAD_ID

BANNED_TOKENS = (PAD_ID, BOS_ID)  # never chosen; UNK is allowed, since targets may contain it


class Stream(NamedTuple):
    """The names of a row's random numbers; each is an int array with an element for each row."""

    seed: Any
    sentence: Any  # its number in the whole input
    piece: Any  # of the sentence, if it is cut into several
    sample: Any  # number of the sample of this sentence


class Sampler(NamedTuple):
    """Draws from softmax(logits / temperature), restricted to the most probable tokens."""

    temperature: float
    top_k: int  # 0: all
    top_p: float  # 1: all

    def draw(
        self,
        logits: Float[Array, "B 1 V"],
        offsets: Float[Array, "B 1"],
        stream: Stream,
        step: Int[Array, ""],
    ) -> tuple[Float[Array, "B 1"], Int[Array, "B 1"], Int[Array, "B 1"]]:
        """Draws a token for each row, in the form of `grouped_top_k` with one candidate.

        Returns logits + offsets of the token, its slot (0) and the token. The token is the argmax
        of logits + Gumbel noise, which has the distribution of the softmax.
        """
        kept = self.restrict(logits[:, 0])
        noise = draw_noise(stream, step, kept.shape[-1])
        tokens = jnp.argmax(kept + noise, axis=-1, keepdims=True)
        drawn = jnp.take_along_axis(logits[:, 0], tokens, axis=-1)
        return drawn + offsets, jnp.zeros_like(tokens), tokens

    def restrict(self, logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
        """Divides by the temperature, and sets the logits of tokens that are never drawn to -inf.

        These are PAD and BOS, then all but the `top_k` most probable tokens, then all but the most
        probable of the others that together have probability `top_p`. Equally probable tokens are
        kept or dropped together.
        """
        is_banned = jnp.isin(jnp.arange(logits.shape[-1]), jnp.array(BANNED_TOKENS))
        logits = jnp.where(is_banned, -jnp.inf, logits)
        # The best logit becomes 0 first: others go to -inf as the temperature goes to 0, so its
        # limit is greedy search. A quotient of the logits themselves overflows.
        bounds = jnp.finfo(jnp.float32)
        temperature = min(max(self.temperature, float(bounds.tiny)), float(bounds.max))
        logits = (logits - logits.max(axis=-1, keepdims=True)) / temperature
        if self.top_k:
            ones = (logits > -jnp.inf).astype(jnp.float32)
            logits = keep_largest(logits, ones, float(self.top_k))
        if self.top_p < 1:
            logits = keep_largest(logits, jax.nn.softmax(logits), self.top_p)
        return logits


def keep_largest(
    logits: Float[Array, "B V"], weights: Float[Array, "B V"], target: float
) -> Float[Array, "B V"]:
    """Keeps the fewest of the largest logits whose weights sum to `target`; others become -inf.

    Finds the smallest logit to keep by bisection, one bit at a time, since sorting a vocabulary
    takes longer. All are kept if all weights together are less than `target`.
    """
    sign = jnp.uint32(1 << 31)
    bits = jax.lax.bitcast_convert_type(logits.astype(jnp.float32), jnp.uint32)
    # Integers in the order of the floats: negative floats have the reverse order of their bits.
    rank = jnp.where(bits & sign, ~bits, bits | sign)

    def refine(number: Int[Array, ""], threshold: UInt[Array, "B 1"]) -> UInt[Array, "B 1"]:
        higher = threshold | (sign >> number.astype(jnp.uint32))
        total = jnp.sum(jnp.where(rank >= higher, weights, 0), axis=-1, keepdims=True)
        return jnp.where(total >= target, higher, threshold)

    threshold = jax.lax.fori_loop(0, 32, refine, jnp.zeros_like(rank[:, :1]))
    return jnp.where(rank >= threshold, logits, -jnp.inf)


def draw_noise(stream: Stream, step: Int[Array, ""], size: int) -> Float[Array, "B V"]:
    """Draws Gumbel noise for each row from the key that its stream and the step name."""

    def draw(row: Stream) -> Float[Array, "V"]:
        key = jax.random.key(row.seed)
        for number in (row.sentence, row.piece, row.sample, step):
            key = jax.random.fold_in(key, number)
        return jax.random.gumbel(key, (size,))

    return jax.vmap(draw)(stream)
