"""HTML pages from templates; they need no other file and nothing from the network."""

from pathlib import Path
from typing import Any

import jinja2


def render_page(template: Path, **values: Any) -> str:
    """Fills in a template; every text in `values` is escaped, and a name without value an error."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template.read_text("utf-8")).render(**values)
