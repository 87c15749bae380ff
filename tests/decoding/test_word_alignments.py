"""Word alignments from cross-attention."""

from pathlib import Path

import numpy as np
import pytest

import t2t
from t2t.analysis.head_importance import compute_pair_weights
from t2t.api.line_translator import LineTranslator, translate_lines
from t2t.api.run import Run
from t2t.config.fields import ConfigError, TokenizerConfig
from t2t.config.files import override
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import train_vocabulary
from t2t.decoding.translator import Translator
from t2t.decoding.word_alignments import WordAligner, number_words
from t2t.evaluation.requests import ModelRequest
from tests.tiny_run import PAIRS, make_run

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With a decoder of three layers."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return t2t.load(make_run(folder, model={"num_layers": 3}))


def test_sub_words_are_numbered_as_words_are_split(tmp_path: Path) -> None:
    """The tag of a direction is no word."""
    config = TokenizerConfig(vocab_size=400)
    vocabulary = train_vocabulary([ListCorpus("toy", PAIRS)], config, tmp_path, ["<2de>"])
    tokenizer = vocabulary.with_tag("<2de>").src
    for text in ("Two dogs run.", "  a\u00a0b  c ", "🙂 日本語 ﷽ x", "Der alte Mann,  der"):
        [[*ids, _]] = tokenizer.encode([text])
        tag, *numbers = number_words(tokenizer, ids)
        words = [word for word in text.split(" ") if word]
        assert (tag, max(numbers, default=-1) + 1) == (-1, len(words))
        for number, word in enumerate(words):
            own = [i for i, found in zip(ids[1:], numbers, strict=True) if found == number]
            assert tokenizer.decode([own])[0].strip() == word
    assert number_words(tokenizer, []) == []


@pytest.mark.parametrize(("layer", "chosen"), [(3, 3), (0, 2)], ids=["last", "by default"])
def test_links_are_those_of_the_naive_sum_of_a_layers_weights(
    run: Run, layer: int, chosen: int
) -> None:
    pairs = [pair for pair in PAIRS if pair[0]]
    translator = Translator(run.config, run.vocabulary)
    found = WordAligner(run.config, run.vocabulary, layer).align(run.params, pairs)
    for (src, tgt), weights, links in zip(
        pairs, compute_pair_weights(translator, run.params, pairs), found, strict=True
    ):
        rows = weights.cross[chosen - 1].mean(axis=0)
        sides = [run.vocabulary.src.encode([src])[0], run.vocabulary.tgt.encode([tgt])[0]]
        src_words, tgt_words = (number_words(run.vocabulary.src, ids[:-1]) for ids in sides)
        sums = np.zeros((len(tgt.split()), len(src.split())))
        for t, target in enumerate(tgt_words):
            for s, source in enumerate(src_words):
                sums[target, source] += rows[t, s]
        assert links == {(int(np.argmax(row)), target) for target, row in enumerate(sums)}


def test_pairs_without_words_or_too_long_have_no_links(run: Run) -> None:
    pairs = [("", "Nichts."), ("Dogs.", ""), ("Dogs " * 1100, "Hunde"), ("Dogs", "Hunde da")]
    found = WordAligner(run.config, run.vocabulary).align(run.params, pairs)
    assert found == [set(), set(), set(), {(0, 0), (0, 1)}]


def test_models_and_layers_without_heads_are_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="--alignment_layer=4 does not exist; use 1 to 3"):
        WordAligner(run.config, run.vocabulary, 4)
    changes = {"model.kind": "rnn", "model.d_ff": 2048, "model.num_heads": 8}
    with pytest.raises(ConfigError, match=r"need the cross-attention .* but model\.kind='rnn'"):
        WordAligner(override(run.config, changes), run.vocabulary)


def test_translations_have_links_for_all_words(run: Run) -> None:
    request = ModelRequest((run.workdir,))
    lines = [f"{src}\n".encode() for src, _ in PAIRS]
    plain, found = (
        [*translate_lines(LineTranslator(request, n_best=2, alignment_layer=layer), iter(lines))]
        for layer in (None, 0)
    )
    for one, other, (src, _) in zip(plain, found, PAIRS, strict=True):
        assert [x.text for x in one] == [x.text for x in other]
        for translation in other:
            assert translation.alignment is not None
            links = [tuple(map(int, x.split("-"))) for x in translation.alignment.split()]
            count = len(translation.text.split()) if src else 0
            assert sorted(t for _, t in links) == [*range(count)]
            assert all(s < len(src.split()) for s, _ in links)
