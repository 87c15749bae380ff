"""Formats tables as plain text for terminals, files and logs, and as HTML for notebooks."""

from collections.abc import Iterable, Sequence

import tabulate


def format_table(
    rows: Iterable[Sequence[object]],
    header: Sequence[str] = (),
    align: str = "",
    markdown: bool = False,
    html: bool = False,
) -> str:
    """Formats rows of cells; a cell is converted by `str`, and None is an empty cell.

    Args:
        rows: Rows that are too short are filled up with empty cells.
        header: Names of the columns, followed by a line; empty: no header.
        align: One letter per column, l (left) or r (right); columns without one are left-aligned.
        markdown: Whether to use GitHub's table syntax instead of spaces between the columns.
        html: Whether to return an HTML table, with the cells escaped.
    """
    lines = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if markdown:
        header = [_escape(name) for name in header]
        lines = [[_escape(cell) for cell in line] for line in lines]
    return tabulate.tabulate(
        lines,
        header,
        tablefmt="html" if html else "github" if markdown else "simple" if header else "plain",
        disable_numparse=True,  # show numbers as given: no 1e-05 for 0.000010
        preserve_whitespace=True,  # keep the indentation of cells
        colalign=["right" if letter == "r" else "left" for letter in align] or None,
    )


def _escape(cell: str) -> str:
    return cell.replace("|", r"\|")
