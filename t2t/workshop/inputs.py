"""Finds and hashes the inputs of a step from outside: files, folders, runs and the user's code.

The type of a flag, or of a field of the config, says whether its value is an input. Any other text
that is the path of a file or folder counts, too, such as an option of a plugin.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t2t.config.field_types import INPUT, LOCAL, WRITTEN, Role
from t2t.config.fields import FIELD_TYPES, Config, ConfigError, DataConfig, flatten
from t2t.config.fitted_config import FittedConfig
from t2t.config.mixture import read_entry
from t2t.config.recipes import RECIPES, find_recipe, load_recipe
from t2t.config.requests import RUN
from t2t.config.variants import (
    find_options,
    find_role,
    find_type,
    import_plugins,
    list_options,
)
from t2t.data.directions import list_tasks
from t2t.storage.file_facts import recall, remember
from t2t.storage.paths import find_version, hash_file
from t2t.training.own_sources import hash_sources, read_imports, read_sources
from t2t.workshop.steps import PLACEHOLDER, Step, Workshop, find_flags, find_paths, list_texts

OF_MACHINES = {Role.DEVICES, Role.STORE}
OF_SEARCH = {Role.SEARCH, Role.SEARCH_BATCHES}
_FACTS = ".inputs"  # the folder of hashes of inputs from outside, kept while they do not change
# Files of a run that are not hashed, since they change when the run is used.
_NOT_HASHED = ("evaluations", "tensorboard", "lock", "ledger.jsonl", "metrics.jsonl", "stop.json")


def read_step_recipe(workshop: Workshop, step: Step, *, ready: bool) -> Config | None:
    """Returns a step's recipe; None: it has none, or one made from runs that are not `ready`.

    Raises:
        ConfigError: it cannot be read.
    """
    if "config" not in step.flags or (_asks_for_steps(step) and not ready):
        return None
    recipe = str(workshop.resolve(step)["config"])
    try:
        return load_recipe(recipe)
    except (OSError, LookupError, ArithmeticError) as error:  # of a run without what it looks for
        raise ConfigError(f"config={recipe}: {type(error).__name__}: {error}") from None


def _asks_for_steps(step: Step) -> bool:
    return bool(PLACEHOLDER.search(str(step.flags.get("config", ""))))


def list_recipe_values(step: Step, recipe: Config | None) -> dict[str, Any]:
    """Returns the values of a recipe, unless they follow from other steps."""
    return {} if recipe is None or _asks_for_steps(step) else flatten(recipe)


def hash_inputs(
    workshop: Workshop, step: Step, recipe: Config | None, old: Mapping[str, str]
) -> dict[str, str]:
    """Returns the SHA-256 of each input of a step, by "flag=path".

    `old` are the hashes in its record. They stand for inputs that cannot be read now: plugins that
    are missing, and the inputs of a recipe made from runs that do not exist yet.

    Raises:
        ConfigError: there is no such file or folder.
    """
    values = {f"config.{name}": value for name, value in flatten(recipe).items()} if recipe else {}
    found = dict[str, str]() if recipe or not _asks_for_steps(step) else dict(old)
    modules = [*_list_plugins(values | dict(step.flags))]
    for name in modules:
        key = f"plugins={name}"
        try:
            import_plugins([name])
            found[key] = hash_sources(read_sources([name]))
        except ConfigError:  # the checks refuse it if the step has to run
            found[key] = old.get(key, "")
    own = {
        f"config.plugin.{name}.{option}": default
        for name in list_options(modules)
        if (kind := find_options(name))
        for option, default in vars(kind()).items()
    }
    found |= _hash_recipe(step, recipe)
    for name, path in list_inputs(workshop, step, own | values | dict(step.flags)):
        key = name if is_of_machine(name) else f"{name}={path}"
        found[key] = _hash_path(path, workshop.workdir)
    return found


def is_of_machine(name: str) -> bool:
    """Returns whether a flag gives a field that says where and on what a program runs."""
    return find_flag_role(name) in OF_MACHINES


def find_flag_role(name: str) -> Role | None:
    """Returns the role of the config's field that a flag gives; None if it gives no such field."""
    field = name.removeprefix("config.")
    return find_role(field) if field in FIELD_TYPES else None


def _list_plugins(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yields the modules of plugins of the config and of the program."""
    for name, text in list_texts(fields):
        if name in ("config.plugins", "plugins"):
            yield from filter(None, text.split(","))


def _hash_recipe(step: Step, recipe: Config | None) -> dict[str, str]:
    """Hashes the user's modules that a recipe imports, and its source if values are still unknown.

    Values are unknown if the recipe is made from a run of another step, or fits itself to its text.
    """
    flag = str(step.flags.get("config", ""))
    path = Path(find_recipe(flag).partition(":")[0])
    if not path.is_file():
        return {}
    sources = {}
    if _asks_for_steps(step) or isinstance(recipe, FittedConfig):
        sources = {"": path.read_bytes()} | read_imports(path)
    elif RECIPES not in path.parents:
        sources = read_imports(path)
    return {f"config={flag}": hash_sources(sources)} if sources else {}


def list_inputs(
    workshop: Workshop, step: Step, fields: Mapping[str, Any]
) -> Iterator[tuple[str, Path]]:
    """Yields flag and path of each file or folder from outside.

    Raises:
        ConfigError: there is no such file or folder.
    """
    known, texts = find_flags(step.program), [*_list_own_texts(fields)]
    directions = tuple(text for name, text in texts if name == "config.data.directions")
    by_tfds = "tfds" in str(fields.get("config.data.source"))
    outputs = [workshop.find_folder(name) for name in step.needs]  # which a recipe may name
    for name, text in texts:
        kind = known[name].kind if name in known else find_type(name.removeprefix("config."))
        notes = kind.notes if kind else ()
        if WRITTEN in notes or (by_tfds and name == "config.data.directory"):
            continue
        required = INPUT in notes or RUN in notes
        may_be = required or LOCAL in notes or name.startswith("config.plugin.") or "/" in text
        # In a recipe's name only the text after the colon may name an input.
        path_text = text.partition(":")[2] if name == "config" else text
        for each in _fill_languages(path_text, directions) if may_be else ():
            for path in _find_inputs(each):
                if path is None and required:
                    raise ConfigError(
                        f"step {step.name}: --{name}={text} does not exist; name a file or folder, "
                        "or the output of another step by {NAME}"
                    )
                if path and not any(map(path.is_relative_to, outputs)):
                    yield name, path


def _list_own_texts(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields name and text as `list_texts`, those of the tasks of a mixture one by one."""
    for name, text in list_texts(fields):
        if name == "config.data.mixture":
            values = {f"config.data.{field}": value for field, value in read_entry(text)[1].items()}
            yield from list_texts(values)
        else:
            yield name, text


def _fill_languages(text: str, directions: tuple[str, ...]) -> list[str]:
    """Returns a name of files once for each of data.directions."""
    data = DataConfig(directions=directions, train_src=(text,))
    return [name for each in list_tasks(data) for name in each.train_src]


def _find_inputs(text: str) -> Iterator[Path | None]:
    """Yields the files and folders that a text names, or None for what is not there.

    It may be a list with commas, in which outputs of steps and names on the Hub do not count.
    """
    for part in [text] if find_paths(text) else text.split(","):
        if part and not (PLACEHOLDER.search(part) or re.match(r"hf:|\w+://", part)):
            found: list[Path | None] = [*_match(part)]
            yield from found or [None]


def _match(text: str) -> list[Path]:
    """The files and folders of a name: a path, a pattern, NAME=PATH or RUN:CHECKPOINT."""
    inner = filter(None, (text.partition("=")[2], text.rpartition(":")[0]))
    return find_paths(text) or next(filter(None, map(_match, inner)), [])


def _hash_path(path: Path, workdir: Path) -> str:
    """The SHA-256 of a file, or of all files in a folder, whose names count, too."""
    if path.is_dir():
        files = ((each.relative_to(path), each) for each in _walk(path, (workdir.resolve(),)))
        lines = [f"{name} {_hash_file(each, workdir)}" for name, each in files]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return _hash_file(path, workdir)


def _walk(folder: Path, left_out: tuple[Path, ...]) -> Iterator[Path]:
    """Yields the files in a folder, and behind its links, except in folders that are left out.

    Left out are the folder of the steps and, so that links end, the folders around a link.
    """
    real = folder.resolve()
    if real in left_out:
        return
    is_run = (folder / "config.json").is_file()
    names = ("__pycache__", *(_NOT_HASHED if is_run else ()))
    for each in sorted(folder.iterdir()):
        if each.name not in names and each.is_dir():
            yield from _walk(each, (*left_out, real))
        elif each.name not in names and each.is_file():
            yield each


def _hash_file(path: Path, workdir: Path) -> str:
    real, facts = path.resolve(), workdir / _FACTS  # a link may lead elsewhere by now
    if known := recall(facts, real):
        return str(known["sha256"])
    version, digest = find_version(real), hash_file(real)
    if workdir.exists():
        remember(facts, real, {"sha256": digest}, version)
    return digest
