from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t2t.interop.foreign_config import ForeignConfig
from t2t.interop.foreign_model import read_model
from t2t.interop.hugging_face_folder import SourceError, open_tensors, read_json, write_safetensors
from t2t.interop.hugging_face_vocabulary import NO_ROW, read_t5
from t2t.interop.t5_family import has_own_output, read_t5_config
from tests.interop.foreign_folders import write_t5_model


def test_one_table_serves_all_if_the_output_is_scaled(tmp_path: Path) -> None:
    write_t5_model(tmp_path)
    values = read_json(tmp_path, "config.json")
    scaled = values | {"scale_decoder_outputs": True}
    for given, own_output, tied in (
        (values, False, "input"),
        (scaled, False, "all"),
        (scaled, True, "input"),
    ):
        read, _ = read_t5_config(ForeignConfig(given), own_output=own_output)
        assert read.tie_embeddings == tied


def test_copy_of_the_table_is_no_output_table(tmp_path: Path) -> None:
    tensors = write_t5_model(tmp_path)
    assert has_own_output(open_tensors(tmp_path))
    tensors["lm_head.weight"] = tensors["shared.weight"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert not has_own_output(open_tensors(tmp_path))
    model = read_model(tmp_path, read_json(tmp_path, "config.json"), open_tensors(tmp_path))
    model.read_params(open_tensors(tmp_path))


@pytest.mark.parametrize("tied", [True, False])
def test_table_has_any_of_its_names(tmp_path: Path, tied: bool) -> None:
    """The output's, too, if config.json says that it is the same table."""
    tensors = write_t5_model(tmp_path, tie_word_embeddings=tied)
    if tied:
        del tensors["lm_head.weight"]
    values = read_json(tmp_path, "config.json")
    table = tensors.pop("shared.weight")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        write_safetensors(tmp_path / "model.safetensors", {name: table} | tensors)
        opened = open_tensors(tmp_path)
        if name == "lm_head.weight" and not tied:
            with pytest.raises(SourceError, match=r"the weights lack shared\.weight"):
                read_model(tmp_path, values, opened).read_params(opened)
            continue
        model = read_model(tmp_path, values, opened)
        found = np.asarray(model.read_params(opened)["tgt_embedding"]["table"])
        wanted = table[model.vocabulary.rows.row] * model.config.d_model**-0.5
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert (model.config.tie_embeddings == "all") == tied


def test_first_configs_of_t5_are_read(tmp_path: Path) -> None:
    write_t5_model(tmp_path, feed_forward_proj="relu", tie_word_embeddings=True)
    values = read_json(tmp_path, "config.json")
    expected, _ = read_t5_config(ForeignConfig(values), own_output=False)
    del values["feed_forward_proj"], values["tie_word_embeddings"], values["num_decoder_layers"]
    values |= {"architectures": ["T5WithLMHeadModel"], "output_past": True, "eos_token_ids": [1]}
    given = ForeignConfig(values | {"num_decoder_layers": 2})
    assert read_t5_config(given, own_output=False)[0] == expected
    assert given.finish() == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("feed_forward_proj", "gated-tanh"),
        ("relative_attention_num_buckets", 64),
        ("dense_act_fn", "gelu"),
        ("num_experts", 8),
    ],
)
def test_config_that_is_not_understood_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    write_t5_model(tmp_path)
    values = read_json(tmp_path, "config.json") | {field: value}
    opened = open_tensors(tmp_path)
    with pytest.raises(SourceError, match=rf"^config\.json: .*{field}={value!r}"):
        read_model(tmp_path, values, opened)


def test_metricx_whose_output_its_authors_would_scale_is_refused(tmp_path: Path) -> None:
    write_t5_model(tmp_path, model_type="mt5", architectures=["MT5ForRegression"])
    values = read_json(tmp_path, "config.json") | {"tie_word_embeddings": True}
    with pytest.raises(SourceError, match=r"tie_word_embeddings=True is not supported; .* False"):
        read_t5_config(ForeignConfig(values), own_output=True)


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
