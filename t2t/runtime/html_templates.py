"""Renders HTML pages from templates; a page needs no other files and no network."""

from pathlib import Path
from typing import Any

import jinja2


def render_page(template: Path, **values: Any) -> str:
    """Renders a template; escapes every text in `values`, and raises on a name without a value."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template.read_text("utf-8")).render(**values)
