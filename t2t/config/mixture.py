"""Reads `data.mixture`: the tasks that one run learns, each as a `DataConfig` of its own.

    "translate: prefix='translate English to German:'"
    "fill: objective=span_corruption source=text train_tgt=news.en,more.en train_weights=1,2"

A task takes all fields of `config.data`, except those that its entry sets. An inherited field that
is refused beside them, such as `data.max_length_ratio` beside text alone, has its default.
"""

import dataclasses
import re
import shlex
import typing
from typing import Any, NamedTuple

from t2t.config.field_types import OF_RUN, OF_TASK, WRITTEN, Role
from t2t.config.fields import (
    FIELD_TYPES,
    ConfigError,
    DataConfig,
    describe_unknown_field,
    holds,
    show,
)

# Fields that a task may set: all that say which text it reads, and what is made of it.
SET_BY_TASKS = [
    name.removeprefix("data.")
    for name, kind in FIELD_TYPES.items()
    if name.startswith("data.")
    and (kind.role is not Role.BATCHES or OF_TASK in kind.notes)
    and not {OF_RUN, WRITTEN} & {*kind.notes}
]


class Entry(NamedTuple):
    """One entry of `data.mixture`."""

    name: str
    values: dict[str, Any]  # of the fields that it sets


def read_mixture(data: DataConfig) -> list[DataConfig]:
    """Returns the config of each task, with the weights of its corpora; without a mixture, `data`.

    Tasks have no stages; those belong to the run. In a task's config, `mixture` holds its name
    alone, and `has_tasks` is False.

    Raises:
        ConfigError: an entry cannot be read, or there is not one weight for each task.
    """
    if not has_tasks(data):
        return [data]
    entries = [read_entry(text) for text in data.mixture]
    names = [entry.name for entry in entries]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"data.mixture names the task {twice[0]!r} twice; name each once")
    if data.train_weights and len(data.train_weights) != len(entries):
        raise ConfigError(
            f"data.train_weights has {len(data.train_weights)} values for {len(entries)} tasks of "
            "data.mixture; give one for each, or none"
        )
    weights = data.train_weights or (1.0,) * len(entries)
    return [_make_task(data, *each) for each in zip(entries, weights, strict=True)]


def has_tasks(data: DataConfig) -> bool:
    """Returns whether `data.mixture` has entries to be read; that of a task is its name alone."""
    return len(data.mixture) > 1 or any(not _is_name(text) for text in data.mixture)


def count_corpora(data: DataConfig) -> int:
    """Counts the training corpora: the sources, but each file of text, in all directions."""
    files = data.train_tgt if data.is_text_alone else data.train_src
    count = sum(len(files) if source == "text" else 1 for source in data.source.split("+"))
    return count * max(len(data.directions), 1)


def _make_task(data: DataConfig, entry: Entry, weight: float) -> DataConfig:
    defaults, own = DataConfig(), {"train_weights": (), **entry.values}
    values = {f"data.{name}": value for name, value in (vars(data) | own).items()}
    for name in SET_BY_TASKS:
        notes = [
            note
            for note in FIELD_TYPES[f"data.{name}"].unused
            if note.remedy and note.cause.startswith("data.")
        ]
        if name not in own and any(holds(note, values) for note in notes):
            values[f"data.{name}"] = own[name] = getattr(defaults, name)
    task = dataclasses.replace(data, **own, mixture=(entry.name,), stages=())
    if weight != 1:
        weights = task.train_weights or (1.0,) * count_corpora(task)
        task.train_weights = tuple(weight * each for each in weights)
    return task


def read_entry(text: str) -> Entry:
    """Reads one entry of `data.mixture`.

    Raises:
        ConfigError: it is not NAME: FIELD=VALUE ..., or a field cannot be set by a task.
    """
    name, _, rest = text.partition(":")
    start = f"data.mixture has {show(text)}"
    if not _is_name(name):
        raise ConfigError(
            f"{start}; write NAME: FIELD=VALUE FIELD=VALUE, with letters, digits, '_', '.' and "
            "'-' in the name"
        )
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise ConfigError(f"{start}: {error}; end each quotation") from None
    values = dict[str, Any]()
    for word in words:
        field, equals, value = word.partition("=")
        whole = f"data.{field}"
        if not equals:
            raise ConfigError(
                f"{start}: {word!r} is no FIELD=VALUE; write a value with spaces in quotes, such "
                "as prefix='translate English to German:'"
            )
        if whole not in FIELD_TYPES:
            known = [f"data.{each}" for each in SET_BY_TASKS]
            raise ConfigError(f"{start}: {whole}: {describe_unknown_field(whole, known)}")
        if field not in SET_BY_TASKS:
            raise ConfigError(
                f"{start}: {whole} is common to all tasks; set it outside of data.mixture"
            )
        if field in values:
            raise ConfigError(f"{start}, which sets {field} twice; set it once")
        values[field] = _read_value(start, whole, value)
    return Entry(name, values)


def _is_name(text: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+", text))


def _read_value(start: str, field: str, text: str) -> Any:
    """Reads the value of a field; commas separate the values of several."""
    kind = FIELD_TYPES[field]
    try:
        if typing.get_origin(kind.plain) is tuple:
            item = typing.get_args(kind.plain)[0]
            return tuple(item(each) for each in text.split(",") if each)
        if kind.plain is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind.plain(text)
    except (ValueError, KeyError):
        raise ConfigError(f"{start}: {field}={text!r} is not of type {kind}") from None
