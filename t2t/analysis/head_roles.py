"""What a head does, by simple rules on its weights: a name for people, with a score.

A role is a set of (query, key) places, and a head's score for it is the weight that lies there, in
the mean over the queries that can see such a key and another one. The role of a head is the one
with the highest score, if that is at least half of the weight (compare Voita et al. 2019, who ask
where the largest weight is):

    previous token   the key before the query                              (self-attention)
    same token       the query itself                                      (self-attention)
    next token       the key behind the query                              (the encoder's)
    diagonal         the key as far into the source as the query is into the target, or a
                     neighbour of it                                       (cross-attention)
    separator        begin and end mark, and what has neither letter nor digit
    rare token       the sentence's least frequent token, separators aside

Otherwise it is `broad`, where the entropy is at least 0.9 of the largest possible, or `mixed`, with
the role that comes next in brackets. A short sentence gives high scores by chance: read the map.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

LEAST_SCORE = 0.5  # of a role that a head has
BROAD = 0.9  # entropy over that of equal weights


class AttendedTokens(NamedTuple):
    """What the rules need to know of the tokens that are attended to."""

    separators: Bool[np.ndarray, "S"]
    rare: Bool[np.ndarray, "S"] | None = None  # None: frequencies are not known


class Profile(NamedTuple):
    """Of one head."""

    entropy: float  # nats, the mean over queries that see more than one key
    role: str
    score: float  # of the role, also of one in brackets; `broad`: entropy over its largest
    scores: dict[str, float]  # of all roles, by name


def find_rare(counts: Sequence[int], separators: Bool[np.ndarray, "S"]) -> Bool[np.ndarray, "S"]:
    """The tokens with the least count, of those that are no separators."""
    ranked = np.where(separators, np.inf, np.asarray(counts, float))
    rare: np.ndarray = (ranked == ranked.min()) & ~separators
    return rare


class RoleTally:
    """Sums over the sentences that it is shown, for all heads of a stack."""

    def __init__(self, stack: str):
        """`stack` is encoder, decoder or cross."""
        self._stack = stack
        # Name -> (sum of weights N H, queries); entropies and their shares of the largest likewise.
        self._sums: dict[str, tuple[np.ndarray, int]] = {}

    def add(self, weights: Float[np.ndarray, "N H T S"], keys: AttendedTokens) -> None:
        """Counts one sentence."""
        queries, width = weights.shape[2:]
        visible = np.tri(queries, width, dtype=bool)
        if self._stack != "decoder":
            visible[:] = True
        for name, places in self._find_places(queries, keys).items():
            counting = (places & visible).any(axis=1) & (~places & visible).any(axis=1)
            on_places = (weights * places).sum(axis=-1)
            self._count(name, on_places[..., counting])
        number = visible.sum(axis=1)
        several = number > 1
        logarithms = np.log(np.where(weights > 0, weights, 1))
        entropy = -(weights * logarithms).sum(axis=-1)[..., several]
        self._count("entropy", entropy)
        self._count("broad", entropy / np.log(number[several]))

    def profiles(self) -> list[list[Profile]]:
        """By layer and head."""
        means = {name: sums / queries for name, (sums, queries) in self._sums.items() if queries}
        layers, heads = self._sums["entropy"][0].shape
        return [
            [
                _judge({name: float(mean[layer, head]) for name, mean in means.items()})
                for head in range(heads)
            ]
            for layer in range(layers)
        ]

    def _find_places(
        self, queries: int, keys: AttendedTokens
    ) -> dict[str, Bool[np.ndarray, "T S"]]:
        width = len(keys.separators)
        shape = (queries, width)
        offset = np.arange(width) - np.arange(queries)[:, None]
        places = {"separator": np.broadcast_to(keys.separators, shape)}
        if keys.rare is not None:
            places["rare token"] = np.broadcast_to(keys.rare, shape)
        if self._stack == "cross":
            own = np.arange(queries) * (width - 1) / max(queries - 1, 1)
            return places | {"diagonal": np.abs(np.arange(width) - own[:, None]) <= 1}
        places |= {"previous token": offset == -1, "same token": offset == 0}
        return places if self._stack == "decoder" else places | {"next token": offset == 1}

    def _count(self, name: str, values: Float[np.ndarray, "N H Q"]) -> None:
        sums, queries = self._sums.get(name, (np.zeros(values.shape[:2]), 0))
        self._sums[name] = (sums + values.sum(axis=-1), queries + values.shape[-1])


def _judge(means: dict[str, float]) -> Profile:
    entropy, share = means.pop("entropy", 0.0), means.pop("broad", 0.0)
    if not means:
        return Profile(entropy, "mixed", 0.0, means)
    name = max(means, key=lambda name: means[name])
    if means[name] >= LEAST_SCORE:
        return Profile(entropy, name, means[name], means)
    if share >= BROAD:
        return Profile(entropy, "broad", share, means)
    return Profile(entropy, f"mixed ({name})", means[name], means)
