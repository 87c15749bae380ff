"""A report as Markdown and as one HTML page that needs no other file."""

import base64
import dataclasses
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2t.runtime.tables import format_table
from t2t.storage.atomic_files import write_file

_STYLE = """
body { font-family: sans-serif; margin: 2em auto; max-width: 100em; padding: 0 1em; }
table { border-collapse: collapse; font-size: 0.9em; }
td, th { border: 1px solid #ccc; padding: 0.3em 0.6em; text-align: left; }
tr:nth-child(even) { background: #f6f6f6; }
img { max-width: 100%; }
"""


@dataclasses.dataclass(frozen=True)
class Page:
    """What a report says, whatever its format."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    sentences: Sequence[str]
    notes: Sequence[str]
    plots: Mapping[str, Path]  # SVG files, by what they show


def write_pages(folder: Path, page: Page) -> list[Path]:
    """report.md and report.html; each is written whole, or not at all."""
    paths = []
    for name, text in (("report.md", as_markdown(page)), ("report.html", as_html(page))):
        write_file(folder / name, text)
        paths.append(folder / name)
    return paths


def as_markdown(page: Page) -> str:
    """The plots are links to the files beside it."""
    parts = [
        f"# {page.title}",
        format_table(page.rows, page.header, markdown=True),
        *("\n".join(f"- {line}" for line in lines) for lines in (page.sentences, page.notes)),
        *(f"![{title}]({path.name})" for title, path in page.plots.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_html(page: Page) -> str:
    """The plots are inside."""
    cells = [
        "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in row)
        for kind, rows in (("th", [page.header]), ("td", page.rows))
        for row in rows
    ]
    lists = [
        "<ul>" + "".join(f"<li>{html.escape(line)}</li>\n" for line in lines) + "</ul>"
        for lines in (page.sentences, page.notes)
        if lines
    ]
    images = [
        f'<h2>{html.escape(title)}</h2><img alt="{html.escape(title)}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}">'
        for title, path in page.plots.items()
    ]
    title = html.escape(page.title)
    return "\n".join(
        [
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
            "<table>",
            *(f"<tr>{row}</tr>" for row in cells),
            "</table>",
            *lists,
            *images,
            "</body></html>\n",
        ]
    )
