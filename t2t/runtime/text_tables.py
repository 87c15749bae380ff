"""Formats tables and sizes as plain text, and tables as HTML for notebooks."""

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

    `align` has one letter per column, l (left) or r (right); columns without one are left-aligned.
    With `markdown` it is GitHub's table syntax instead of spaces between the columns.
    With `html` it is an HTML table, with the cells escaped.
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


def show_bytes(count: float | None, digits: int = 4) -> str:
    """Formats a number of bytes, such as 757.2 MB; None is unknown."""
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if float(f"{count:.{digits}g}") < 1000:
            return f"{count:.{digits}g} {unit}"
        count /= 1000
    return f"{count:.{digits}g} TB"
