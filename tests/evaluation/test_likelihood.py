"""Losses of given texts, of corpora and with sources of other pairs, against the model's own."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    MeshConfig,
    ModelConfig,
    TokenizerConfig,
)
from t2t.data.batch import EOS_ID, PAD_ID, pad_sentences
from t2t.data.corpus import ListCorpus
from t2t.data.loader import Loader, make_batch
from t2t.data.objectives import make_objective
from t2t.data.packing import make_plan
from t2t.data.token_cache import TokenizedCorpus, tokenize_corpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.evaluation.corpus_loss import compute_perplexity, sum_losses
from t2t.evaluation.likelihood import PairScorer
from t2t.evaluation.validation_scores import CorpusScorer
from t2t.model.parameters import Params, merge
from t2t.ops.build_model import Members, abstract_model
from t2t.runtime.mesh import make_mesh, put_like
from t2t.training.optimizer import make_optimizer
from t2t.training.state import init_state
from t2t.training.step import make_eval_step
from tests.data.small_corpus import PAIRS, read_pair
from tests.decoding.small_translator import PAIRS as TRANSLATED
from tests.decoding.small_translator import make_config

pytestmark = pytest.mark.usefixtures("shared_programs")


def encode(vocabulary: Vocabulary) -> list[tuple[list[int], list[int]]]:
    src, tgt = zip(*TRANSLATED, ("", "Nichts."), ("Dogs.", ""), strict=True)
    return list(zip(vocabulary.src.encode(src), vocabulary.tgt.encode(tgt), strict=True))


@pytest.mark.parametrize(
    "mesh", [MeshConfig(), pytest.param(MeshConfig(2, 2, 2), marks=pytest.mark.slow)]
)
def test_each_token_has_its_log_softmax(
    vocabulary: Vocabulary, params: Params, mesh: MeshConfig
) -> None:
    """On one device or several; a pair with a side that is too long has NaN."""
    config = make_config()
    structure, _ = abstract_model(config.model, 420, 420)
    pairs = encode(vocabulary)
    batch = make_batch(*(pad_sentences(side, len(pairs), 32) for side in zip(*pairs, strict=True)))
    logits = jax.jit(lambda *ids: merge(structure, params)(*ids))(batch.src, batch.tgt_in)
    members, limit = Members((config.model,)), max(len(side) for pair in pairs for side in pair)
    long, short = [7] * limit + [EOS_ID], [7, EOS_ID]
    with jax.set_mesh(make_mesh(mesh, jax.devices()[: 8 if mesh.tensor > 1 else 1])):
        scorer = PairScorer(members, vocabulary, 64, limit)
        placed = members.place(params, *vocabulary.sizes)
        *found, one, other = scorer.score(placed, [*pairs, (short, long), (long, short)])
    for (_, tgt), row, scores in zip(pairs, jax.nn.log_softmax(logits), found, strict=True):
        np.testing.assert_allclose(scores, row[np.arange(len(tgt)), np.array(tgt)], rtol=1e-4)
    assert [np.isnan(each).tolist() for each in (one, other)] == [[True] * len(long), [True] * 2]


SMALL = ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2)
TOKENIZER = TokenizerConfig(vocab_size=400)
ODD = [*PAIRS[:20], ("", "Nichts."), ("Nothing.", ""), ("", "")]


def tokenize(
    pairs: Sequence[tuple[str, str]], folder: Path, tokenizer: TokenizerConfig = TOKENIZER
) -> tuple[Vocabulary, TokenizedCorpus]:
    """A corpus of these pairs, with a vocabulary of its own."""
    corpus = ListCorpus("toy", pairs)
    vocabulary = train_vocabulary([corpus], tokenizer, folder / "vocab")
    return vocabulary, tokenize_corpus(corpus, vocabulary, folder)


def test_every_pair_counts_once_even_an_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(
        model=dataclasses.replace(SMALL, dropout=0.5),
        data=DataConfig(max_length=4, max_length_ratio=1.1, batch_tokens=64, rows_multiple=4),
        tokenizer=TOKENIZER,
    )
    vocabulary, tokenized = tokenize(ODD, tmp_path)
    structure, state = init_state(config, make_optimizer(config), 400, 400)
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        params = put_like(state.params, abstract_model(config.model, 400, 400)[1])
        scorer = CorpusScorer(config, vocabulary, tokenized, mesh, count_right=True)
        scorer.compile(params)
        with jax.log_compiles(), caplog.at_level("WARNING"):
            sentences = scorer.score_sentences(params)
    loss = sum_losses(sentences[:, :2])
    assert "eval_step" not in caplog.text, "compile left something to do"

    sides = zip(*(read_pair(tokenized, index) for index in range(len(ODD))), strict=True)
    batch = make_batch(*(pad_sentences(side, len(ODD), 32) for side in sides))
    predict = jax.jit(lambda params, src, tgt: merge(structure, params)(src, tgt).argmax(axis=-1))
    best = predict(state.params, batch.src, batch.tgt_in)
    right = ((best == batch.tgt_out) & (batch.weights > 0)).sum(axis=1)
    wanted = [*make_eval_step(structure)(state.params, jax.tree.map(jnp.asarray, batch)), right]
    np.testing.assert_allclose(sentences, np.stack(wanted, axis=1), rtol=1e-5)
    np.testing.assert_allclose([loss.nats, loss.tokens], np.sum(wanted[:2], axis=1), rtol=1e-5)


@pytest.fixture
def corpus_of_unequal_pairs(tmp_path: Path) -> tuple[Vocabulary, TokenizedCorpus]:
    corpus = ListCorpus("toy", [("Dogs run.", "Hunde laufen."), ("Dogs " * 30, "Hunde " * 30)])
    vocabulary = train_vocabulary([ListCorpus("many", PAIRS)], TOKENIZER, tmp_path / "vocab")
    return vocabulary, tokenize_corpus(corpus, vocabulary, tmp_path)


def make_learned(max_positions: int) -> Config:
    """A config whose batches would be padded beyond its positions."""
    model = dataclasses.replace(SMALL, position="learned", max_positions=max_positions)
    return Config(model=model, data=DataConfig(length_multiple=16, max_length=16))


def test_pairs_beyond_the_learned_positions_are_left_out_and_counted(
    corpus_of_unequal_pairs: tuple[Vocabulary, TokenizedCorpus],
) -> None:
    vocabulary, tokenized = corpus_of_unequal_pairs
    config, mesh = make_learned(20), make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        _, state = init_state(config, make_optimizer(config), 400, 400)
        scorer = CorpusScorer(config, vocabulary, tokenized, mesh)
        sentences = scorer.score_sentences(state.params)
    loss = sum_losses(sentences)
    assert scorer.num_left_out == 1
    assert loss.tokens == len(read_pair(tokenized, 0)[1])
    assert np.isnan(sentences[1, 0])
    shortest = max(map(len, read_pair(tokenized, 0)))
    with pytest.raises(
        ConfigError, match=f"=3, .* train a model with model.max_positions={shortest} or"
    ):
        CorpusScorer(make_learned(3), vocabulary, tokenized, mesh)


def test_loss_is_computed_in_float32_whatever_the_model_computes_in(
    corpus_of_unequal_pairs: tuple[Vocabulary, TokenizedCorpus],
) -> None:
    config, mesh = Config(model=dataclasses.replace(SMALL)), make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        _, state = init_state(config, make_optimizer(config), 400, 400)
        wanted = CorpusScorer(config, *corpus_of_unequal_pairs, mesh).score_sentences(state.params)
        config.model.dtype = "bfloat16"
        found = CorpusScorer(config, *corpus_of_unequal_pairs, mesh).score_sentences(state.params)
    np.testing.assert_array_equal(found, wanted)


def test_perplexity_of_a_diverged_model_is_infinite() -> None:
    assert compute_perplexity(2.0 * 7, 7) == pytest.approx(np.e**2)
    assert compute_perplexity(1e6, 7) == np.inf


def test_text_is_corrupted_alike_whatever_the_seed(tmp_path: Path) -> None:
    """An empty text is kept, and one with more spans than there are sentinels."""
    texts = ["", *(target for _, target in PAIRS[:9]), " ".join(target for _, target in PAIRS[:9])]
    tokenizer = TokenizerConfig(vocab_size=400, sentinels=2)
    data = DataConfig(objective="span_corruption", max_length=32, batch_tokens=512)
    vocabulary, tokenized = tokenize([("", text) for text in texts], tmp_path, tokenizer)
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        configs = (Config(SMALL, data, tokenizer, seed=seed) for seed in (1, 2))
        loaders = [CorpusScorer(each, vocabulary, tokenized, mesh)._loader for each in configs]
    rows = 0
    for step in range(loaders[0].plan.steps_per_epoch):
        one, other = (loader.batch(step) for loader in loaders)
        rows += int((one.tgt_out[:, 0] != PAD_ID).sum())
        for array, another in zip(one, other, strict=True):
            np.testing.assert_array_equal(array, another)
    assert rows == len(texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "kind"),
    [("lm", "decoder_only"), ("masked_lm", "encoder_only"), ("span_corruption", "transformer"),
     ("span_corruption", "decoder_only")],
)  # fmt: skip
def test_packed_texts_have_the_losses_that_they_have_alone(
    tmp_path: Path, objective: str, kind: str
) -> None:
    texts = [("", target) for _, target in PAIRS[:60]]
    tokenizer = TokenizerConfig(vocab_size=400, sentinels=3)
    vocabulary, tokenized = tokenize(texts, tmp_path, tokenizer)
    model = dataclasses.replace(SMALL, kind=kind, dtype="float32")
    data = DataConfig(objective=objective, max_length=32, batch_tokens=1024, num_shapes=1)
    config = Config(model, data, tokenizer)
    structure, state = init_state(config, make_optimizer(config), 400, 400)
    eval_step, sums = make_eval_step(structure), []
    made = make_objective(config.data, vocabulary)
    lengths = made.find_lengths(tokenized.lengths)
    for packed_length in (0, 64):
        packed = dataclasses.replace(data, packed_length=packed_length)
        plan = make_plan([lengths], packed, seed=0)
        batches = Loader(plan, [tokenized], objectives=[made]).iterate(0, plan.steps_per_epoch)
        rows = [eval_step(state.params, jax.tree.map(jnp.asarray, each)) for each in batches]
        sums.append(np.sum([np.sum(row, axis=1) for row in rows], axis=0))
    assert sums[0][1] == sums[1][1] > len(texts)
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-5)


def test_use_of_the_source_is_what_the_sources_of_other_pairs_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(
        dataclasses.replace(SMALL, dtype="float32"),
        DataConfig(batch_tokens=64, rows_multiple=4),
        TOKENIZER,
    )
    vocabulary, tokenized = tokenize([*PAIRS[:20], ("", "Nichts.")], tmp_path)
    mesh = make_mesh(MeshConfig())
    structure, state = init_state(config, make_optimizer(config), 400, 400)
    blind = jax.tree.map_with_path(
        lambda path, x: x * ("cross_attention" not in str(path)), state.params
    )
    scorer = CorpusScorer(config, vocabulary, tokenized, mesh)

    def measure(params: Params) -> tuple[float, float]:
        use = scorer.measure_source_use(params, scorer.score_sentences(params), len(tokenized))
        assert use
        return use

    with jax.set_mesh(mesh):
        described = abstract_model(config.model, 400, 400)[1]
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
                batch = jax.tree.map(jnp.asarray, make_batch(*rows))
                (true, false), _ = eval_step(state.params, batch)
                gains.append(float(false) - float(true))
                counts.append(len(tgt))
    assert len(gains) > len(tokenized) / 2
    assert nats == pytest.approx(sum(gains) / sum(counts), rel=1e-3)
    errors = np.array(gains) - nats * np.array(counts)
    assert margin == pytest.approx(1.96 * errors.std() * len(gains) ** 0.5 / sum(counts), rel=0.05)
