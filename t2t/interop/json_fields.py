"""Reads the fields of a JSON file of `transformers` one by one; errors name the file and the field.

Null is a value: only a field that is missing gets a default.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from t2t.interop.hugging_face_folder import SourceError

Value = TypeVar("Value")

# Values of an unknown field that switch it off.
OFF: tuple[Any, ...] = (None, False, 0, "", [], {})
_MOST = 2**31 - 1  # of whole numbers


class ForeignFields:
    """The fields of a file, and which of them were read."""

    def __init__(self, file: str, values: Mapping[str, Any], without_effect: Iterable[str] = ()):
        """Takes the values of `file`, and the names of fields that need no reading."""
        self.file = file
        self._values = dict(values)
        self._given = frozenset(values)
        self._read = {*without_effect}

    def fill(self, **defaults: Any) -> None:
        """Sets the values that `transformers` takes for fields that the file lacks."""
        self._values = defaults | self._values

    def replace(self, name: str, value: Any) -> None:
        """Sets a value in place of the file's."""
        self._values[name] = value

    def get(self, name: str) -> Any:
        """Returns the value of a field as it is; None: it is missing."""
        self._read.add(name)
        return self._values.get(name)

    def take(
        self, name: str, kind: type[Value], least: float = 0, most: float | None = None
    ) -> Value:
        """Returns a number.

        Args:
            name: of the field.
            kind: int or float; a whole number is a float, too.
            least: the least value.
            most: the largest value; by default the largest of 32 bits for whole numbers.

        Raises:
            SourceError: it is missing and has no default, is none, or out of range.
        """
        value: Any = self.get(name)
        limit = most if most is not None else (_MOST if kind is int else math.inf)
        if kind is float and type(value) is int and abs(value) <= _MOST:
            value = float(value)
        is_number = type(value) is kind
        if not is_number or not (least <= value <= limit and -math.inf < value < math.inf):
            what = "whole number" if kind is int else "number"
            bounds = f" of {least:g} or more" * (least > -math.inf)
            bounds += f" and at most {limit:,}" * (limit < math.inf)
            raise self.refuse(name, f"is not a {what}{bounds}; correct it in a copy of the file")
        return value

    def flag(self, name: str) -> bool:
        """Returns a field that is true or false; one that is missing or null is false.

        Raises:
            SourceError: it is neither.
        """
        self.allow(name, True, False, None)
        return self._values.get(name) is True

    def translate(self, name: str, known: Mapping[Any, Value]) -> Value:
        """Returns this project's name of a value.

        Raises:
            SourceError: the value has none.
        """
        value = self.get(name)
        if not isinstance(value, str | bool) or value not in known:
            raise self.refuse(name, f"is not supported; it can be {', '.join(map(str, known))}")
        return known[value]

    def require(self, name: str, *allowed: Any) -> None:
        """Raises `SourceError` unless a field has one of these values; None: or is missing."""
        value = self.get(name)
        if not any(value == each and type(value) is type(each) for each in allowed):
            values = " or ".join(repr(each) for each in allowed if each is not None) or "null"
            raise self.refuse(name, f"is not supported; it can be {values}")

    def allow(self, name: str, *values: Any) -> None:
        """As `require`, if the field is there."""
        self.ignore(name)
        if name in self._values:
            self.require(name, *values)

    def ignore(self, *names: str) -> None:
        """Marks fields as read that do not matter."""
        self._read.update(names)

    def refuse(self, name: str, reason: str) -> SourceError:
        """Returns the error of a field."""
        return SourceError(f"{self.file}: {name}={self._values.get(name)!r} {reason}")

    def list_unread(self) -> dict[str, Any]:
        """Returns the fields of the file that nobody has read."""
        return {name: self._values[name] for name in sorted(self._given - self._read)}
