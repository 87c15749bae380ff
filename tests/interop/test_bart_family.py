from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.interop import bart_family
from t2t.interop.bart_family import DERIVED, check_derived, list_links, read_marian_config
from t2t.interop.hugging_face_folder import SourceError, open_tensors, write_safetensors
from t2t.interop.hugging_face_vocabulary import read_marian
from t2t.interop.parameter_map import (
    NEVER,
    check_tensors,
    find_shapes,
    read_params,
    write_tensors,
)
from t2t.model.position import encode_sinusoidal
from t2t.ops.build_model import describe_model
from tests.interop.foreign_folders import list_shapes, make_config, write_model

MODEL, _ = read_marian_config(make_config(50))


def test_parameters_go_in_and_out_unchanged(tmp_path: Path) -> None:
    tensors = write_model(tmp_path, missing=3)
    size = tensors["model.shared.weight"].shape[0]
    _, rows, _ = read_marian(tmp_path, size)
    links = list_links(MODEL, rows)
    _, described = describe_model(MODEL, len(rows.row), len(rows.row))
    params = read_params(links, open_tensors(tmp_path), described)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda x: x.shape, described)
    written = write_tensors(links, params)
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)
    assert {*params["output_bias"][~rows.is_output].tolist()} == {NEVER}


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


def test_copies_of_the_table_and_positions_have_to_be_such(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    table = tensors["model.shared.weight"]
    positions = np.asarray(encode_sinusoidal(jnp.arange(64), MODEL.d_model, "sinusoidal_halves"))
    more = tensors | {"lm_head.weight": table, DERIVED[-1]: positions.astype(np.float16)}
    write_safetensors(tmp_path / "model.safetensors", more)
    check_derived(open_tensors(tmp_path), MODEL)
    write_safetensors(tmp_path / "model.safetensors", more | {"lm_head.weight": table + 1})
    with pytest.raises(SourceError, match=r"lm_head\.weight differs from model\.shared\.weight"):
        check_derived(open_tensors(tmp_path), MODEL)
    write_safetensors(tmp_path / "model.safetensors", more | {DERIVED[-1]: positions[::-1]})
    with pytest.raises(SourceError, match="other positions than the sinusoids"):
        check_derived(open_tensors(tmp_path), MODEL)


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
        ("share_encoder_decoder_embeddings", False),
        ("decoder_ffn_dim", 32),
        ("decoder_start_token_id", 0),
        ("normalize_before", True),
        ("d_model", "wide"),
        ("dropout", -1),
        ("sparse_experts", 8),
    ],
)
def test_config_that_is_not_understood_is_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(SourceError, match=rf"^config\.json: .*{field}={value!r}".replace("[", ".")):
        read_marian_config(make_config(50) | {field: value})


def test_config_of_older_versions_is_read() -> None:
    older = {"max_length": 512, "num_hidden_layers": 1, "bad_words_ids": [[49]], "_num_labels": 3}
    values = make_config(50) | bart_family._LEGACY | older
    del values["share_encoder_decoder_embeddings"], values["tie_word_embeddings"]
    assert read_marian_config(values)[0] == MODEL
