"""Config and tensors of each family: what is read, what is refused, and by which names."""

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.interop.foreign_model import ForeignModel, read_model
from t2t.interop.hugging_face_folder import SourceError, open_tensors, read_json, write_safetensors
from t2t.interop.hugging_face_vocabulary import NO_ROW
from t2t.interop.marian_nllb_mbart import DERIVED
from t2t.interop.parameter_map import NEVER
from t2t.interop.strict_config import ForeignConfig
from t2t.model.parameters import Params
from t2t.model.position import encode_sinusoidal
from tests.interop.foreign_folders import read_t5, write_config, write_model, write_t5_model


def read(
    folder: Path, tensors: Mapping[str, np.ndarray] | None = None, **changes: Any
) -> tuple[ForeignModel, Params]:
    """Reads a folder, with other tensors and with other fields of config.json."""
    if tensors is not None:
        write_safetensors(folder / "model.safetensors", tensors)
    opened = open_tensors(folder)
    model = read_model(folder, read_json(folder, "config.json") | changes, opened)
    return model, model.read_params()


def test_tensors_of_marian_have_any_of_their_names(tmp_path: Path) -> None:
    """The table, and all tensors of MarianModel, which has no bias of the logits."""
    tensors = write_model(tmp_path)
    del tensors["final_logits_bias"]
    _, wanted = read(tmp_path, tensors)
    assert {*wanted["output_bias"].tolist()} == {0.0, NEVER}
    table = tensors.pop("model.shared.weight")
    named = [tensors | {name: table} for name in DERIVED[:3]]
    named.append({each.removeprefix("model."): x for each, x in tensors.items()})
    named[-1]["shared.weight"] = table
    for each in named:
        _, found = read(tmp_path, each)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_copies_of_the_table_have_to_be_such(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    table = tensors["model.shared.weight"]
    read(tmp_path, tensors | {"lm_head.weight": table})
    with pytest.raises(SourceError, match=r"lm_head\.weight differs from model\.shared\.weight"):
        read(tmp_path, tensors | {"lm_head.weight": table + 1})


def test_positions_of_the_file_that_are_no_sinusoids_are_learned_ones(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    sinusoids = np.asarray(encode_sinusoidal(jnp.arange(64), 16, "sinusoidal_halves"))
    for positions, kind in ((sinusoids, "sinusoidal_halves"), (sinusoids[::-1], "learned")):
        names = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
        model, params = read(tmp_path, tensors | dict.fromkeys(names, positions.astype(np.float16)))
        assert model.config.position == kind
        if kind == "learned":
            table = params["tgt_position"]["table"] * 16**0.5
            np.testing.assert_allclose(table, positions, atol=1e-3)


def test_tensors_that_are_missing_unknown_or_misshapen_are_named(tmp_path: Path) -> None:
    tensors, name = write_model(tmp_path), "model.decoder.layers.1.fc1.weight"
    more = np.ones(2, np.float32)
    for changed, message in (
        ({n: t for n, t in tensors.items() if n != name}, r"lack .*\.layers\.1\.fc1\.weight;"),
        (tensors | {"model.extra": more}, r"have model\.extra, which such a model does not have"),
        (tensors | {name: more}, r"fc1\.weight has the shape \(2,\), but .* \(24, 16\)"),
    ):
        with pytest.raises(SourceError, match=message):
            read(tmp_path, changed)


@pytest.mark.parametrize(
    ("write", "field", "value"),
    [
        (write_model, "architectures", ["MarianForCausalLM"]),
        (write_model, "model_type", ["marian"]),
        (write_model, "encoder_layers", 10**9),  # whose names would fill the memory
        (write_t5_model, "vocab_size", 10**9),
        (write_model, "activation_function", "tanh"),
        (write_model, "share_encoder_decoder_embeddings", False),
        (write_model, "decoder_ffn_dim", 32),
        (write_model, "d_model", "wide"),
        (write_model, "quantization_config", {"quant_method": "bitsandbytes"}),
        (write_model, "auto_map", {"AutoModelForSeq2SeqLM": "modeling_own.Own"}),
        (write_t5_model, "dense_act_fn", "gelu"),
        (write_t5_model, "tie_word_embeddings", "false"),
        (write_t5_model, "scale_decoder_outputs", 0),
        (write_t5_model, "eos_token_id", 2),
        (write_model, "decoder_start_token_id", True),
    ],
)
def test_config_that_is_not_understood_is_refused_by_field(
    tmp_path: Path, write: Callable[[Path], Any], field: str, value: Any
) -> None:
    write(tmp_path)
    with pytest.raises(SourceError, match=r"^config\.json: .*" + re.escape(f"{field}={value!r}")):
        read(tmp_path, **{field: value})


def test_metricx_whose_output_its_authors_would_scale_is_refused(tmp_path: Path) -> None:
    write_t5_model(tmp_path, model_type="mt5", architectures=["MT5ForRegression"])
    with pytest.raises(SourceError, match=r"tie_word_embeddings=True is not supported; .* False"):
        read(tmp_path, tie_word_embeddings=True)


@pytest.mark.parametrize(
    ("write", "gone", "older"),
    [
        (
            write_model,
            ("share_encoder_decoder_embeddings", "tie_word_embeddings"),
            {"num_hidden_layers": 1, "static_position_embeddings": True, "normalize_before": False},
        ),
        (
            functools.partial(write_t5_model, feed_forward_proj="relu", tie_word_embeddings=True),
            ("feed_forward_proj", "tie_word_embeddings"),
            {"architectures": ["T5WithLMHeadModel"], "output_past": True, "eos_token_ids": [1]},
        ),
    ],
    ids=["Marian", "T5"],
)
def test_config_of_older_and_later_versions_is_read(
    tmp_path: Path, write: Callable[[Path], Any], gone: tuple[str, ...], older: dict[str, Any]
) -> None:
    write(tmp_path)
    expected, _ = read(tmp_path)
    later = {"tensor_format": "dense", "hidden_things": None}
    values = {**read_json(tmp_path, "config.json"), **older, **later}
    write_config(tmp_path, {name: value for name, value in values.items() if name not in gone})
    found, _ = read(tmp_path)
    assert (found.config, found.unknown) == (expected.config, later)


def test_ignored_field_that_is_not_there_is_named() -> None:
    with pytest.raises(SourceError, match=r"--ignore_fields=attention_windows: .* no such field"):
        ForeignConfig({"attention_window": 64}, ["attention_windows"])


def test_one_table_of_t5_serves_all_if_the_output_is_scaled(tmp_path: Path) -> None:
    """Unless the output has a table of its own, which a copy is not."""
    tensors = write_t5_model(tmp_path)
    table, output = tensors["shared.weight"], tensors.pop("lm_head.weight")
    for own, scaled, tied in (
        ({}, False, "input"),
        ({}, True, "all"),
        ({"lm_head.weight": output}, True, "input"),
        ({"lm_head.weight": table}, True, "all"),
    ):
        model, _ = read(tmp_path, tensors | own, scale_decoder_outputs=scaled)
        assert model.config.tie_embeddings == tied
        assert ["no lm_head.weight" in warning for warning in model.warnings] == [True] * (not own)


def test_table_of_t5_has_any_of_its_names(tmp_path: Path) -> None:
    """The output's too, if config.json says that it is the same table."""
    tensors = write_t5_model(tmp_path)
    del tensors["lm_head.weight"]
    table = tensors.pop("shared.weight")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        model, params = read(tmp_path, tensors | {name: table}, tie_word_embeddings=True)
        wanted = table[model.vocabulary.rows.row] * model.config.d_model**-0.5
        np.testing.assert_allclose(params["tgt_embedding"]["table"], wanted, rtol=1e-6)
    with pytest.raises(SourceError, match=r"the weights lack shared\.weight"):
        read(tmp_path, tensors | {"lm_head.weight": table}, tie_word_embeddings=False)


def test_sentinels_are_control_symbols_in_the_order_of_t5(tmp_path: Path) -> None:
    write_t5_model(tmp_path)
    size = read_json(tmp_path, "config.json")["vocab_size"]
    vocabulary, rows, _ = read_t5(tmp_path, size)
    for number, row in ((0, size - 8), (99, size - 107)):
        [token] = np.flatnonzero(rows.row == row).tolist()
        assert vocabulary.src.pieces([token]) == [f"<extra_id_{number}>"]
        assert vocabulary.src.is_control(token)
    assert sorted(rows.row) == [*range(size)]
    full = read_t5(tmp_path, size - 7).rows  # a table of resize_token_embeddings(len(tokenizer))
    assert (full.row[0], full.is_output.sum()) == (NO_ROW, size - 7)
    with pytest.raises(SourceError, match=r"spiece\.model has ids up to \d+, but .* vocab_size="):
        read_t5(tmp_path, size - 8)
