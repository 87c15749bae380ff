"""Resolves a config's data into tasks, and these into parts: pairs of one source each.

`corpus_sources` opens parts.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from t2t.config.fields import DataConfig
from t2t.data.corpus import Corpus, DataError
from t2t.data.directions import list_tasks
from t2t.storage.paths import make_path


@dataclasses.dataclass(frozen=True)
class Part:
    """Sentence pairs of one source of one task, as the source finds them."""

    config: DataConfig  # of this source and task alone
    weight: float | None = 1.0  # how often an epoch uses each pair; None: not for training
    held_out: bool = True  # whether other splits than train are used; of source="tfds"
    files: Mapping[str, tuple[Path, ...]] = dataclasses.field(default_factory=dict)  # by split
    dataset: str = ""  # its name in TFDS or on the Hub
    field: str = ""  # of the config, which names the dataset of TFDS

    @property
    def cache(self) -> Path:
        """`data.cache_directory`."""
        return make_path(self.config.cache_directory)

    @property
    def facts(self) -> Path:
        """The folder of what is known about files of text (`file_facts`)."""
        return self.cache / "files"

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.config.src_language, self.config.tgt_language


class Source(NamedTuple):
    """How the splits of a part are found and opened."""

    list_splits: Callable[[Part], Iterable[str]]
    open: Callable[[Part, str], Corpus | None]
    prepare: Callable[[Part], object] = lambda part: None  # what must be done before it is opened
    # the files of the training text, which need not exist; none for what is small
    find_text: Callable[[Part], Sequence[Path]] = lambda part: ()
    # bytes of the training text where these files do not exist, as far as they are known
    measure: Callable[[Part], int] = lambda part: 0
    languages: tuple[str, ...] = ()  # between two of which it translates; empty: any


class TaskParts(NamedTuple):
    """One task of a config's data, such as English to German."""

    config: DataConfig  # of the task alone, with its languages in all names
    parts: list[Part]  # those of text file by file

    @property
    def training(self) -> list[Part]:
        """The parts that training reads."""
        return [part for part in self.parts if part.weight is not None]


def resolve(data: DataConfig) -> list[TaskParts]:
    """Resolves a config into its tasks, and these into parts.

    Raises:
        ConfigError: `data.mixture` cannot be read.
        PathError: the path of a file cannot be used.
    """
    return [TaskParts(each, [*_list_parts(each)]) for each in list_tasks(data)]


def _list_parts(data: DataConfig) -> Iterator[Part]:
    weights = itertools.chain(data.train_weights, itertools.repeat(1.0))
    for source in data.source.split("+"):
        own = dataclasses.replace(
            data, source=source, train_weights=(), temperature=0.0, filters=()
        )
        match source:
            case "text":
                train, validation, test = data.train_src, data.validation_src, data.test_src
                if data.is_text_alone:  # its files are both sides
                    train, validation, test = data.train_tgt, data.validation_tgt, data.test_tgt
                for src, tgt in zip(train, data.train_tgt, strict=True):
                    yield Part(own, next(weights), files={"train": _make_paths(src, tgt)})
                pairs = {
                    "validation": (validation, data.validation_tgt),
                    "test": (test, data.test_tgt),
                }
                files = {split: _make_paths(*pair) for split, pair in pairs.items() if pair[0]}
                yield Part(own, None, files=files)
            case "tfds":
                held_out = data.tfds_held_out_name
                name, field = data.tfds_name, "data.tfds_name"
                yield Part(own, next(weights), not held_out, dataset=name, field=field)
                if held_out:
                    yield Part(own, None, dataset=held_out, field="data.tfds_held_out_name")
            case "hf":
                entries = [entry.partition("=") for entry in data.hf_files]
                files = {
                    split: tuple(
                        make_path(path).absolute() for name, _, path in entries if name == split
                    )
                    for split, *_ in entries
                }
                if data.is_text_alone:  # its column is both sides
                    column, language = data.tgt_column, data.tgt_language
                    own = dataclasses.replace(own, src_column=column, src_language=language)
                yield Part(own, next(weights), files=files, dataset=data.hf_name)
            case _:
                yield Part(own, next(weights))


def _make_paths(*texts: str) -> tuple[Path, ...]:
    return tuple(map(make_path, texts))


def check_languages(part: Part, known: tuple[str, ...]) -> None:
    """Raises `DataError` unless a part has two languages of `known`; if that is empty, any."""
    src, tgt = part.languages
    if known and (not {src, tgt} <= set(known) or src == tgt):
        raise DataError(
            f"data.src_language={src!r} and data.tgt_language={tgt!r}: "
            f"data.source={part.config.source!r} translates between two of {', '.join(known)}"
        )
