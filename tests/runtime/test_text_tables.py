"""Plain-text and Markdown tables, and sizes in a fitting unit."""

import pytest

from t2t.runtime.text_tables import WIDTH, format_table, show_bytes


def test_columns_are_aligned_as_asked_and_cells_keep_their_text() -> None:
    """Markdown escapes what would end a cell."""
    rows = [("base", "1e5", 0.10), ("  own | part", None)]
    assert format_table(rows, ["name", "steps", "loss"], align="lr").splitlines() == [
        "name            steps  loss",
        "------------  -------  ------",
        "base              1e5  0.1",
        "  own | part",
    ]
    lines = format_table([["a|b", ""]], ["x|y", "z"], markdown=True).splitlines()
    assert [[cell.strip() for cell in line.split(" | ")] for line in lines[::2]] == [
        [r"| x\|y", "z   |"],
        [r"| a\|b", "|"],
    ]


def test_cells_are_wrapped_until_a_table_fits_a_terminal() -> None:
    """Lines of a cell stay lines; the widest column is wrapped first."""
    rows = [["a", "word " * 30 + "\nsecond line"], ["b" * 60, "short"]]
    lines = format_table(rows, ["name", "text"], wrapped=(0, 1)).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert [line.split()[-2:] for line in lines if "second" in line] == [["second", "line"]]
    assert sum(line.count("word") for line in lines) == 30
    assert sum(line.count("b") for line in lines) == 60


@pytest.mark.parametrize(
    ("count", "digits", "text"),
    [
        (None, 4, "unknown"),
        (200_000, 3, "200 kB"),
        (999_700, 3, "1 MB"),
    ],
)
def test_bytes_have_a_fitting_unit(count: float | None, digits: int, text: str) -> None:
    assert show_bytes(count, digits) == text
