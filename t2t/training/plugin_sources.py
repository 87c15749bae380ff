"""The source of a run's plugins: training keeps it in `RUN/plugins/`, and a reader compares it.

A plugin is a module of the user's that registers variants (t2t/config/variants.py). Kept are the
modules that the config names, and all modules of a package that it names; not what they import.
"""

import hashlib
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2t.config.variants import COPIES
from t2t.storage.atomic_files import make_folder, write_file

_log = logging.getLogger(__name__)


def read_sources(plugins: Sequence[str]) -> dict[str, bytes]:
    """Returns the source of the imported plugins by its path below a folder of PYTHONPATH.

    A module without a file, such as one of a notebook, has none.
    """
    sources = {}
    for name in plugins:
        file = getattr(sys.modules[name], "__file__", None)
        if not file:
            continue
        path, stem = Path(file), name.replace(".", "/")
        if path.name == "__init__.py":
            for each in sorted(path.parent.rglob("*.py")):
                relative = each.relative_to(path.parent).as_posix()
                sources[f"{stem}/{relative}"] = each.read_bytes()
        else:
            sources[f"{stem}.py"] = path.read_bytes()
    return sources


def hash_sources(sources: Mapping[str, bytes]) -> str:
    """Returns a SHA-256 of names and contents."""
    digest = hashlib.sha256()
    for name, content in sources.items():
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def save_plugins(workdir: Path, plugins: Sequence[str]) -> None:
    """Writes the plugins' source to the run directory, in place of an earlier one.

    Raises:
        OSError: it cannot be written.
    """
    for name, content in read_sources(plugins).items():
        path = workdir / COPIES / name
        make_folder(path.parent)
        write_file(path, content)


def copy_plugins(workdir: Path, target: Path) -> None:
    """Copies the source that a run keeps to another run directory."""
    folders = [workdir / COPIES] if (workdir / COPIES).exists() else []
    for folder in folders:  # one level at a time, since buckets have no recursive glob
        make_folder(target / folder.relative_to(workdir))
        for path in folder.iterdir():
            if path.is_dir():
                folders.append(path)
            else:
                write_file(target / path.relative_to(workdir), path.read_bytes())


def check_plugins(workdir: Path, plugins: Sequence[str]) -> None:
    """Warns of plugins that differ from those that the run was last trained with."""
    for name, content in read_sources(plugins).items():
        path = workdir / COPIES / name
        if path.exists() and path.read_bytes() != content:
            _log.warning(
                "plugins: %s is not the source that %s was trained with, so results may differ; to "
                "use the run's own, leave --plugins out and add --trust_plugins",
                name, workdir,
            )  # fmt: skip
