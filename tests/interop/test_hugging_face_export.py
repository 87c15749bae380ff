"""Folders that are exported are read again; `test_against_transformers.py` loads them."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.field_types import Role
from t2t.config.fields import (
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    TokenizerConfig,
    fields_with,
)
from t2t.config.rules import list_unused
from t2t.data.batch import BOS_ID, PAD_ID
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.interop import ctranslate2_export
from t2t.interop.foreign_model import ForeignModel, read_model
from t2t.interop.hugging_face_export import plan_export, write_model
from t2t.interop.hugging_face_folder import open_tensors, read_json
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.interop.marian_nllb_mbart import order_as_halves
from t2t.model.parameters import Params
from t2t.model.position import encode_sinusoidal
from tests.interop import foreign_folders
from tests.interop.small_vocabularies import make_odd_lines, make_text

MARIAN = ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=2)
T5 = dataclasses.replace(MARIAN, **foreign_folders.LIKE_T5)


def tag_both(direction: str) -> DataConfig:
    return DataConfig(directions=(direction,), direction_tags="both")


def open_folder(folder: Path) -> ForeignModel:
    return read_model(folder, read_json(folder, "config.json"), open_tensors(folder))


def write(
    config: Config, params: Params, vocabulary: Vocabulary, rows: Rows | None, folder: Path
) -> list[str]:
    folder.mkdir()
    return write_model(plan_export(config, vocabulary, rows), config, params, vocabulary, folder)


def write_added_t5_model(folder: Path) -> None:
    """Without spare rows."""
    size = foreign_folders.add_tokens(folder, foreign_folders.write_t5_vocabulary(folder, spare=0))
    foreign_folders.write_t5_model(folder, vocab_size=size)


def write_added(folder: Path, write: Callable[[Path], int]) -> None:
    """Writes a model with added tokens."""
    foreign_folders.write_nllb_model(
        folder, lambda folder: foreign_folders.add_tokens(folder, write(folder))
    )


SOURCES: dict[str, tuple[Callable[[Path], Any], DataConfig]] = {
    "Marian": (
        functools.partial(foreign_folders.write_model, missing=3, codes=(">>fra<<", ">>deu<<")),
        DataConfig(directions=("en-fra",)),
    ),
    "mBART-50": (foreign_folders.write_mbart_model, tag_both("en_XX-de_DE")),
    "T5 1.1": (foreign_folders.write_t5_model, DataConfig()),
    "umT5": (functools.partial(foreign_folders.write_t5_model, model_type="umt5"), DataConfig()),
    "ByT5": (foreign_folders.write_byt5_model, DataConfig()),
    "MADLAD-400": (foreign_folders.write_madlad_model, DataConfig()),
    "NLLB, added tokens": (
        functools.partial(write_added, write=foreign_folders.write_nllb_vocabulary),
        tag_both("eng_Latn-deu_Latn"),
    ),
    "M2M-100, added tokens": (
        functools.partial(write_added, write=foreign_folders.write_m2m100_vocabulary),
        tag_both("en-de"),
    ),
    "T5 1.1, added tokens in a full table": (write_added_t5_model, DataConfig()),
}


@pytest.mark.parametrize("name", SOURCES)
def test_imported_model_goes_out_as_it_came_in(tmp_path: Path, name: str) -> None:
    write_source, data = SOURCES[name]
    write_source(tmp_path)
    model = open_folder(tmp_path)
    params = model.read_params()
    vocabulary, rows, languages = model.vocabulary
    vocabulary = dataclasses.replace(vocabulary, several_sentences=0.25)
    config = Config(model=model.config, data=data)
    write(config, params, vocabulary, rows, tmp_path / "out")
    again = open_folder(tmp_path / "out")
    assert again.config == model.config
    assert again.vocabulary.languages == languages
    assert again.vocabulary.count_pieces() == model.vocabulary.count_pieces()
    assert again.vocabulary.vocabulary.several_sentences == 0.25
    lines = [*make_odd_lines(50), "the<name>king<term>house <name> x"]
    for side in ("src", "tgt"):
        ids, found = (
            [each.rows.row[row].tolist() for row in getattr(each.vocabulary, side).encode(lines)]
            for each in (model.vocabulary, again.vocabulary)
        )
        assert ids == found
    read, written = open_tensors(tmp_path), open_tensors(tmp_path / "out")
    assert read.shapes == written.shapes
    for each in read.by_name:
        np.testing.assert_allclose(written.read(each), read.read(each), rtol=1e-6, err_msg=each)


def make_vocabulary(folder: Path, **options: Any) -> Vocabulary:
    corpus = ListCorpus("toy", list(zip(make_text(0), make_text(1), strict=True)))
    config = TokenizerConfig(vocab_size=130, byte_fallback=False, **options)
    return train_vocabulary([corpus], config, folder / "vocab", ("<2de>",))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return make_vocabulary(tmp_path_factory.mktemp("data"), kind="unigram", sentinels=2)


@pytest.mark.parametrize(
    ("model", "end"),
    [(MARIAN, [BOS_ID]), (T5, [6, 5, PAD_ID])],  # 5 and 6 are the sentinels
    ids=["Marian", "T5"],
)
def test_ids_that_go_out_have_the_order_of_the_familys(
    vocabulary: Vocabulary, model: ModelConfig, end: list[int]
) -> None:
    planned = plan_export(Config(model=model), vocabulary, None)
    assert np.argsort(planned.rows.row)[-len(end) :].tolist() == end
    assert (model is MARIAN) == any("norm_epsilon" in note for note in planned.notes)


def test_dimensions_go_out_with_the_sines_before_the_cosines() -> None:
    kinds = ("sinusoidal", "sinusoidal_halves")
    papers, halves = (np.asarray(encode_sinusoidal(jnp.arange(9), 16, kind)) for kind in kinds)
    square, order = np.arange(256).reshape(16, 16), [*range(0, 16, 2), *range(1, 16, 2)]
    found = order_as_halves({"norm.weight": papers, "fc1.bias": square, "fc2.weight": square})
    np.testing.assert_allclose(found["norm.weight"], halves)
    np.testing.assert_array_equal(found["fc1.bias"], square)  # of another width
    np.testing.assert_array_equal(found["fc2.weight"], square[order])


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (MARIAN, {"position": "rotary"}, r"model\.position='rotary' .* it supports sinusoidal, "),
        (MARIAN, {"num_kv_heads": 1}, r"model\.num_kv_heads=1 .* it supports 2"),
        (MARIAN, {"position": "sinusoidal_fairseq"}, r"model\.position=.* not imported from NLLB"),
        (T5, {"attention_scale": True}, r"model\.attention_scale=True .* it supports False"),
    ],
)
def test_model_that_no_family_has_is_refused_by_field(
    vocabulary: Vocabulary, base: ModelConfig, changes: dict[str, Any], message: str
) -> None:
    config = Config(model=dataclasses.replace(base, **changes))
    with pytest.raises(ConfigError, match=message):
        plan_export(config, vocabulary, None)


def test_vocabulary_that_a_family_does_not_have_is_refused_by_field(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"data\.directions=\('en-de',\) .* T5 has no tags"):
        plan_export(Config(model=T5, data=DataConfig(directions=("en-de",))), vocabulary, None)
    with pytest.raises(ConfigError, match=r"data\.direction_tags='both' .* Marian has tags of"):
        plan_export(Config(model=MARIAN, data=tag_both("en-de")), vocabulary, None)
    with pytest.raises(ConfigError, match=r"tokenizer\.kind='bpe' .* T5's is 'unigram'"):
        plan_export(Config(model=T5), make_vocabulary(tmp_path, kind="bpe"), None)


def test_field_that_is_not_written_for_ctranslate2_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctranslate2_export, "EXPORTED", [])
    ctranslate2_export.check_support(ModelConfig(dropout=0.3, dtype="float32"))
    with pytest.raises(
        ConfigError, match=r"^model\.d_ff=8 is not supported by CTranslate2; it supports 2048$"
    ):
        ctranslate2_export.check_support(ModelConfig(d_ff=8))


def test_no_field_of_the_model_is_lost_on_the_way_to_ctranslate2() -> None:
    """`test_against_ctranslate2.py` compares outputs."""
    known = [*ctranslate2_export.SUPPORTED, *ctranslate2_export.EXPORTED]
    others = {*fields_with(Role.MODEL)} - {f"model.{name}" for name in known}
    others -= {"model.own_tables", "data.encoder", "data.decoder"}  # a plain model is exported
    assert len({*known}) == len(known)
    assert others <= list_unused(Config()).keys()
