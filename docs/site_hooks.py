"""Hooks of mkdocs.yml: pages of the repository outside docs/, and links to them.

Markdown is written for readers of the repository, with links between files. On the site README.md
is the front page, and a link to a file that is no page, such as a recipe, keeps only its text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/LOG.md": "log.md",
}
LAST_IN_SEARCH = {"changelog.md", "log.md", "results-archive.md", "speedrun.md"}
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!\w+:)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages and figures from outside docs/, and a page for each example."""
    figures = [path.relative_to(ROOT) for path in (ROOT / "benchmarks/results").rglob("*.png")]
    for path, uri in (PAGES | {path.as_posix(): path.as_posix() for path in figures}).items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for example in (ROOT / "examples").rglob("*.py"):
        name = example.relative_to(ROOT).as_posix()
        text = f"# {name}\n\n```python\n{example.read_text('utf-8')}```\n"
        files.append(File.generated(config, name.replace(".py", ".md"), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Maps links from files of the repository to files of the site."""
    if page.file.src_uri in LAST_IN_SEARCH:
        page.meta["search"] = {"boost": 0.1}
    uris = {uri: path for path, uri in PAGES.items()}
    folder = posixpath.dirname(uris.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def change(link: re.Match[str]) -> str:
        text, target, anchor = link.groups(default="")
        path = posixpath.normpath(posixpath.join(folder, target))
        uri = PAGES.get(path, path.removeprefix("docs/"))
        if path.startswith("examples/"):
            uri = uri.replace(".py", ".md")
        if files.get_file_from_path(uri) is None and (ROOT / path).exists():
            return text
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))}{anchor})"

    return LINK.sub(change, markdown)
