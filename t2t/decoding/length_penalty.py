"""Length penalties, by which log P of a hypothesis is divided to rank hypotheses."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int


class LengthPenalty(NamedTuple):
    """A penalty that does not fall with the length, since alpha is at least 0."""

    kind: str  # gnmt | length | none
    alpha: float

    def __call__(self, length: Int[Array, "..."] | int) -> Float[Array, "..."] | float:
        """Computes lp(Y) from |Y|, which counts EOS."""
        match self.kind:
            case "gnmt":  # Wu et al. 2016, equation 14
                return ((5 + length) / 6) ** self.alpha
            case "length":
                return length**self.alpha
            case "none":
                return 1.0
            case other:
                raise ValueError(f"decoding.length_penalty={other!r} is unknown")
