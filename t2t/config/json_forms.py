"""Checks JSON by typed dictionaries, whose values have the types of the config's fields.

    class Score(TypedDict):
        value: float
        count: PositiveInt32 | None

A field that may be None may be missing. Fields that are not declared may have any value.
"""

import typing
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from t2t.config.field_types import FieldType
from t2t.config.fields import ConfigError, show
from t2t.config.files import check_type


def list_json_faults(value: Any, form: Any, path: str = "") -> Iterator[str]:
    """Yields what is wrong with a value, such as "scores.bleu.value='a' is not of type float".

    `form` is a `TypedDict`, a `Mapping` of another form, `Any`, or the type of a field; `path`
    leads to the value, and ends in a dot.
    """
    name, options = path.rstrip("."), typing.get_args(form)
    if form is Any or (value is None and NoneType in options):
        return
    if NoneType in options:
        form = options[0]
    if typing.is_typeddict(form):
        hints = typing.get_type_hints(form, include_extras=True)
    elif typing.get_origin(form) is Mapping:
        hints = dict.fromkeys(value, typing.get_args(form)[1]) if isinstance(value, dict) else {}
    else:
        yield from _list_field_faults(name, value, form)
        return
    if not isinstance(value, dict):
        yield f"{name or 'it'} is {show(value)}, no object"
        return
    for key, hint in hints.items():
        if key in value:
            yield from list_json_faults(value[key], hint, f"{path}{key}.")
        elif NoneType not in typing.get_args(hint):
            yield f"{path}{key} is missing"


def _list_field_faults(name: str, value: Any, hint: Any) -> Iterator[str]:
    """Yields what is wrong with a value by the type of a field, and by its rules."""
    try:
        found = check_type(name, value, hint)
    except ConfigError as error:
        yield str(error)
    else:
        for fault in FieldType.of(hint).list_faults(found):
            yield f"{name}={show(value)} {fault}"
