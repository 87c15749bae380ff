"""Numbers in a fitting unit."""

import pytest

from t2t.runtime.units import show_bytes


@pytest.mark.parametrize(
    ("count", "digits", "text"),
    [
        (None, 4, "unknown"),
        (0, 3, "0 B"),
        (200_000, 3, "200 kB"),
        (999_700, 3, "1 MB"),
        (757_161_984, 4, "757.2 MB"),
        (41.8e9, 3, "41.8 GB"),
        (float("inf"), 3, "inf TB"),
    ],
)
def test_bytes_have_a_fitting_unit(count: float | None, digits: int, text: str) -> None:
    assert show_bytes(count, digits) == text
