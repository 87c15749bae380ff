"""The run-time check of types and shapes that `conftest.py` adds to modules with array shapes."""

import inspect
from pathlib import Path
from typing import Any, TypeVar

from beartype import BeartypeConf, FrozenDict, beartype
from etils import epath

from t2t.data.batch import Batch, DeviceBatch, HostBatch

Checked = TypeVar("Checked")

SETTINGS = BeartypeConf(
    is_pep484_tower=True,  # like mypy, accepts an int where a float is declared
    hint_overrides=FrozenDict(
        {
            # beartype 0.23 does not support generic NamedTuples; their arrays are checked on use.
            **dict.fromkeys((Batch, DeviceBatch, HostBatch), tuple),
            Path: Path | epath.Path,  # of a bucket: see t2t/storage/paths.py
        }
    ),
)


# By module, name and signature, on which alone a check depends: jaxtyping asks again for the check
# of an inner function whenever the outer one runs, and beartype takes milliseconds to write one.
_checks: dict[tuple[str, str, str], Any] = {}


def check(checked: Checked) -> Checked:
    """Wraps a function or class so that arguments and results are checked at each call."""
    if not inspect.isfunction(checked) or "<locals>" not in checked.__qualname__:
        return beartype(checked, conf=SETTINGS)  # type: ignore[call-overload]
    key = checked.__module__, checked.__qualname__, str(inspect.signature(checked))
    if key not in _checks:
        _checks[key] = beartype(checked, conf=SETTINGS)  # type: ignore[call-overload]
    same: Checked = _checks[key]
    return same
