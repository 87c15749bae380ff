"""Sentences through the whole translator, with small random models."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from t2t.config.fields import MeshConfig
from t2t.data.batch import EOS_ID, group_by_length
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translation import SourcePiece, Translation
from t2t.decoding.translator import Translator
from t2t.model.parameters import Params
from t2t.ops.build_model import Members, init_model
from t2t.runtime.mesh import make_mesh
from tests.decoding.small_translator import SENTENCES, assert_same, make_config, make_params
from tests.interop.foreign_folders import read_t5
from tests.interop.small_vocabularies import list_pieces, train_model

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def translations(vocabulary: Vocabulary, params: Params) -> list[Translation]:
    return Translator(make_config(), vocabulary).translate(params, SENTENCES)


def test_translations_depend_on_neither_batches_nor_order(
    vocabulary: Vocabulary,
    params: Params,
    translations: list[Translation],
    monkeypatch: pytest.MonkeyPatch,
    shared_programs: dict[Any, Any],
) -> None:
    """Also where finished sentences leave a batch."""
    assert len({x.text for x in translations}) == len(SENTENCES)
    found = Translator(make_config(batch_size=3), vocabulary).translate(params, SENTENCES[::-1])
    assert_same(found[::-1], translations)
    shared_programs.clear()
    monkeypatch.setattr("t2t.decoding.staged_search._SHRUNK_ROWS", 3)
    translator = Translator(make_config(), vocabulary)
    assert_same(translator.translate(params, SENTENCES), translations)
    assert "take_rows" in {name for name, *_ in translator._batches.programs.loaded}


@pytest.mark.parametrize("samples", [1, 3])
def test_what_is_compiled_ahead_serves_the_translation(
    vocabulary: Vocabulary,
    params: Params,
    translations: list[Translation],
    shared_programs: dict[Any, Any],
    samples: int,
) -> None:
    """With several samples of each sentence batches have more rows."""
    shared_programs.clear()
    config = make_config(batch_size=8)
    if samples > 1:
        config.decoding.strategy, config.decoding.num_samples = "sampling", samples
    translator = Translator(config, vocabulary)
    translator.compile(params, SENTENCES)
    programs = set(translator._batches.programs.loaded)
    assert programs
    found = translator.translate_n_best(params, SENTENCES, samples)
    if samples == 1:
        assert_same([best for [best] in found], translations)
    assert set(translator._batches.programs.loaded) == programs


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2], ids=["one model", "ensemble"])
def test_devices_change_nothing(vocabulary: Vocabulary, params: Params, count: int) -> None:
    config = make_config()
    other = init_model(config.model, *vocabulary.sizes, jax.random.key(5))[1]
    members = Members((config.model,) * count, (1 / count,) * count)
    joined = members.join([params, other][:count])
    expected = Translator(config, vocabulary, members).translate(joined, SENTENCES)
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        translator = Translator(config, vocabulary, members)
        found = translator.translate(members.place(joined, *vocabulary.sizes), SENTENCES)
    assert_same(found, expected)


def test_control_characters_in_the_output_become_spaces(
    vocabulary: Vocabulary, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary.tgt, "decode", lambda rows: ["a\r\n b\x07\u2028c\t"] * len(rows))
    [found] = Translator(make_config(), vocabulary).translate(params, ["Dogs run."])
    assert found.text == "a  b c"


def make_echo(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets the search return its source in upper case; the list receives what is searched for."""
    searched: list[str] = []

    def search(_: object, pieces: list[SourcePiece], *__: object) -> list[list[Translation]]:
        texts = translator.vocabulary.src.decode([piece.ids for piece in pieces])
        searched.extend(texts)
        filled = [
            [*piece.ids, *[EOS_ID] * (50 * text.startswith("A"))]
            for piece, text in zip(pieces, texts, strict=True)
        ]
        found = [
            translator._make_translation(piece, ids, -1.0, -1.0)
            for piece, ids in zip(pieces, filled, strict=True)
        ]
        return [[dataclasses.replace(each, text=each.text.upper())] for each in found]

    monkeypatch.setattr(translator, "search", search)
    return searched


LINES = ["Dogs run. A girl climbs. Dogs run?", "Dogs run.", ""]


@pytest.mark.parametrize(
    ("choice", "share", "pieces"),
    [("auto", 0.09, 3), ("auto", 0.1, 1), ("auto", None, 1), ("yes", 0.5, 3), ("no", 0.0, 1)],
)
def test_sentences_of_a_line_are_translated_singly_if_training_had_single_ones(
    vocabulary: Vocabulary,
    params: Params,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    share: float | None,
    pieces: int,
) -> None:
    known = dataclasses.replace(vocabulary, several_sentences=share)
    translator = Translator(make_config(split_sentences=choice), known)
    searched = make_echo(translator, monkeypatch)
    found = translator.translate(params, LINES)
    assert [x.num_pieces for x in found] == [pieces, 1, 1]
    assert [x.text for x in found] == [line.upper() for line in LINES]
    assert len(searched) == pieces + 1
    searched.clear()
    translator.translate_n_best(params, LINES[:1], 1, prefixes=["Hunde"])
    assert searched == LINES[:1]  # the prefix may hold several sentences


@pytest.mark.parametrize("task", ["translate king to queen: ", "<2de> "])
def test_each_piece_of_an_imported_models_line_begins_with_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    symbols = {"user_defined_symbols": "<2de>"}
    model = train_model(0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **symbols)
    (tmp_path / "spiece.model").write_bytes(model)
    vocabulary = read_t5(tmp_path, len(list_pieces(model)) + 101).vocabulary
    line = task + "the king. The queen walked in the garden"
    config = make_config(split_sentences="yes", max_source_length=len(task) + 12)
    translator = Translator(config, vocabulary)
    searched = make_echo(translator, monkeypatch)
    translator.translate(make_params(config, vocabulary), [line, task, "the king. The queen"])
    *pieces, alone, first, second = searched
    assert len(pieces) > 2
    assert [text[: len(task)] for text in pieces] == [task] * len(pieces)
    assert " ".join(text[len(task) :] for text in pieces) == line[len(task) :]
    assert (alone, first, second) == (task.strip(), "the king.", "The queen")


def test_a_source_longer_than_those_of_training_is_cut_and_every_loss_is_counted_once(
    vocabulary: Vocabulary,
    params: Params,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = make_config(split_sentences="no")
    [ids] = vocabulary.src.encode([LINES[0]])
    config.data = dataclasses.replace(config.data, max_length=len(ids) - 1)
    translator = Translator(config, vocabulary)
    translator.logs_lengths = False
    make_echo(translator, monkeypatch)
    found = [*translator.translate(params, LINES), *translator.translate(params, LINES)]
    assert [x.num_pieces for x in found] == [2, 1, 1] * 2
    assert [x.is_cut for x in found] == [True, False, False] * 2
    assert found[0].text == LINES[0].upper()
    assert not caplog.records
    for _ in range(2):
        translator.log_lengths()
    assert [record.message.split(" lines ")[0] for record in caplog.records] == ["2 of 6"]
    config.decoding.max_source_length = len(ids)
    translator = Translator(config, vocabulary)
    make_echo(translator, monkeypatch)
    assert [x.num_pieces for x in translator.translate(params, LINES)] == [1, 1, 1]


def test_outputs_at_the_limit_and_without_finite_scores_are_counted(
    vocabulary: Vocabulary,
    params: Params,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    found = Translator(make_config(), vocabulary).translate(broken, ["Dogs run.", ""])
    assert [x.text for x in found] == ["", ""]
    assert "1 of 2 lines have no output" in caplog.text
    translator = Translator(make_config(max_extra_length=50), vocabulary)
    make_echo(translator, monkeypatch)
    found = translator.translate(params, ["A girl climbs.", "Dogs run."])
    assert [x.at_limit for x in found] == [True, False]
    assert "1 of 2 lines have an output that may be incomplete" in caplog.text


def test_long_batches_have_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t2t.data.batch._FULL_BATCH_LENGTH", 16)
    batches = list(group_by_length([3, 9, 40, 16, 50, 20], 1024, 4))
    assert batches == [(64, 2, [4, 2]), (32, 2, [5, 3]), (16, 2, [1, 0])]
    assert list(group_by_length([3, 9, 5], 1024, 64)) == [(16, 4, [1, 2, 0])]
    assert [rows for _, rows, _ in group_by_length([9] * (64 + 19), 1024, 64)] == [64, 20]


def test_n_best_have_different_texts_and_all_divisions_may_be_chosen_from(
    vocabulary: Vocabulary, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beam may hold a text twice, in other sub-words."""
    beam = [Translation(text, -rank, -rank, 3) for rank, text in enumerate("aabac")]
    asked, source = [], "Dogs run."

    def search(_: Any, __: Any, n_best: int, *___: Any) -> list[list[list[Translation]]]:
        asked.append(n_best)
        return [[beam[:n_best]]]

    translator = Translator(make_config(beam_size=5), vocabulary)
    monkeypatch.setattr(translator, "_search_all", search)
    for count, expected in ((2, [0, -2]), (1, [0])):
        [found] = translator.translate_n_best(params, [source], count)
        assert [each.log_prob for each in found] == expected
    chosen = translator.translate_n_best(
        params, [source], 3, choose=lambda text, all_: all_[1 if text == source else 0]
    )
    assert [[each.log_prob for each in found] for found in chosen] == [[-1]]
    assert asked == [5, 1, 3]


def test_one_of_each_sentence_is_chosen_by_its_own_source(
    vocabulary: Vocabulary, params: Params
) -> None:
    """As minimum Bayes risk does; a sentence that is too long is cut further."""
    config = make_config(split_sentences="yes", max_source_length=8)
    sources: list[str] = []

    def choose(source: str, candidates: Sequence[Translation]) -> Translation:
        sources.append(source)
        assert len(candidates) == 3
        return candidates[2]

    line = "A girl climbs. The old man who sells fish sleeps."
    translator = Translator(config, vocabulary)
    [[found]] = translator.translate_n_best(params, [line], 3, choose=choose)
    assert sources[0] == "A girl climbs."
    assert " ".join(sources) == line
    assert found.num_pieces == len(sources) == 3
