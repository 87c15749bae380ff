"""The roles of attention heads, by rules on their weights, each with a score.

A role is a set of (query, key) positions. A head's score for a role is the attention weight on
these positions, averaged over the queries that can attend to such a key and also to another key.
The role of a head is the one with the highest score, if that score is at least 0.5 (Voita et al.
2019 use instead how often the largest weight is on such a position):

    previous token   the key before the query                              (self-attention)
    same token       the query itself                                      (self-attention)
    next token       the key after the query                               (encoder only)
    diagonal         the key at the query's relative position in the sentence, or one next to it
                                                                           (cross-attention)
    separator        BOS, EOS, tags, and tokens without letters and digits
    rare token       the least frequent token of the sentence that is not a separator

Otherwise the role is `broad` if the entropy is at least 0.9 of its maximum, and else `mixed`, with
the role of the highest score in brackets. In short sentences scores are high by chance, so check
the map.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

MIN_SCORE = 0.5  # a role needs at least this score
MIN_BROAD = 0.9  # `broad` needs at least this fraction of the entropy of equal weights


class AttendedTokens(NamedTuple):
    """The keys of one sentence that are separators, and those that are rare tokens."""

    separators: Bool[np.ndarray, "S"]
    rare: Bool[np.ndarray, "S"] | None = None  # None: frequencies are not known


class Profile(NamedTuple):
    """The entropy, role and scores of one head."""

    entropy: float  # nats, the mean over queries that can attend to more than one key
    role: str
    score: float  # of the role, also if it is in brackets; for `broad`: entropy over its maximum
    scores: dict[str, float]  # of all roles, by name


def find_rare(counts: Sequence[int], separators: Bool[np.ndarray, "S"]) -> Bool[np.ndarray, "S"]:
    """Marks the tokens with the smallest count among those that are not separators."""
    ranked = np.where(separators, np.inf, np.asarray(counts, float))
    rare: np.ndarray = (ranked == ranked.min()) & ~separators
    return rare


class RoleTally:
    """Accumulates the scores of all heads of a stack over sentences."""

    def __init__(self, stack: str):
        """Initialises the sums; `stack` is encoder, decoder or cross."""
        self._stack = stack
        # Role -> (sum of weights N H, number of queries). "entropy" has the sum of entropies,
        # "broad" the sum of entropy / largest possible entropy.
        self._sums: dict[str, tuple[np.ndarray, int]] = {}

    def add(self, weights: Float[np.ndarray, "N H T S"], keys: AttendedTokens) -> None:
        """Adds one sentence."""
        queries, width = weights.shape[2:]
        visible = np.tri(queries, width, dtype=bool)
        if self._stack != "decoder":
            visible[:] = True
        for name, positions in self._find_positions(queries, keys).items():
            counted = (positions & visible).any(axis=1) & (~positions & visible).any(axis=1)
            on_positions = (weights * positions).sum(axis=-1)
            self._accumulate(name, on_positions[..., counted])
        number = visible.sum(axis=1)
        several = number > 1
        logarithms = np.log(np.where(weights > 0, weights, 1))
        entropy = -(weights * logarithms).sum(axis=-1)[..., several]
        self._accumulate("entropy", entropy)
        self._accumulate("broad", entropy / np.log(number[several]))

    def profiles(self) -> list[list[Profile]]:
        """Returns the profiles by layer and head."""
        means = {name: sums / queries for name, (sums, queries) in self._sums.items() if queries}
        layers, heads = self._sums["entropy"][0].shape
        return [
            [
                _make_profile({name: float(mean[layer, head]) for name, mean in means.items()})
                for head in range(heads)
            ]
            for layer in range(layers)
        ]

    def _find_positions(
        self, queries: int, keys: AttendedTokens
    ) -> dict[str, Bool[np.ndarray, "T S"]]:
        width = len(keys.separators)
        shape = (queries, width)
        offset = np.arange(width) - np.arange(queries)[:, None]
        positions = {"separator": np.broadcast_to(keys.separators, shape)}
        if keys.rare is not None:
            positions["rare token"] = np.broadcast_to(keys.rare, shape)
        if self._stack == "cross":
            aligned = np.arange(queries) * (width - 1) / max(queries - 1, 1)
            return positions | {"diagonal": np.abs(np.arange(width) - aligned[:, None]) <= 1}
        positions |= {"previous token": offset == -1, "same token": offset == 0}
        return positions if self._stack == "decoder" else positions | {"next token": offset == 1}

    def _accumulate(self, name: str, values: Float[np.ndarray, "N H Q"]) -> None:
        sums, queries = self._sums.get(name, (np.zeros(values.shape[:2]), 0))
        self._sums[name] = (sums + values.sum(axis=-1), queries + values.shape[-1])


def _make_profile(means: dict[str, float]) -> Profile:
    entropy, relative_entropy = means.pop("entropy", 0.0), means.pop("broad", 0.0)
    if not means:
        return Profile(entropy, "mixed", 0.0, means)
    name = max(means, key=lambda name: means[name])
    if means[name] >= MIN_SCORE:
        return Profile(entropy, name, means[name], means)
    if relative_entropy >= MIN_BROAD:
        return Profile(entropy, "broad", relative_entropy, means)
    return Profile(entropy, f"mixed ({name})", means[name], means)
