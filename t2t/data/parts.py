"""Resolves a config's data into parts: sentence pairs of one source in one direction.

A source sees its part, not the config. `corpus_sources` opens parts.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from t2t.config.fields import DataConfig
from t2t.data.corpus import DataError
from t2t.data.directions import list_directions
from t2t.storage.paths import make_absolute, make_path


@dataclasses.dataclass(frozen=True)
class Part:
    """What a source needs to find its pairs of one direction."""

    source: str
    direction: str  # such as en-de; "" without data.directions
    src_language: str
    tgt_language: str
    cache: Path
    config: DataConfig  # of this source and direction, for a registered source
    weight: float | None = 1.0  # how often an epoch uses each pair; None: not for training
    held_out: bool = True  # whether other splits than train are used; of source="tfds"
    files: Mapping[str, tuple[Path, ...]] = dataclasses.field(default_factory=dict)  # by split
    dataset: str = ""  # its name in TFDS or on the Hub
    field: str = ""  # of the config, which names the dataset of TFDS
    folder: str = ""  # data.directory
    columns: tuple[str, str] = ("", "")
    streaming: bool = True

    @property
    def facts(self) -> Path:
        """The folder of what is known about files of text (`file_facts`)."""
        return self.cache / "files"

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.src_language, self.tgt_language


def list_parts(data: DataConfig) -> list[Part]:
    """The parts of all directions, direction by direction, those of text file by file.

    Raises:
        PathError: the path of a file cannot be used.
    """
    return [part for each in list_directions(data) for part in _list_direction(each)]


def _list_direction(data: DataConfig) -> Iterator[Part]:
    weights = itertools.chain(data.train_weights, itertools.repeat(1.0))
    for source in data.source.split("+"):
        make = functools.partial(
            Part,
            source,
            "".join(data.directions),
            data.src_language,
            data.tgt_language,
            make_path(data.cache_directory),
            dataclasses.replace(data, source=source, train_weights=(), temperature=0.0, filters=()),
            folder=data.directory,
        )
        match source:
            case "text":
                for src, tgt in zip(data.train_src, data.train_tgt, strict=True):
                    yield make(weight=next(weights), files={"train": _make_paths(src, tgt)})
                pairs = {
                    "validation": (data.validation_src, data.validation_tgt),
                    "test": (data.test_src, data.test_tgt),
                }
                files = {split: _make_paths(*pair) for split, pair in pairs.items() if pair[0]}
                yield make(weight=None, files=files)
            case "tfds":
                name, held_out = data.tfds_name, data.tfds_held_out_name
                make = functools.partial(make, dataset=name, field="data.tfds_name")
                yield make(weight=next(weights), held_out=not held_out)
                if held_out:
                    yield make(weight=None, dataset=held_out, field="data.tfds_held_out_name")
            case "hf":
                entries = [entry.partition("=") for entry in data.hf_files]
                files = {
                    split: tuple(
                        make_absolute(make_path(path)) for name, _, path in entries if name == split
                    )
                    for split, *_ in entries
                }
                columns = data.src_column, data.tgt_column
                make = functools.partial(make, columns=columns, streaming=data.hf_streaming)
                yield make(weight=next(weights), files=files, dataset=data.hf_name)
            case _:
                yield make(weight=next(weights))


def _make_paths(*texts: str) -> tuple[Path, ...]:
    return tuple(map(make_path, texts))


def check_languages(part: Part, known: tuple[str, ...]) -> None:
    """Raises `DataError` unless a source knows both languages of a part, which differ."""
    src, tgt = part.languages
    if not {src, tgt} <= set(known) or src == tgt:
        raise DataError(
            f"data.src_language={src!r} and data.tgt_language={tgt!r}: "
            f"data.source={part.source!r} translates between two of {', '.join(known)}"
        )
