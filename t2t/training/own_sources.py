"""The source of the user's own modules that a plugin or a recipe runs, found without running them.

Imports are read from the source, those within functions and under conditions, too. A module is the
user's own if it belongs neither to Python nor to t2t and is in no site-packages: versions of
packages and the code of t2t are recorded by themselves (`provenance.py`).
"""

import ast
import hashlib
import importlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

_INSTALLED = {"site-packages", "dist-packages"}  # folders of packages


class _Module(NamedTuple):
    """A module by its full name, and its file."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        return self.path.stem == "__init__"

    @property
    def key(self) -> str:
        """The path below `root`; of a file that is run by its path only the ending."""
        file = f"/{self.path.name}" if self.is_package else "".join(self.path.suffixes)
        return f"{self.name.replace('.', '/')}{file}"

    @property
    def root(self) -> Path:
        """The folder of PYTHONPATH that it is in."""
        return self.path.parents[self.name.count(".") + self.is_package]


def read_sources(plugins: Sequence[str]) -> dict[str, bytes]:
    """Returns the source of imported plugins and of own modules that they import.

    Keys are paths below a folder of PYTHONPATH. If a plugin is a package, all of its modules count;
    if it is in one, so does that one's `__init__.py`. A module without a file, such as one of a
    notebook, has none.
    """
    found = list[_Module]()
    for plugin in plugins:
        *packages, _ = itertools.accumulate(plugin.split("."), "{}.{}".format)
        modules = {name: sys.modules.get(name) for name in packages} | {plugin: sys.modules[plugin]}
        for name, module in modules.items():
            if file := getattr(module, "__file__", None):
                found.append(_Module(name, Path(file).absolute()))
        if found and found[-1].name == plugin and found[-1].is_package:
            found += _list_members(found[-1])
    return _read(found)


def read_imports(path: Path) -> dict[str, bytes]:
    """Returns the source of own modules that a file, such as a recipe, imports or runs."""
    file = _Module("", path.absolute())
    found = _read([file])
    del found[file.key]
    return found


def hash_sources(sources: Mapping[str, bytes]) -> str:
    """Returns a SHA-256 of names and contents of files."""
    digest = hashlib.sha256()
    for name, content in sources.items():
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _read(modules: Iterable[_Module]) -> dict[str, bytes]:
    """Returns the source of modules and of all that they import, sorted by path."""
    importlib.invalidate_caches()
    sources, left = dict[str, bytes](), [*modules]
    while left:
        module = left.pop()
        if module.key not in sources:
            sources[module.key] = module.path.read_bytes()
            left += _list_imported(module, sources[module.key])
    return dict(sorted(sources.items()))


def _list_members(package: _Module) -> Iterator[_Module]:
    """Yields all modules in the folder of a package, and in those below."""
    folder = package.path.parent
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        inner = parts[:-1] if parts[-1] == "__init__" else parts
        yield _Module(".".join((package.name, *inner)), path)


def _list_imported(module: _Module, source: bytes) -> Iterator[_Module]:
    """Yields the own modules that a source imports, and files beside it that it may run."""
    if module.path.suffix != ".py":  # compiled
        return
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # of a branch for another version of Python
        return
    package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    for node in ast.walk(tree):
        names = list[str]()
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                base = "." * node.level + f"{node.module}." * bool(node.module)
                names = [f"{base}{alias.name}" for alias in node.names]
            case ast.Call(
                func=ast.Name(id=call) | ast.Attribute(attr=call),
                args=[ast.Constant(value=str(name)), *_],
            ) if call in ("import_module", "__import__"):
                names = [name]
            case ast.Constant(value=str(name)) if name.endswith(".py"):
                if (path := module.path.parent / name).is_file():  # as runpy.run_path does
                    yield _Module(path.stem.replace(".", "-"), path)
        for name in names:
            inner = name.lstrip(".")
            outer = package[: len(package) - (len(name) - len(inner)) + 1]
            whole = name if inner == name else ".".join((*outer, inner))
            yield from _find_modules(whole, module.root)


def _find_modules(name: str, root: Path) -> Iterator[_Module]:
    """Yields the modules of a dotted name that are the user's own, packages before members.

    `root` is the folder of PYTHONPATH of the module that imports it. `NAME.*` are all members.
    """
    first, *rest = name.split(".")
    if first in ("", "t2t") or first in sys.stdlib_module_names:
        return
    name, spec = first, _find_first(first, root)
    while spec is not None:  # else it is the name of a function
        places = spec.submodule_search_locations
        if spec.has_location and spec.origin:
            if _INSTALLED & {*Path(spec.origin).parts}:
                return
            yield _Module(name, Path(spec.origin))
        if places is None or not rest:
            return
        if rest == ["*"]:
            files = (path for place in places for path in Path(place).glob("*.py"))
            yield from (
                _Module(f"{name}.{path.stem}", path) for path in files if path.stem[0] != "_"
            )
            return
        last = rest.pop(0)
        # Without the packages before it, which may not be imported.
        name, spec = f"{name}.{last}", PathFinder.find_spec(last, [*places])


def _find_first(name: str, root: Path) -> ModuleSpec | None:
    """Returns where a module or package is that is no member of another one.

    It is beside the module that imports it, since the copies of a run's plugins are on the path
    only while they are imported (`variants.open_plugins`), or else where Python looks.
    """
    beside = PathFinder.find_spec(name, [str(root)])
    if beside and beside.has_location:
        return beside
    found = (finder.find_spec(name, None) for finder in sys.meta_path)  # of editable packages, too
    return next(filter(None, found), beside)
