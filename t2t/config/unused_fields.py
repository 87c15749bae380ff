"""The fields that have no effect beside some value of another field, as their types say.

`rules.py` refuses some of them in every config, `new_run_rules.py` all of them in a new run, and
`files.override_decoding` all that a user gives of a search. Rows of a sweep that change nothing
else are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from t2t.config.field_types import REGISTERED, Unused
from t2t.config.fields import FIELD_TYPES, Config, flatten


def list_unused(config: Config, *, refused: bool = False) -> dict[str, str]:
    """Returns the fields that have no effect, each with the field that is the cause.

    `refused`: only those that `unused_problems` refuses in every config.
    """
    found: dict[str, str] = {}
    for name, note in _list_holding(flatten(config)):
        if note.remedy or not refused:
            found.setdefault(name, note.cause)
    return found


def unused_problems(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields one line for each changed field that is refused in every config."""
    defaults = flatten(Config())
    for name, note in _list_holding(values):
        if note.remedy and values[name] != defaults[name]:
            end, cause = note.remedy.format(default=defaults[name]), note.cause
            yield f"{name}={values[name]!r} is not used by {cause}={values[cause]!r}; {end}"


def _list_holding(values: Mapping[str, Any]) -> Iterator[tuple[str, Unused]]:
    """Yields each field without effect beside these values, with each note that says so."""
    for name, kind in FIELD_TYPES.items():
        yield from ((name, note) for note in kind.unused if _holds(note, values))


def _holds(note: Unused, values: Mapping[str, Any]) -> bool:
    """Returns whether the cause has a value that takes the effect away."""
    value, names = values[note.cause], FIELD_TYPES[note.cause].names
    are_listed = [
        each in note.values or (REGISTERED in note.values and each not in names)
        for each in (value.split("+") if note.cause == "data.source" else [value])
    ]
    holds = all(are_listed) if note.is_beside else not any(are_listed)
    return holds and (note.also is None or _holds(note.also, values))
