"""Writes a sweep's report as Markdown and as one self-contained HTML page."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2t.runtime.html_templates import render_page
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import write_file

_TEMPLATE = Path(__file__).with_suffix(".html")


@dataclasses.dataclass(frozen=True)
class SweepReport:
    """The content of a report, independent of its format."""

    title: str
    header: Sequence[str]  # names of the columns
    rows: Sequence[Sequence[str]]
    sentences: Sequence[str]
    notes: Sequence[str]
    plots: Mapping[str, Path]  # SVG files by title


def write_pages(folder: Path, report: SweepReport) -> list[Path]:
    """Writes report.md and report.html, each atomically, and returns their paths."""
    paths = []
    for name, text in (("report.md", as_markdown(report)), ("report.html", as_html(report))):
        write_file(folder / name, text)
        paths.append(folder / name)
    return paths


def as_markdown(report: SweepReport) -> str:
    """Formats the report as Markdown, which links to plots in its own folder."""
    parts = [
        f"# {report.title}",
        format_table(report.rows, report.header, markdown=True),
        *("\n".join(f"- {line}" for line in lines) for lines in (report.sentences, report.notes)),
        *(f"![{title}]({path.name})" for title, path in report.plots.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_html(report: SweepReport) -> str:
    """Formats the report as HTML with embedded plots."""
    images = {
        title: base64.b64encode(path.read_bytes()).decode() for title, path in report.plots.items()
    }
    return render_page(_TEMPLATE, report=report, images=images)
