"""The check that `conftest.py` puts around every function and dataclass of t2t."""

from typing import TypeVar

from beartype import BeartypeConf, FrozenDict, beartype

from t2t.data.batch import Batch, DeviceBatch, HostBatch

Checked = TypeVar("Checked")

SETTINGS = BeartypeConf(
    is_pep484_tower=True,  # as in mypy, an int serves where a float is declared
    # beartype 0.23 knows no generic NamedTuple; the arrays in it are checked where they are used.
    hint_overrides=FrozenDict(dict.fromkeys((Batch, DeviceBatch, HostBatch), tuple)),
)


def check(checked: Checked) -> Checked:
    """The function or class, its arguments and results checked at each call."""
    return beartype(checked, conf=SETTINGS)  # type: ignore[call-overload, no-any-return]
