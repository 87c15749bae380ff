"""Formats tables, paragraphs and sizes as plain text, and tables as HTML for notebooks."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tabulate

WIDTH = 100  # characters of a line on a terminal
NO_BREAK = "\N{NO-BREAK SPACE}"
_NARROWEST = 8  # characters of a column whose cells are wrapped


class Table(NamedTuple):
    """A table with a header; `align` and `wrapped` are those of `format_table`."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str = ""
    wrapped: Sequence[int] = ()

    def format(self) -> str:
        """Formats the table for a terminal."""
        return format_table(self.rows, self.header, self.align, wrapped=self.wrapped)

    def format_markdown(self) -> str:
        """Formats the table in GitHub's syntax."""
        return format_table(self.rows, self.header, self.align, markdown=True)


def format_table(
    rows: Iterable[Sequence[object]],
    header: Sequence[str] = (),
    align: str = "",
    markdown: bool = False,
    html: bool = False,
    wrapped: Sequence[int] = (),
) -> str:
    """Formats rows of cells; a cell is converted by `str`, and None is an empty cell.

    `align` has one letter per column, l (left) or r (right); columns without one are left-aligned.
    With `markdown` it is GitHub's table syntax instead of spaces between the columns.
    With `html` it is an HTML table, with the cells escaped.
    The cells of the columns whose numbers are in `wrapped` are wrapped, the widest column first,
    until the table is `WIDTH` wide; a no-break space keeps words together, and becomes a space.
    """
    lines = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if wrapped:
        header, *lines = _wrap_cells([[*header], *lines], wrapped)
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


def _wrap_cells(lines: list[list[str]], wrapped: Sequence[int]) -> list[list[str]]:
    widths = [
        max(len(part) for cell in column for part in cell.split("\n"))
        for column in zip(*lines, strict=True)
    ]
    names = [max(map(len, name.split("\n"))) + tabulate.MIN_PADDING for name in lines[0]]
    widths = [*map(max, widths, names)]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        widest = max(wrapped, key=lambda number: widths[number])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return [
        [
            _wrap_cell(cell, widths[number]) if number in wrapped else cell
            for number, cell in enumerate(line)
        ]
        for line in lines
    ]


def _wrap_cell(cell: str, width: int) -> str:
    parts = (textwrap.wrap(part, width, break_on_hyphens=False) for part in cell.split("\n"))
    return "\n".join(line.replace(NO_BREAK, " ") for lines in parts for line in lines)


def wrap_text(text: str, indent: str = "") -> str:
    """Wraps a paragraph to `WIDTH`; `indent` begins its other lines. A word is never broken."""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def list_items(items: Iterable[str]) -> str:
    """Formats a list, an item a paragraph that begins with a dash, wrapped to `WIDTH`."""
    return "\n".join(wrap_text(f"- {item}", "  ") for item in items)


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
