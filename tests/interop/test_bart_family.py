import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import ModelConfig
from t2t.interop.bart_family import DERIVED, check_derived, list_links, read_marian_config
from t2t.interop.foreign_config import ForeignConfig
from t2t.interop.foreign_model import read_model
from t2t.interop.hugging_face_folder import SourceError, open_tensors, read_json, write_safetensors
from t2t.interop.hugging_face_vocabulary import read_marian
from t2t.interop.parameter_map import (
    NEVER,
    check_tensors,
    find_shapes,
    read_params,
)
from t2t.model.position import encode_sinusoidal
from t2t.ops.build_model import describe_model
from tests.interop.foreign_folders import list_shapes, make_config, write_model


def read(values: dict[str, Any]) -> tuple[ModelConfig, dict[str, Any]]:
    """The config, and the fields that are not known."""
    given = ForeignConfig(values)
    model, _ = read_marian_config(given)
    return model, given.finish()


MODEL, _ = read(make_config(50))


def test_bias_of_the_logits_is_zero_if_it_was_not_saved(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    del tensors["final_logits_bias"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    size = tensors["model.shared.weight"].shape[0]
    _, rows, _ = read_marian(tmp_path, size)
    links = list_links(MODEL, rows)
    _, described = describe_model(MODEL, len(rows.row), len(rows.row))
    check_tensors(links, open_tensors(tmp_path).shapes, find_shapes(links, described), DERIVED)
    params = read_params(links, open_tensors(tmp_path), described)
    assert {*params["output_bias"].tolist()} == {0.0, NEVER}


def test_copies_of_the_table_have_to_be_such(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    table = tensors["model.shared.weight"]
    write_safetensors(tmp_path / "model.safetensors", tensors | {"lm_head.weight": table})
    check_derived(open_tensors(tmp_path))
    write_safetensors(tmp_path / "model.safetensors", tensors | {"lm_head.weight": table + 1})
    with pytest.raises(SourceError, match=r"lm_head\.weight differs from model\.shared\.weight"):
        check_derived(open_tensors(tmp_path))


def test_positions_of_the_file_that_are_no_sinusoids_are_learned_ones(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    sinusoids = np.asarray(encode_sinusoidal(jnp.arange(64), MODEL.d_model, "sinusoidal_halves"))
    for positions, kind in ((sinusoids, MODEL.position), (sinusoids[::-1], "learned")):
        names = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
        more = tensors | dict.fromkeys(names, positions.astype(np.float16))
        write_safetensors(tmp_path / "model.safetensors", more)
        opened = open_tensors(tmp_path)
        model = read_model(tmp_path, read_json(tmp_path, "config.json"), opened)
        assert model.config.position == kind
        params = model.read_params(opened)
        if kind == "learned":
            table = params["tgt_position"]["table"] * MODEL.d_model**0.5
            np.testing.assert_allclose(table, positions, atol=1e-3)


@pytest.mark.parametrize("name", [*DERIVED[:3], "without a model."])
def test_table_has_any_of_its_names(tmp_path: Path, name: str) -> None:
    tensors = write_model(tmp_path)
    values = read_json(tmp_path, "config.json")
    expected = read_model(tmp_path, values, open_tensors(tmp_path))
    wanted = expected.read_params(open_tensors(tmp_path))
    if name in DERIVED:
        tensors[name] = tensors.pop("model.shared.weight")
    else:  # as MarianModel saves it
        tensors = {each.removeprefix("model."): tensor for each, tensor in tensors.items()}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    found = read_model(tmp_path, values, open_tensors(tmp_path)).read_params(open_tensors(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_tensors_that_are_missing_unknown_or_misshapen_are_named(tmp_path: Path) -> None:
    write_model(tmp_path)
    shapes = open_tensors(tmp_path).shapes
    _, rows, _ = read_marian(tmp_path, shapes["model.shared.weight"][0])
    links, expected = list_links(MODEL, rows), list_shapes(MODEL, rows)
    check_tensors(links, shapes, expected, DERIVED)
    name = "model.decoder.layers.1.fc1.weight"
    with pytest.raises(SourceError, match=r"lack model\.decoder\.layers\.1\.fc1\.weight;"):
        check_tensors(links, {n: s for n, s in shapes.items() if n != name}, expected, DERIVED)
    with pytest.raises(SourceError, match=r"have model\.extra, which such a model does not have"):
        check_tensors(links, shapes | {"model.extra": (1,)}, expected, DERIVED)
    with pytest.raises(SourceError, match=r"fc1\.weight has the shape \(2,\), but .* \(24, 16\)"):
        check_tensors(links, shapes | {name: (2,)}, expected, DERIVED)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["MarianForCausalLM"]),
        ("activation_function", "tanh"),
        ("activation_function", ["relu"]),
        ("share_encoder_decoder_embeddings", False),
        ("decoder_ffn_dim", 32),
        ("d_model", "wide"),
        ("dropout", -1),
        ("sparse_experts", 8),
        ("quantization_config", {"quant_method": "bitsandbytes"}),
        ("auto_map", {"AutoModelForSeq2SeqLM": "modeling_own.Own"}),
    ],
)
def test_config_that_is_not_understood_is_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(SourceError, match=r"^config\.json: .*" + re.escape(f"{field}={value!r}")):
        read(make_config(50) | {field: value})


def test_config_of_older_versions_is_read() -> None:
    older: dict[str, Any] = {"max_length": 512, "num_hidden_layers": 1, "bad_words_ids": [[49]]}
    older |= {"normalize_before": False, "normalize_embedding": False, "pruned_heads": {}}
    older |= {"static_position_embeddings": True, "add_bias_logits": False}
    values = make_config(50) | older
    del values["share_encoder_decoder_embeddings"], values["tie_word_embeddings"]
    assert read(values) == (MODEL, {})


def test_field_that_no_list_has_is_returned_with_its_value() -> None:
    later = {"tensor_format": "dense", "use_new_thing": False, "hidden_things": None}
    assert read(make_config(50) | later) == (MODEL, later)


def test_ignored_field_that_is_not_there_is_named() -> None:
    with pytest.raises(SourceError, match=r"--ignore_fields=attention_windows: .* no such field"):
        ForeignConfig(make_config(50), ["attention_windows"])
