"""Forced prefixes, a minimum length and length penalties against exhaustive search."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.data.batch import EOS_ID, PAD_ID
from t2t.decoding.beam_search import (
    Constraints,
    Hypotheses,
    LengthPenalty,
    continue_search,
    start_search,
)
from t2t.decoding.sampling import Sampler, Stream
from tests.decoding.reference_search import search_all
from tests.decoding.toy_model import BATCH, ToyModel, tokens_of

LIMIT = 4
PREFIXES = [(), (4,), (5,), (4, 5), (3, 3), (5, 4, 3), (), (3,)]  # one for each sentence


@functools.partial(jax.jit, static_argnames=("kind", "beam_size", "sampler"))
def run_search(
    model: ToyModel,
    kind: str,
    alpha: float,
    constraints: Constraints,
    *,
    beam_size: int,
    stream: Stream | None = None,
    sampler: Sampler | None = None,
) -> tuple[Hypotheses, ...]:
    state = start_search(
        model.init_cache(jnp.arange(BATCH), beam_size),
        max_lengths=jnp.full(BATCH, LIMIT), capacity=LIMIT, beam_size=beam_size,
        n_best=beam_size, constraints=constraints, stream=stream,
    )  # fmt: skip
    penalties = (LengthPenalty(kind, alpha),)
    return continue_search(model.decode_step, state, penalties, sampler=sampler).finished


def search(
    model: ToyModel,
    penalty: LengthPenalty,
    min_length: int = 0,
    prefixes: list[tuple[int, ...]] | None = None,
    beam_size: int = 32,  # wide enough for an exhaustive search
    **options: Any,
) -> Hypotheses:
    padded = np.full((BATCH, 4), PAD_ID, np.int32)
    for row, prefix in enumerate(prefixes or []):
        padded[row, : len(prefix)] = prefix
    constraints = Constraints(padded, np.int32(min_length))

    found = run_search(model, *penalty, constraints, beam_size=beam_size, **options)
    [found] = jax.tree.map(np.asarray, found)
    hypotheses: Hypotheses = found
    return hypotheses


@pytest.mark.parametrize("min_length", [0, 1, 3])
@pytest.mark.parametrize("forced", [False, True])
def test_hypotheses_are_those_of_exhaustive_search_that_obey(min_length: int, forced: bool) -> None:
    """Their log-probabilities are the model's own, not those of what is allowed."""
    model, none = ToyModel(seed=0), list[tuple[int, ...]]([()] * BATCH)
    prefixes = PREFIXES if forced else none
    found = search(model, LengthPenalty("gnmt", 0.6), min_length, prefixes)
    for row, prefix in enumerate(prefixes):
        expected = [
            hypothesis
            for hypothesis in search_all(model.next_log_probs(row), LIMIT, 0.6)
            if hypothesis.tokens[: len(prefix)] == prefix
            and len(hypothesis.tokens) > min_length
        ][:32]  # fmt: skip
        count = len(expected)
        assert [tokens_of(found, row, n) for n in range(count)] == [h.tokens for h in expected]
        np.testing.assert_allclose(
            found.log_probs[row, :count], [h.log_prob for h in expected], rtol=1e-5
        )
        assert np.isneginf(found.scores[row, count:]).all()


STREAM = Stream(*jnp.array([[0] * BATCH, range(BATCH), [0] * BATCH, [0] * BATCH], jnp.int32))


@pytest.mark.parametrize(
    ("beam_size", "options"),
    [(1, {}), (2, {}), (4, {}), (1, {"sampler": Sampler(3.0, 0, 1.0), "stream": STREAM})],
    ids=["greedy", "beam of 2", "beam of 4", "samples"],
)
def test_narrow_beams_and_samples_obey(beam_size: int, options: dict[str, Any]) -> None:
    penalty = LengthPenalty("none", 1.0)
    found = search(ToyModel(seed=2), penalty, 2, PREFIXES, beam_size, **options)
    for row, prefix in enumerate(PREFIXES):
        tokens = tokens_of(found, row, 0)
        assert tokens[: len(prefix)] == prefix
        assert tokens.index(EOS_ID) >= 2


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["gnmt", "length", "none"])
def test_best_hypothesis_is_that_of_its_penalty(kind: str, alpha: float) -> None:
    model, penalty = ToyModel(seed=4), LengthPenalty(kind, alpha)
    found = search(model, penalty)
    for row in range(BATCH):
        every = search_all(model.next_log_probs(row), LIMIT, 0.0)
        scores = [divide(h.log_prob, kind, alpha, len(h.tokens)) for h in every]
        best = int(np.argmax(scores))
        assert tokens_of(found, row, 0) == every[best].tokens
        np.testing.assert_allclose(found.scores[row, 0], scores[best], rtol=1e-5)


def divide(log_prob: float, kind: str, alpha: float, length: int) -> float:
    by_kind = {"gnmt": ((5 + length) / 6) ** alpha, "length": length**alpha, "none": 1.0}
    return float(log_prob / by_kind[kind])
