"""Scores of given translations against those of the search and of the whole model."""

import jax
import numpy as np
import pytest

from t2t.config.fields import MeshConfig
from t2t.data.batch import EOS_ID
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.beam_search import LengthPenalty
from t2t.decoding.sampling import Stream
from t2t.decoding.staged_search import BatchSearch, Sources
from t2t.evaluation.likelihood import PairScorer
from t2t.model.interface import Params
from t2t.ops.build_model import Members, init_model
from t2t.runtime.mesh import make_mesh
from tests.decoding.small_translator import PAIRS, make_config, make_reference

pytestmark = pytest.mark.usefixtures("shared_programs")


def encode(vocabulary: Vocabulary) -> list[tuple[list[int], list[int]]]:
    src, tgt = zip(*PAIRS, ("", "Nichts."), ("Dogs.", ""), strict=True)
    return list(zip(vocabulary.src.encode(src), vocabulary.tgt.encode(tgt), strict=True))


@pytest.mark.parametrize("strategy", ["beam", pytest.param("sampling", marks=pytest.mark.slow)])
def test_scores_are_those_of_the_search(
    vocabulary: Vocabulary, params: Params, strategy: str
) -> None:
    config = make_config(strategy=strategy, alpha=1.0)
    structure, _ = init_model(config.model, 420, 420, jax.random.key(0))
    sources = vocabulary.src.encode([src for src, _ in PAIRS[:2]])
    width, count = max(map(len, sources)), 4 if strategy == "beam" else 1
    ids = np.array([source + [0] * (width - len(source)) for source in sources], np.int32)
    stream = Stream(*np.array([[0, 0], [0, 1], [0, 0], [0, 0]], np.int32))
    found = BatchSearch(structure, config.decoding).search(
        params,
        Sources(ids, np.full(2, 12, np.int32), stream=stream if strategy == "sampling" else None),
        12,
        count,
        (LengthPenalty("none", 0.0),),
    )
    rows = [(row, rank) for row in range(2) for rank in range(count)]
    pairs = [
        (sources[row], found.tokens[row, n, : found.lengths[row, n]].tolist()) for row, n in rows
    ]
    scores = PairScorer(Members((config.model,)), vocabulary, 64).score(params, pairs)
    for (row, rank), score in zip(rows, scores, strict=True):
        np.testing.assert_allclose(score.sum(), found.log_probs[row, rank], atol=1e-4)


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 64])
def test_each_token_has_its_log_softmax(
    vocabulary: Vocabulary, params: Params, batch_size: int
) -> None:
    config = make_config()
    structure, _ = init_model(config.model, 420, 420, jax.random.key(0))
    pairs, reference = encode(vocabulary), make_reference(structure)
    found = PairScorer(Members((config.model,)), vocabulary, batch_size).score(params, pairs)
    for pair, scores in zip(pairs, found, strict=True):
        np.testing.assert_allclose(scores, reference(params, *pair), rtol=1e-4)


@pytest.mark.slow
def test_devices_change_nothing(vocabulary: Vocabulary, params: Params) -> None:
    members, pairs = Members((make_config().model,)), encode(vocabulary)
    expected = PairScorer(members, vocabulary, 64).score(params, pairs)
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        scorer = PairScorer(members, vocabulary, 64)
        found = scorer.score(members.place(params, *vocabulary.sizes), pairs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_pairs_that_are_too_long_have_no_score(vocabulary: Vocabulary, params: Params) -> None:
    scorer = PairScorer(Members((make_config().model,)), vocabulary, 64, limit=5)
    long, short = [7] * 5 + [EOS_ID], [7, EOS_ID]
    found = scorer.score(params, [(short, long), (short, short), (long, short)])
    assert [bool(np.isnan(each).any()) for each in found] == [True, False, True]
    assert [len(each) for each in found] == [6, 2, 2]
