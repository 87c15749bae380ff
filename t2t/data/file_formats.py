"""Recognises files that are not text by their first bytes, and names what converts them."""

import json
import re
from pathlib import Path
from typing import NamedTuple


class _Format(NamedTuple):
    """A format of files that are not read as lines."""

    name: str
    begins: bytes  # a regular expression for the first bytes, without a byte order mark
    suffixes: str  # of the names of its files, separated by spaces
    remedy: str


_JSON = "JSON"
_FORMATS = (
    _Format(
        "TMX",
        rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!DOCTYPE )?tmx\b",
        ".tmx",
        "write each side as text: tmx2moses of OPUS-Tools",
    ),
    _Format(
        "SGML of WMT",
        rb"\s*<(!DOCTYPE )?(\w+set|mteval|doc)\b[^>\n]*>",
        ".sgm .sgml",
        "write its segments as text, without tags and entities: input-from-sgm.perl of Moses",
    ),
    _Format(
        "XML or HTML",
        rb"\s*<(\?xml|!DOCTYPE|html|xliff)\b",
        ".xlf .xliff .html .htm",
        "write its text line by line, without tags and entities",
    ),
    _Format(
        "PO of gettext",
        rb'(\s*#[^\n]*\n)*\s*(msgctxt "[^\n]*\n)?msgid "',
        ".po .pot",
        "write it as CSV: po2csv of the Translate Toolkit; its columns are source and target",
    ),
    _Format(
        "an Office file",
        rb"(?s)\xd0\xcf\x11\xe0|PK\x03\x04.*?(xl/|word/|docProps/|\[Content_Types\]|vnd\.oasis)",
        ".xlsx .xls .ods .docx .doc .odt",
        "write a table as CSV (soffice --headless --convert-to csv FILE), a text with txt:Text "
        "instead of csv",
    ),
    _Format("a zip archive", rb"PK\x03\x04", ".zip", "unpack it: unzip FILE"),
    _Format("a tar archive", rb"(?s).{257}ustar", ".tar .tgz", "unpack it: tar -xf FILE"),
    _Format("PDF", rb"%PDF-", ".pdf", "write its text: pdftotext FILE"),
    _Format("Parquet", rb"PAR1", "", "name it in data.hf_files, with .parquet at its end"),
    _Format("Arrow", rb"ARROW1", "", "name it in data.hf_files, with .arrow at its end"),
    _Format(
        _JSON,
        rb'\s*(\[\s*(\{\s*"|\[\s*"|"[^\n]*,\s*\n\s*")|\{\s*\n\s*")',
        "",
        "name it in data.hf_files, with .json at its end",
    ),
)


def describe_format(
    path: Path, head: bytes, *, by_name: bool = False, takes_json: bool = False
) -> str:
    """Says what a file is and what converts it, by the first bytes of its unpacked content.

    It is "" for text, and for a value of JSON in each line, or with `takes_json` any JSON. With
    `by_name` the suffix of the name counts as well.
    """
    head = head.removeprefix(b"\xef\xbb\xbf")
    found = [each for each in _FORMATS if re.match(each.begins, head, re.IGNORECASE)]
    if by_name and not found:
        found = [each for each in _FORMATS if path.suffix.lower() in each.suffixes.split()]
    if not found or (found[0].name == _JSON and (takes_json or _begins_with_value(head))):
        return ""
    return f"is {found[0].name}, no lines of text; {found[0].remedy}"


def _begins_with_value(head: bytes) -> bool:
    """Returns whether the first of several lines is a value of JSON."""
    line, _, rest = head.strip().partition(b"\n")
    try:
        json.loads(line)
    except ValueError:
        return False
    return bool(rest)
