"""The use of the source: what true sources are worth, by a loop over pairs."""

from pathlib import Path

import jax
import numpy as np
import pytest

from t2t.config.fields import Config, DataConfig, MeshConfig, ModelConfig, TokenizerConfig
from t2t.data.batch import Batch, pad_sentences
from t2t.data.corpus import ListCorpus
from t2t.data.loader import make_batch
from t2t.data.token_cache import tokenize_corpus
from t2t.data.tokenizer import train_vocabulary
from t2t.evaluation.validation_scores import CorpusScorer
from t2t.model.interface import Params
from t2t.ops.build_model import describe_model
from t2t.runtime.mesh import make_mesh, put_like
from t2t.training.state import init_state
from t2t.training.step import make_eval_step
from tests.data.small_corpus import PAIRS, read_pair


def test_use_of_the_source_is_what_the_sources_of_other_pairs_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(
        ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2, dtype="float32"),
        DataConfig(batch_tokens=64, rows_multiple=4),
        TokenizerConfig(vocab_size=400),
    )
    corpus = ListCorpus("toy", [*PAIRS[:20], ("", "Nichts.")])
    vocabulary = train_vocabulary([corpus], config.tokenizer, tmp_path / "vocab")
    tokenized, mesh = tokenize_corpus(corpus, vocabulary, tmp_path), make_mesh(MeshConfig())
    structure, state = init_state(config, 400, 400)
    blind = jax.tree.map_with_path(
        lambda path, x: x * ("cross_attention" not in str(path)), state.params
    )
    scorer = CorpusScorer(config, vocabulary, tokenized, mesh)

    def measure(params: Params) -> tuple[float, float]:
        use = scorer.measure_source_use(params, scorer.score_sentences(params), len(corpus))
        assert use
        return use

    with jax.set_mesh(mesh):
        described = describe_model(config.model, 400, 400)[1]
        params = put_like(state.params, described)
        scorer.compile(params)
        with jax.log_compiles(), caplog.at_level("WARNING"):
            nats, margin = measure(params)
        assert not caplog.records, "compile left something to do"
        assert measure(put_like(blind, described)) == (0, 0)

    gains, counts, eval_step = [], [], make_eval_step(structure)
    for step in range(scorer._plan.steps_per_epoch):
        indices = scorer._plan.batch(step).indices.tolist()
        for index, before in zip(indices, [indices[-1], *indices[:-1]], strict=True):
            (src, tgt), (other, _) = read_pair(tokenized, index), read_pair(tokenized, before)
            if src != other:
                rows = [pad_sentences([src, other], 2, 32), pad_sentences([tgt, tgt], 2, 32)]
                batch = Batch(*map(jax.numpy.asarray, make_batch(*rows)))
                (true, false), _ = eval_step(state.params, batch)
                gains.append(float(false) - float(true))
                counts.append(len(tgt))
    assert len(gains) > len(corpus) / 2
    assert nats == pytest.approx(sum(gains) / sum(counts), rel=1e-3)
    errors = np.array(gains) - nats * np.array(counts)
    assert margin == pytest.approx(1.96 * errors.std() * len(gains) ** 0.5 / sum(counts), rel=0.05)
