"""The directions of a config's data, and the tags that tell them apart in one model.

With several directions in one model, a tag in front of each source sentence, "<2de>", says what to
translate it to (Johnson et al. 2017). It is a control symbol of the vocabulary: one id, which no
text is tokenised to, so a corpus that contains "<2de>" is text like any other. The source tokenizer
of `Vocabulary.with_tag` puts it there, and nothing else does: training, validation, decoding and
scoring tokenise with it.
"""

import dataclasses
from typing import Any

from t2t.config.field_types import WRITTEN
from t2t.config.fields import FIELD_TYPES, ConfigError, DataConfig
from t2t.config.languages import fill_languages

# Fields in which {src}, {tgt} and {pair} stand for a direction's languages: all but folders that
# directions share.
_NAMES = [
    name
    for name in dataclasses.asdict(DataConfig())
    if WRITTEN not in FIELD_TYPES[f"data.{name}"].notes
]


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
    if isinstance(value, str):
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
