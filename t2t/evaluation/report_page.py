"""The form of a report: what was found first, one table, figures, and sections that are folded.

It is written as report.md, as report.html, a page that needs no other file, and as report.json for
programs.
"""

import base64
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.evaluation.verdict_table import VerdictTable
from t2t.runtime.html_templates import render_page
from t2t.runtime.text_tables import Table, list_items, wrap_text
from t2t.storage.atomic_files import write_file

_TEMPLATE = Path(__file__).with_suffix(".html")


@dataclasses.dataclass(frozen=True)
class ReportSection:
    """A part of a report that is folded in HTML, and stands below the main part in Markdown."""

    title: str
    tables: Sequence[Table] = ()
    sentences: Sequence[str] = ()  # a list, below the tables

    @property
    def is_empty(self) -> bool:
        """Returns whether there is nothing to show."""
        return not self.sentences and not any(table.rows for table in self.tables)


@dataclasses.dataclass(frozen=True)
class ReportPage:
    """What a reader sees at once, and what is folded."""

    title: str
    verdicts: VerdictTable
    remarks: Sequence[str] = ()  # without which the table would mislead
    figures: Mapping[str, Path] = dataclasses.field(default_factory=dict)  # .svg files, by title
    sections: Sequence[ReportSection] = ()
    content: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of report.json
    terminal: str = ""  # what a terminal shows besides, in place of figures

    def write(self, folder: Path) -> str:
        """Writes the three files, beside the figures in the same folder.

        Returns what a terminal shows: the opening, the table, the remarks, what else is given as
        `terminal`, and the paths of the files.
        """
        sections = [each for each in self.sections if not each.is_empty]
        opening, table = self.verdicts.describe(), self.verdicts.make_table()
        main = [f"# {self.title}", opening]
        main += [table.format_markdown()] if table.rows else []
        main += _list(self.remarks)
        main += [f"![{title}]({path.name})" for title, path in self.figures.items()]
        for section in sections:
            main.append(f"## {section.title}")
            main += [table.format_markdown() for table in section.tables if table.rows]
            main += _list(section.sentences)
        images = {
            title: base64.b64encode(path.read_bytes()).decode()
            for title, path in self.figures.items()
        }
        page = render_page(
            _TEMPLATE, title=self.title, opening=opening, table=table, remarks=self.remarks,
            images=images, sections=sections,
        )  # fmt: skip
        content = {
            "title": self.title,
            "opening": opening,
            "table": self.verdicts.record(),
            "remarks": [*self.remarks],
            **self.content,
        }
        files = {
            "report.md": "\n\n".join(main) + "\n",
            "report.html": page,
            "report.json": json.dumps(content, indent=1) + "\n",
        }
        for name, text in files.items():
            write_file(folder / name, text)
        narrow = self.verdicts.make_table(narrow=True)
        parts = [
            wrap_text(opening),
            narrow.format() if narrow.rows else "",
            list_items(self.remarks),
            self.terminal,
            "\n".join(str(folder / name) for name in files),
        ]
        return "\n\n".join(filter(None, parts))


def _list(items: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {item}" for item in items)] if items else []
