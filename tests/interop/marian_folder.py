"""Folders of small Marian models, as `transformers` saves them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from t2t.config.fields import ModelConfig
from t2t.interop.bart_family import list_links, read_marian_config
from t2t.interop.hugging_face_vocabulary import Rows, read_marian
from t2t.interop.parameter_map import find_shapes
from t2t.ops.build_model import describe_model
from tests.interop.model_folders import write_random_tensors
from tests.interop.small_vocabularies import list_pieces, train_model

SIZES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}


def write_vocabulary(folder: Path, kind: str = "unigram", missing: int = 0) -> int:
    """Writes a vocabulary; `missing` pieces of each model are not in vocab.json."""
    models = {"source.spm": train_model(0, kind=kind), "target.spm": train_model(1, kind=kind)}
    names = []
    for name, model in models.items():
        (folder / name).write_bytes(model)
        pieces = list_pieces(model)[3:]
        names += pieces[:-missing] if missing else pieces
    names = ["</s>", "<unk>", *sorted(set(names)), "<pad>"]
    text = json.dumps({name: i for i, name in enumerate(names)})
    (folder / "vocab.json").write_text(text, "utf-8")
    return len(names)


def make_config(vocab_size: int) -> dict[str, Any]:
    return SIZES | {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": vocab_size,
        "activation_function": "swish",
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "pad_token_id": vocab_size - 1,
        "decoder_start_token_id": vocab_size - 1,
        "eos_token_id": 0,
        "dropout": 0.1,
        "max_position_embeddings": 64,
        "num_beams": 6,
        "transformers_version": "5.24.0",
    }


def write_config(folder: Path, values: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values), "utf-8")


def write_model(folder: Path, missing: int = 0) -> dict[str, np.ndarray]:
    """Writes a whole folder; returns the tensors."""
    values = make_config(write_vocabulary(folder, missing=missing))
    write_config(folder, values)
    write_config_of_tokenizer = {"source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(write_config_of_tokenizer), "utf-8")
    model, vocab_size = read_marian_config(values)
    _, rows, _ = read_marian(folder, vocab_size)
    return write_random_tensors(folder / "model.safetensors", list_shapes(model, rows))


def list_shapes(model: ModelConfig, rows: Rows) -> dict[str, tuple[int, ...]]:
    size = len(rows.row)
    return find_shapes(list_links(model, rows), describe_model(model, size, size)[1])
