"""Tables as plain text, which reads the same on a terminal, in a file and in a log."""

from collections.abc import Iterable, Sequence

import tabulate


def format_table(
    rows: Iterable[Sequence[object]],
    header: Sequence[str] = (),
    align: str = "",
    markdown: bool = False,
) -> str:
    """Lays out rows of cells, each shown as `str` gives it and None as an empty cell.

    Args:
        rows: Those at the end of which cells are missing are filled up with empty ones.
        header: Names of the columns, with a line below them; empty: neither.
        align: A letter for each column, l or r; columns without one are aligned on the left.
        markdown: With GitHub's syntax for tables instead of blanks between the columns.
    """
    lines = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if markdown:
        header = [_escape(name) for name in header]
        lines = [[_escape(cell) for cell in line] for line in lines]
    return tabulate.tabulate(
        lines,
        header,
        tablefmt="github" if markdown else "simple" if header else "plain",
        disable_numparse=True,  # a cell is shown as it is given: no 1e-05 for 0.000010
        preserve_whitespace=True,  # names may be indented
        colalign=["right" if letter == "r" else "left" for letter in align] or None,
    )


def _escape(cell: str) -> str:
    return cell.replace("|", r"\|")
