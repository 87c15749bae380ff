"""Writes docs/config.md from the dataclasses of t2t/config/fields.py and their comments.

    python -m docs.make_config_page

A test fails while the page differs from what this program would write.
"""

import ast
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from t2t.config import fields
from t2t.config.field_types import FieldType
from t2t.config.fields import FIELD_TYPES
from t2t.config.requests import add_conditions, read_help
from t2t.config.variants import CHOICES, EXTENSIBLE

ROOT = Path(__file__).parents[1]
FIELDS = ROOT / "t2t" / "config" / "fields.py"
PAGE = ROOT / "docs" / "config.md"

_INTRODUCTION = """# Every field of the config

Set a field on the command line as `--config.SECTION.FIELD=VALUE`, for example
`--config.model.num_heads=1`. Fields without a section: `--config.seed=1`.

- **Defaults** are the paper's base model; each recipe in [`configs/`](../configs) changes what it
  needs.
- **Several values**: repeat the flag of a field that is a tuple, or join numbers by commas.
  Nothing is an empty tuple: `--config.data.filters=`. Any other flag with two different values is
  refused.
- **Types** are followed by what a value must be: `int, positive`.
- **Errors** come before any device work, and say what is allowed: a wrong name, type or
  combination and, in new runs, a field without effect, such as `model.d_ff` with
  `model.feed_forward=none`.
- **with** and **not with** name values of other fields, which decide whether a field has an effect.
- **(open)** marks fields that also accept variants of a plugin ([extending](extending.md)).

This page is made from [`t2t/config/fields.py`](../t2t/config/fields.py) by
`python -m docs.make_config_page`; a test keeps it in step.
"""


def make_page() -> str:
    """The text of docs/config.md."""
    source = FIELDS.read_text("utf-8")
    classes = {
        node.name: node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config")
    }
    sections = {
        field.target.id: ast.unparse(field.annotation)
        for field in list_fields(classes["Config"])
        if isinstance(field.target, ast.Name)
    }
    parts = [_INTRODUCTION]
    for section, kind in sections.items():
        if kind in classes:
            parts.append(format_section(section, classes[kind]))
    parts.append(format_section("", classes["Config"]))
    return "\n".join(parts)


def list_fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    """The fields of a dataclass, in order."""
    return [part for part in node.body if isinstance(part, ast.AnnAssign)]


def format_section(section: str, node: ast.ClassDef) -> str:
    """Heading, docstring and table of one dataclass; of the outermost, its plain fields."""
    lines = [f"## {section or 'Without a section'}", ""]
    if section:
        lines += [ast.get_docstring(node) or "", ""]
    lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    kind = getattr(fields, node.name)
    comments = read_help(kind)
    # Without the notes of the section, which its docstring explains.
    types = {each.name: FieldType.of(each.type) for each in dataclasses.fields(kind)}

    def write_cause(cause: str, values: Sequence[str]) -> str:
        """Returns another field and its values, as recipes have them."""
        shown = " or ".join(f'"{value}"' for value in values)
        return f"{cause.removeprefix(f'{section}.')}={shown}"

    for field in list_fields(node):
        assert isinstance(field.target, ast.Name)
        name = field.target.id
        whole = f"{section}.{name}" if section else name
        if whole not in FIELD_TYPES:
            continue
        mark, typed = " (open)" if whole in EXTENSIBLE else "", describe_type(whole)
        meaning = re.sub(r"<\w+>", r"`\g<0>`", comments[name])  # a browser takes them for tags
        meaning = add_conditions(meaning, types[name], write_cause)
        if any(choice not in meaning for choice in CHOICES.get(whole, ())):
            meaning = " | ".join(CHOICES[whole]) + (f": {meaning}" if meaning else "")
        cells = f"`{name}`{mark}", typed, f"`{format_default(field)}`", meaning
        lines.append("| " + " | ".join(re.sub(r"([*|])", r"\\\1", cell) for cell in cells) + " |")
    return "\n".join([*lines, ""])


def describe_type(name: str) -> str:
    """The plain type of a field, and the rules for its values."""
    kind = FIELD_TYPES[name]
    texts = (re.sub(r"\b(be|lie) ", "", rule.text, count=1) for rule in kind.rules)
    return ", ".join([str(kind).replace("typing.", ""), *texts])


def format_default(field: ast.AnnAssign) -> str:
    """The default as one types it in Python; numbers as in the source, as 100_000."""
    assert field.value is not None
    text = ast.unparse(field.value).replace("'", '"')
    return text.replace("dataclasses.field(default_factory=dict)", "{}")


if __name__ == "__main__":
    PAGE.write_text(make_page(), "utf-8")
    print(PAGE.relative_to(ROOT))
