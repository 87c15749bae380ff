"""Small files of pairs, as Hugging Face `datasets` reads them."""

import json
from pathlib import Path
from typing import Any

from t2t.config.fields import DataConfig
from t2t.data import corpus_sources
from t2t.data.corpus import Corpus
from t2t.storage.open_text import pack

PAIRS = [("a dog", "ein Hund"), ('NA "quoted', "null"), ("12", "3.50"), ("ü\u2028x", "€ y")]


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes a file, compressed as its name says."""
    path.write_bytes(pack(content, path.suffix))
    return path


def to_tsv(pairs: list[tuple[str, str]], header: str = "en\tde\n") -> bytes:
    return (header + "".join(f"{src}\t{tgt}\n" for src, tgt in pairs)).encode()


def to_json(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def make_config(folder: Path, *files: Path | str, **fields: Any) -> DataConfig:
    names = tuple(file if isinstance(file, str) else f"train={file}" for file in files)
    cache = str(folder / "cache")
    fields = {"src_language": "en", "tgt_language": "de"} | fields
    return DataConfig("hf", hf_files=names, cache_directory=cache, **fields)


def open_train(folder: Path, *files: Path | str, **fields: Any) -> Corpus:
    return corpus_sources.open_split(make_config(folder, *files, **fields), "train")
