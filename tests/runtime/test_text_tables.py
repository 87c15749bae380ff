"""Plain-text and Markdown tables."""

from t2t.runtime.text_tables import format_table


def test_columns_are_aligned_as_asked_and_cells_keep_their_text() -> None:
    rows = [("base", "1e5", 0.10), ("  own | part", None)]
    assert format_table(rows, ["name", "steps", "loss"], align="lr").splitlines() == [
        "name            steps  loss",
        "------------  -------  ------",
        "base              1e5  0.1",
        "  own | part",
    ]


def test_table_without_header_has_nothing_but_its_rows() -> None:
    assert format_table([["a", "1"], ["long", "2"]]) == "a     1\nlong  2"


def test_markdown_escapes_what_would_end_a_cell() -> None:
    lines = format_table([["a|b", ""]], ["x|y", "z"], markdown=True).splitlines()
    assert [[cell.strip() for cell in line.split(" | ")] for line in lines[::2]] == [
        [r"| x\|y", "z   |"],
        [r"| a\|b", "|"],
    ]


def test_header_without_rows_is_a_table() -> None:
    assert format_table([], ["x", "y"], align="lr").splitlines()[0].split() == ["x", "y"]
