import pytest

from benchmarks.alignments import alignment_error_rate


def test_error_rate_is_that_of_och_and_ney() -> None:
    found, sure = {(0, 0), (1, 1), (2, 3)}, {(0, 0), (2, 2)}
    assert alignment_error_rate([found], [sure]) == pytest.approx(1 - 2 / 5)
    assert alignment_error_rate([sure], [sure]) == 0
