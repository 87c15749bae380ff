"""Reads texts, pairs of texts and rows of ids that a function of Python is given.

They may be in a list, a column, an array or anything else with an order, such as a generator.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from t2t.config.fields import shorten, show
from t2t.config.plain_values import is_ordered, list_columns, simplify
from t2t.data.corpus import DataError

_TEXTS = "a list of strings"
_PAIRS = "a list of pairs (source, target)"
_ROWS = "rows of ids, such as those of run.encode"
_WIDTH = 60  # characters shown of a value


def read_text(name: str, text: Any) -> str:
    """Returns a text as Python's.

    Raises:
        DataError: it is no text; the message has the `name` of the argument, or of its place.
    """
    found = text if isinstance(text, str) else simplify(text)
    if not isinstance(found, str):
        remedy = 'leave it out, or give ""'
        if isinstance(found, bytes):
            remedy = "decode it"
        elif columns := list_columns(found):
            remedy = f"give one value of each row, such as row[{columns[0]!r}]"
        raise DataError(f"{name} is {_describe(text)}, not a string; {remedy}")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} holds the lone surrogate U+{ord(found[error.start]):04X} at character "
            f"{error.start}, which is half of a character; decode the text again, for example with "
            "errors='replace'"
        ) from None
    return found


def read_texts(name: str, texts: Any) -> list[str]:
    """Returns the texts of an argument as a list.

    Raises:
        DataError: it is a single string or a table, or has no order (a set), or an element is no
            text; the message has the name of the argument and the element's index.
    """
    found = _list_elements(name, texts, _TEXTS)
    return [read_text(f"{name}[{index}]", text) for index, text in enumerate(found)]


def read_pairs(name: str, pairs: Any) -> list[tuple[str, str]]:
    """Returns pairs (source, target) as a list; raises as `read_texts`."""
    found = []
    for index, pair in enumerate(_list_elements(name, pairs, _PAIRS)):
        place, plain = f"{name}[{index}]", simplify(pair)
        sides = [*plain] if is_ordered(plain) else []
        if len(sides) != 2:
            keys = [f"row[{key!r}]" for key in list_columns(plain) or ()]
            remedy = f"; give ({', '.join(keys[:2])}) of each row" if len(keys) > 1 else ""
            raise DataError(
                f"{place} is {_describe(pair)}, not a pair (source, target) of sentences{remedy}"
            )
        src, tgt = (read_text(f"{place}[{side}]", text) for side, text in enumerate(sides))
        found.append((src, tgt))
    return found


def read_ids(name: str, rows: Any, size: int) -> list[list[int]]:
    """Returns rows of ids of a vocabulary of this size.

    Raises:
        DataError: they are no rows of integers, or an id is none of the vocabulary's.
    """
    found = []
    for index, row in enumerate(_list_elements(name, rows, _ROWS)):
        where = f"{name}[{index}]"
        ids = [*map(simplify, _list_elements(where, row, _ROWS))]
        if wrong := [(place, token) for place, token in enumerate(ids) if type(token) is not int]:
            place, token = wrong[0]
            raise DataError(f"{where}[{place}] is {_describe(token)}; give integers")
        if outside := [token for token in ids if not 0 <= token < size]:
            raise DataError(f"{where} holds {outside[0]}; use ids of run.encode, 0 to {size - 1}")
        found.append(ids)
    return found


def _list_elements(name: str, value: Any, kind: str) -> Sequence[Any]:
    """Returns the elements of an argument that should be `kind`."""
    plain = simplify(value)
    if is_ordered(plain):
        return [*plain]
    places = [f"{name}[{column!r}]" for column in list_columns(plain) or ()]
    if kind == _PAIRS and len(places) > 1:
        kind = f"pairs of its columns, such as zip({places[0]}, {places[1]})"
    elif kind == _TEXTS and places:
        kind = f"one of its columns, such as {places[0]}"
    raise DataError(f"{name} is {_describe(value)}; give {kind}")


def _describe(value: Any) -> str:
    """The type of a value and its beginning or its columns, for an error message."""
    columns, kind = list_columns(value), type(value).__name__
    if columns is not None and not isinstance(value, Mapping):
        return f"{kind} with the columns {shorten(', '.join(map(str, columns)), _WIDTH)}"
    return f"{kind} {show(value, _WIDTH)}"
