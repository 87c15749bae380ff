"""Resolves a config's data into directions, and these into parts: pairs of one source each.

`corpus_sources` opens parts.

With several directions in one model, a tag in front of each source sentence, "<2de>", says what to
translate it to (Johnson et al. 2017). It is a control symbol of the vocabulary: one id, which no
text is tokenised to, so a corpus that contains "<2de>" is text like any other. The source tokenizer
of `Vocabulary.with_tag` puts it there, and nothing else does: training, validation, decoding and
scoring tokenise with it.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from t2t.config.fields import ConfigError, DataConfig
from t2t.config.languages import fill_languages
from t2t.config.objective_rules import is_text_alone
from t2t.data.corpus import DataError
from t2t.storage.paths import make_path

# Fields in which {src}, {tgt} and {pair} stand for a direction's languages.
_NAMES = """
    directory tfds_name tfds_held_out_name hf_name hf_files src_column tgt_column train_src
    train_tgt validation_src validation_tgt test_src test_tgt
""".split()


def list_directions(data: DataConfig) -> list[DataConfig]:
    """The config of each of data.directions; without them the config itself is the only one.

    Languages that it does not name are those of its source (`fill_languages`). With directions they
    are those of the direction, also in names: "train.{src}" becomes "train.en", and {pair} the two
    languages in alphabetical order, "de-en".
    """
    found = []
    count = len(data.train_weights) // max(len(data.directions), 1)  # weights of each direction
    for number, direction in enumerate(data.directions):
        src, _, tgt = direction.partition("-")
        languages = {"{src}": src, "{tgt}": tgt, "{pair}": "-".join(sorted((src, tgt)))}
        own = {name: _replace(getattr(data, name), languages) for name in _NAMES}
        own["train_weights"] = data.train_weights[number * count : (number + 1) * count]
        own |= {"src_language": src, "tgt_language": tgt, "directions": (direction,)}
        found.append(dataclasses.replace(data, **own))
    return found or [fill_languages(data)]


def _replace(value: Any, languages: dict[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_replace(each, languages) for each in value)
    for placeholder, language in languages.items():
        value = value.replace(placeholder, language)
    return value


def choose_direction(data: DataConfig, direction: str = "") -> DataConfig:
    """Returns the config of one direction, which may be left out if there is only one.

    Raises:
        ConfigError: it is not a direction of the run, or is missing.
    """
    found = {f"{each.src_language}-{each.tgt_language}": each for each in list_directions(data)}
    if direction in found:
        return found[direction]
    if direction:
        raise ConfigError(
            f"--direction={direction}: this run translates {', '.join(found)}; name one of them"
        )
    if len(found) > 1:
        raise ConfigError(
            f"this run translates {', '.join(found)}; name one with --direction, such as "
            f"--direction={next(iter(found))}"
        )
    return next(iter(found.values()))


def find_tag(data: DataConfig) -> str:
    """The tag of one direction's sources; empty if the run has no data.directions.

    With data.direction_tags="both" it is followed by that of the targets: "<2en> <2de>".
    """
    if not data.directions:
        return ""
    languages = [data.tgt_language]
    if data.direction_tags == "both":
        languages = [data.src_language, data.tgt_language]
    return " ".join(f"<2{language}>" for language in languages)


def list_tags(data: DataConfig) -> list[str]:
    """The tags of all directions, each once; they are reserved when the vocabulary is trained."""
    found = (tag for each in list_directions(data) for tag in find_tag(each).split())
    return list(dict.fromkeys(found))


@dataclasses.dataclass(frozen=True)
class Part:
    """Sentence pairs of one source in one direction, as the source finds them."""

    config: DataConfig  # of this source and direction alone
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


class Direction(NamedTuple):
    """One direction of a config's data, such as English to German."""

    config: DataConfig  # with its languages in all names
    parts: list[Part]  # those of text file by file

    @property
    def training(self) -> list[Part]:
        """The parts that training reads."""
        return [part for part in self.parts if part.weight is not None]


def resolve(data: DataConfig) -> list[Direction]:
    """Resolves a config into its directions, and these into parts.

    Raises:
        PathError: the path of a file cannot be used.
    """
    return [Direction(each, [*_list_parts(each)]) for each in list_directions(data)]


def _list_parts(data: DataConfig) -> Iterator[Part]:
    weights = itertools.chain(data.train_weights, itertools.repeat(1.0))
    for source in data.source.split("+"):
        own = dataclasses.replace(
            data, source=source, train_weights=(), temperature=0.0, filters=()
        )
        match source:
            case "text":
                train, validation, test = data.train_src, data.validation_src, data.test_src
                if is_text_alone(data):  # its files are both sides
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
                if is_text_alone(data):  # its column is both sides
                    column, language = data.tgt_column, data.tgt_language
                    own = dataclasses.replace(own, src_column=column, src_language=language)
                yield Part(own, next(weights), files=files, dataset=data.hf_name)
            case _:
                yield Part(own, next(weights))


def _make_paths(*texts: str) -> tuple[Path, ...]:
    return tuple(map(make_path, texts))


def check_languages(part: Part, known: tuple[str, ...]) -> None:
    """Raises `DataError` unless a source knows both languages of a part, which differ."""
    src, tgt = part.languages
    if not {src, tgt} <= set(known) or src == tgt:
        raise DataError(
            f"data.src_language={src!r} and data.tgt_language={tgt!r}: "
            f"data.source={part.config.source!r} translates between two of {', '.join(known)}"
        )
