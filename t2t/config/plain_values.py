"""Plain values of Python for the numbers, arrays and columns of NumPy, pandas, PyArrow, ..."""

from collections.abc import Iterable, Mapping
from typing import Any

# Methods by which libraries turn an array, a column or a scalar into values of Python.
_METHODS = ("tolist", "to_pylist", "to_list", "as_py", "to_numpy")


def simplify(value: Any) -> Any:
    """Returns an array or a column as a list, a scalar as Python's; anything else as it is."""
    if list_columns(value) is None:
        for method in _METHODS:
            if hasattr(type(value), method):
                return simplify(getattr(value, method)())
    return value


def list_columns(value: Any) -> list[Any] | None:
    """Lists the names of a table's columns, or the keys of a mapping; None: it is neither."""
    if isinstance(value, Mapping):
        return [*value]
    for name in ("column_names", "columns"):  # PyArrow's columns are the columns themselves
        if hasattr(type(value), name) and not callable(found := getattr(value, name)):
            return [] if found is None else [*found]
    return None


def is_ordered(value: Any) -> bool:
    """Returns whether a plain value has elements in an order: no text, no set and no table."""
    is_other = isinstance(value, str | bytes | bytearray | set | frozenset)
    return isinstance(value, Iterable) and not is_other and list_columns(value) is None
