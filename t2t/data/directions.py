"""The tasks of a config's data, of which directions are one kind, and what tells them apart.

With several directions in one model, a tag in front of each source sentence, "<2de>", says what to
translate it to (Johnson et al. 2017). It is a control symbol of the vocabulary: one id, which no
text is tokenised to, so a corpus that contains "<2de>" is text like any other. The source tokenizer
of `Vocabulary.with_tag` puts it there, and nothing else does: training, validation, decoding and
scoring tokenise with it.

A task of `data.mixture` is told apart by `data.prefix`, text or a symbol, which the same tokenizer
puts there. Sources of text alone are made when a batch is read, so the loader puts it there.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t2t.config.field_types import WRITTEN
from t2t.config.fields import FIELD_TYPES, ConfigError, DataConfig
from t2t.config.languages import fill_languages
from t2t.config.mixture import read_mixture
from t2t.data.batch import Route
from t2t.data.corpus import Corpus
from t2t.data.tokenizer import SYMBOL

# Fields in which {src}, {tgt} and {pair} stand for a direction's languages: all but folders that
# directions share.
_NAMES = [
    name
    for name in dataclasses.asdict(DataConfig())
    if WRITTEN not in FIELD_TYPES[f"data.{name}"].notes
]


def list_tasks(data: DataConfig) -> list[DataConfig]:
    """The config of each task: of data.mixture, or each of data.directions, or the only one.

    Raises:
        ConfigError: the mixture cannot be read.
    """
    return [each for task in read_mixture(data) for each in _list_directions(task)]


def _list_directions(data: DataConfig) -> list[DataConfig]:
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
        if len(data.directions) > 1:
            own["stages"] = ()  # which are of the corpora of all directions
        found.append(dataclasses.replace(data, **own))
    return found or [fill_languages(data)]


def _replace(value: Any, languages: dict[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_replace(each, languages) for each in value)
    if isinstance(value, str):
        for placeholder, language in languages.items():
            value = value.replace(placeholder, language)
    return value


def choose_task(data: DataConfig, name: str = "", flag: str = "--task") -> DataConfig:
    """Returns the config of one task: of a mixture, by default its first, or a direction.

    A direction may be left out if there is only one. `flag` is the one that gave the name.

    Raises:
        ConfigError: it is not a task of the run, or is missing.
    """
    tasks = list_tasks(data)
    if data.mixture:
        found = {each.task: each for each in tasks}
    else:
        found = {f"{each.src_language}-{each.tgt_language}": each for each in tasks}
    if name in found:
        return found[name]
    if name:
        if not data.mixture and len(tasks) == 1:
            raise ConfigError(f"{flag}={name}: this run has one task; leave out {flag}")
        does = "learns" if data.mixture else "translates"
        raise ConfigError(f"{flag}={name}: this run {does} {', '.join(found)}; name one of them")
    if len(found) > 1 and not data.mixture:
        raise ConfigError(
            f"this run translates {', '.join(found)}; name one with --task, such as "
            f"--task={next(iter(found))}"
        )
    return next(iter(found.values()))


def describe_objective(task: DataConfig) -> str:
    """Names the objective of a task in a message; of a mixture, with the flag for another one."""
    text = f"data.objective={task.objective!r}"
    return f"{text} of the task {task.task} (--task names another)" if task.mixture else text


def find_route(task: DataConfig) -> Route:
    """Returns the stacks that the examples of a task go through."""
    return Route(task.encoder, task.decoder)


def find_tasks(data: DataConfig, corpora: Sequence[Corpus]) -> list[DataConfig]:
    """Returns the config of the task of each training corpus (`Corpus.task`)."""
    tasks = {each.task: each for each in list_tasks(data)}
    return [tasks[corpus.task] for corpus in corpora]


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
    """The tags of all directions, and the symbols of prefixes, each once.

    They are reserved when the vocabulary is trained.
    """
    found = (
        symbol
        for each in list_tasks(data)
        for symbol in (*find_tag(each).split(), *filter(SYMBOL.fullmatch, each.prefix.split()))
    )
    return list(dict.fromkeys(found))
