"""The run-time check of types and shapes that `conftest.py` adds to modules with array shapes."""

from pathlib import Path
from typing import TypeVar

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


def check(checked: Checked) -> Checked:
    """Wraps a function or class so that arguments and results are checked at each call."""
    return beartype(checked, conf=SETTINGS)  # type: ignore[call-overload]
