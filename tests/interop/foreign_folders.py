"""Folders of small models, as `transformers` saves them, made without it."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2t.data.piece_table import SPECIAL
from t2t.interop import hugging_face_vocabulary
from t2t.interop.foreign_model import read_model
from t2t.interop.hugging_face_folder import Tensor, Tensors, write_json, write_safetensors
from t2t.interop.hugging_face_vocabulary import ImportedVocabulary
from t2t.interop.parameter_map import find_shapes
from t2t.interop.tokenizer_settings import TokenizerSettings
from t2t.ops.build_model import abstract_model
from tests.interop.model_folders import write_random_tensors
from tests.interop.small_vocabularies import find_charsmap, list_pieces, train_model

CODES = ("deu_Latn", "eng_Latn", "fra_Latn")
ADDED = {"<name>": False, "<term>": True, "ouse": False}  # tokens, and whether they are special
LIKE_T5: dict[str, Any] = {  # fields of `ModelConfig`
    "position": "relative",
    "norm": "rms",
    "norm_position": "pre",
    "feed_forward": "geglu",
    "feed_forward_bias": False,
    "attention_scale": False,
}
SIZES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}


def write_vocabulary(
    folder: Path,
    kind: str = "unigram",
    missing: int = 0,
    codes: Sequence[str] = (),
    more: Sequence[str] = (),
) -> int:
    """Writes a vocabulary; `missing` pieces of each model are not in vocab.json, `more` are."""
    models = {"source.spm": train_model(0, kind=kind), "target.spm": train_model(1, kind=kind)}
    names = []
    for name, model in models.items():
        (folder / name).write_bytes(model)
        pieces = list_pieces(model)[3:]
        names += pieces[:-missing] if missing else pieces
    names = ["</s>", "<unk>", *sorted({*names, *more}), *codes, "<pad>"]
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


def write_model(folder: Path, missing: int = 0, codes: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Writes a whole folder; returns the tensors."""
    values = make_config(write_vocabulary(folder, missing=missing, codes=codes))
    write_settings(folder, source_lang="en", target_lang="de")
    return _write(folder, values)


def write_nllb_vocabulary(folder: Path, codes: Sequence[str] = CODES) -> int:
    """Writes tokenizer.json with the merges of a small BPE model; without codes it is a T5's."""
    pieces = list_pieces(train_model(0, kind="bpe"))[3:]
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    known, merges = {*pieces}, []
    for piece in pieces:
        splits = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
        merges += [parts for parts in splits if known.issuperset(parts)]
    special = [*names[:4], *codes, "<mask>"]
    ids = {name: number for number, name in enumerate([*names, *codes, "<mask>"])}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": False,
        "vocab": {name: ids[name] for name in names},
        "merges": merges,
    }
    added = {name: ids[name] for name in special}
    code = [*added][len(SPECIAL)] if codes else ""
    write_tokenizer_json(folder, model, added, [code, "A", "</s>"] if code else ["A", "</s>"])
    if codes:
        write_settings(folder, tokenizer_class="NllbTokenizer")
    return len(ids) + 2


def write_settings(folder: Path, **settings: Any) -> None:
    """Sets fields of tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps(values | settings), "utf-8")


def write_tokenizer_json(
    folder: Path,
    model: dict[str, Any],
    added: Mapping[str, int],
    template: Sequence[str] = ("A", "</s>"),
    **parts: Any,
) -> None:
    """Writes tokenizer.json as transformers 5 does for NLLB.

    The normaliser is that of `train_model`.
    """
    space = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "always",
        "split": True,
    }
    charsmap = find_charsmap(train_model(0, kind="bpe"))
    several = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = {name: row for name, row in added.items() if name in template}
    values = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": row, "content": name, "special": True, **flags} for name, row in added.items()
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap}, several],
        },
        "pre_tokenizer": space,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"Sequence" if name == "A" else "SpecialToken": {"id": name, "type_id": 0}}
                for name in template
            ],
            "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in special.items()},
        },
        "decoder": space,
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(values | parts), "utf-8")


def add_tokens(folder: Path, size: int) -> int:
    """Adds `ADDED` to a tokenizer of `size` pieces; returns the new number."""
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if values:
        known = (token["content"] for token in values["added_tokens"])
        first = len({*values["model"]["vocab"], *known})
    else:
        first = size
    tokens = [
        {"id": row, "content": name, "special": special, "normalized": not special}
        for row, (name, special) in enumerate(ADDED.items(), first)
    ]
    if values:
        values["added_tokens"] += tokens
        path.write_text(json.dumps(values), "utf-8")
    else:
        write_settings(
            folder, added_tokens_decoder={str(token.pop("id")): token for token in tokens}
        )
    return size + len(ADDED)


def write_m2m100_vocabulary(folder: Path) -> int:
    """Writes the two files, from a small BPE model."""
    model = train_model(0, kind="bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    names = ["<s>", "<pad>", "</s>", "<unk>", *list_pieces(model)[3:]]
    text = json.dumps({name: i for i, name in enumerate(names)})
    (folder / "vocab.json").write_text(text, "utf-8")
    return len(names) + 100 + 8


def write_mbart_vocabulary(folder: Path) -> int:
    """Writes the model of mBART-50, whose codes and `<mask>` follow the pieces."""
    model = train_model(0)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    write_settings(folder, tokenizer_class="MBart50Tokenizer")
    return 4 + len(list_pieces(model)[3:]) + 52 + 1


def write_mbart_model(folder: Path) -> dict[str, np.ndarray]:
    """Writes a whole folder; returns the tensors."""
    tensors = _write_bart(folder, write_mbart_vocabulary(folder), "mbart", "MBart", "gelu")
    for stack in ("encoder", "decoder"):  # rows that are not read
        tensors[f"model.{stack}.embed_positions.weight"][:2] = 0
    write_safetensors(folder / "model.safetensors", tensors)
    return tensors


def write_nllb_model(
    folder: Path, write: Callable[[Path], int] = write_nllb_vocabulary
) -> dict[str, np.ndarray]:
    """Writes a whole folder; returns the tensors."""
    return _write_bart(folder, write(folder), "m2m_100", "M2M100", "relu")


def _write_bart(
    folder: Path, size: int, model_type: str, name: str, activation: str
) -> dict[str, np.ndarray]:
    values = make_config(size) | {
        "model_type": model_type,
        "architectures": [f"{name}ForConditionalGeneration"],
        "activation_function": activation,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }
    del values["share_encoder_decoder_embeddings"]
    return _write(folder, values)


def write_t5_vocabulary(folder: Path, spare: int = 7) -> int:
    """Writes a model; returns its size with the sentinels and with rows to spare."""
    model = train_model(0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(model)
    return len(list_pieces(model)) + 100 + spare


def write_t5_model(folder: Path, **changes: Any) -> dict[str, np.ndarray]:
    """Writes a whole folder of T5 1.1, with an output table of its own; returns the tensors.

    With a vocab_size the vocabulary is there already.
    """
    values = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": changes.get("vocab_size") or write_t5_vocabulary(folder),
        "d_model": 16,
        "d_kv": 6,
        "d_ff": 24,
        "num_layers": 1,
        "num_decoder_layers": 2,
        "num_heads": 2,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }
    return _write(folder, values | changes, "shared.weight", "lm_head.weight")


def write_byt5_model(folder: Path) -> dict[str, np.ndarray]:
    """As `write_t5_model`, with the settings of a tokenizer of bytes, which has no other file."""
    names = [f"<extra_id_{n}>" for n in range(5)]
    write_settings(folder, tokenizer_class="ByT5Tokenizer", extra_ids=5)
    special = {"eos_token": "</s>", "unk_token": "<unk>", "additional_special_tokens": names}
    write_json(folder / "special_tokens_map.json", special)
    return write_t5_model(folder, vocab_size=3 + 256 + len(names), tokenizer_class="ByT5Tokenizer")


def write_madlad_vocabulary(folder: Path) -> int:
    """Writes a model with SentencePiece's own special symbols, without sentinels and spare rows."""
    model = train_model(0, user_defined_symbols="<2de>")
    (folder / "spiece.model").write_bytes(model)
    write_settings(folder, tokenizer_class="T5Tokenizer", extra_ids=0)
    return len(list_pieces(model))


def write_madlad_model(folder: Path) -> dict[str, np.ndarray]:
    """As `write_t5_model`, with other special symbols, and no row to spare."""
    special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    return write_t5_model(folder, vocab_size=write_madlad_vocabulary(folder), **special)


def _write(folder: Path, values: dict[str, Any], *names: str) -> dict[str, np.ndarray]:
    write_config(folder, values)
    tensors = {}
    for number, name in enumerate(names):  # each has other values
        tensors[name] = Tensor((1,), np.dtype(np.float32), functools.partial(np.full, 1, number))
    model = read_model(folder, values, Tensors(tensors))
    size = len(model.vocabulary.rows.row)
    shapes = find_shapes(model.links, abstract_model(model.config, size, size)[1])
    return write_random_tensors(folder / "model.safetensors", shapes)


def _read_vocabulary(read: Any, folder: Path, size: int) -> ImportedVocabulary:
    return read(TokenizerSettings(folder, {}), size)


# Readers of vocabularies in a folder without a config.json.
read_marian, read_m2m100, read_mbart, read_t5, read_byt5 = (
    functools.partial(_read_vocabulary, read)
    for read in (
        hugging_face_vocabulary.read_marian,
        hugging_face_vocabulary.read_m2m100,
        hugging_face_vocabulary.read_mbart,
        hugging_face_vocabulary.read_t5,
        hugging_face_vocabulary.read_byt5,
    )
)
