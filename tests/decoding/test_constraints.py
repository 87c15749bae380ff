"""Forced prefixes, a minimum length and length penalties against exhaustive search."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from t2t.data.batch import EOS_ID, PAD_ID
from t2t.decoding.beam_search import Constraints, Hypotheses
from t2t.decoding.sampling import Sampler, Stream
from tests.decoding.reference_search import search_all
from tests.decoding.toy_model import BATCH, ToyModel, search_toy, tokens_of

LIMIT = 4
ALL = 32  # a beam that is wide enough for an exhaustive search
NONE: list[tuple[int, ...]] = [()] * BATCH
PREFIXES = [(), (4,), (5,), (4, 5), (3, 3), (5, 4, 3), (), (3,)]  # one for each sentence


def search(
    model: ToyModel, min_length: int, prefixes: Sequence[tuple[int, ...]], **options: Any
) -> Hypotheses:
    padded = np.full((BATCH, 4), PAD_ID, np.int32)
    for row, prefix in enumerate(prefixes):
        padded[row, : len(prefix)] = prefix
    constraints = Constraints(padded, np.int32(min_length))
    [found] = search_toy(model, LIMIT, max_length=LIMIT, constraints=constraints, **options)
    return found


@pytest.mark.parametrize("min_length", [0, 1, 3])
@pytest.mark.parametrize("prefixes", [NONE, PREFIXES], ids=["free", "forced"])
def test_hypotheses_are_those_of_exhaustive_search_that_obey(
    min_length: int, prefixes: Sequence[tuple[int, ...]]
) -> None:
    """Their log-probabilities are the model's own, not those of what is allowed."""
    model = ToyModel(seed=0)
    found = search(model, min_length, prefixes, beam_size=ALL)
    for row, prefix in enumerate(prefixes):
        expected = [
            hypothesis
            for hypothesis in search_all(model.next_log_probs(row), LIMIT, 0.6)
            if hypothesis.tokens[: len(prefix)] == prefix
            and len(hypothesis.tokens) > min_length
        ][:ALL]  # fmt: skip
        count = len(expected)
        assert [tokens_of(found, row, n) for n in range(count)] == [h.tokens for h in expected]
        np.testing.assert_allclose(
            found.log_probs[row, :count], [h.log_prob for h in expected], rtol=1e-5
        )
        assert np.isneginf(found.scores[row, count:]).all()


STREAM = Stream(*jnp.array([[0] * BATCH, range(BATCH), [0] * BATCH, [0] * BATCH], jnp.int32))


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 2},
        {"beam_size": 1, "sampler": Sampler(3.0, 0, 1.0), "stream": STREAM},
    ],
    ids=["greedy", "beam", "samples"],
)
def test_narrow_beams_and_samples_obey(options: dict[str, Any]) -> None:
    found = search(ToyModel(seed=2), 2, PREFIXES, kind="none", **options)
    for row, prefix in enumerate(PREFIXES):
        tokens = tokens_of(found, row, 0)
        assert tokens[: len(prefix)] == prefix
        assert tokens.index(EOS_ID) >= 2


@pytest.mark.parametrize(
    ("kind", "alpha"), [("gnmt", 0.0), ("gnmt", 2.0), ("length", 0.6), ("none", 1.0)]
)
def test_best_hypothesis_is_that_of_its_penalty(kind: str, alpha: float) -> None:
    def divide(log_prob: float, length: int) -> float:
        by_kind = {"gnmt": ((5 + length) / 6) ** alpha, "length": length**alpha, "none": 1.0}
        return float(log_prob / by_kind[kind])

    model = ToyModel(seed=4)
    found = search(model, 0, NONE, kind=kind, alphas=[alpha], beam_size=ALL)
    for row in range(BATCH):
        every = search_all(model.next_log_probs(row), LIMIT, 0.0)
        scores = [divide(h.log_prob, len(h.tokens)) for h in every]
        best = int(np.argmax(scores))
        assert tokens_of(found, row, 0) == every[best].tokens
        np.testing.assert_allclose(found.scores[row, 0], scores[best], rtol=1e-5)
