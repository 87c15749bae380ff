"""The provenance of a run: `ledger.jsonl` has one line for each start of its training.

A line records what determines the results: the command, config fields that are not default, the
revision of the code, hashes of texts and vocabulary, versions of packages, and the devices.

`RUN/plugins/` has the source of the run's plugins, which are modules of the user's that register
variants (t2t/config/variants.py): those that the config names, all modules of a package that it
names, and the user's own modules that these import.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t2t.config.fields import Config, ModelConfig
from t2t.config.files import overrides
from t2t.config.variants import BEGAN, COPIES
from t2t.data.corpus import Corpus
from t2t.data.tokenizer import Vocabulary
from t2t.model.parameters import Params
from t2t.ops.select_kernels import choose_policy, list_kernels
from t2t.runtime.distributed import is_first
from t2t.storage.atomic_files import explain_write_errors, list_files, write_file
from t2t.training.own_sources import hash_sources, read_sources
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)

IMPORTED = "import.json"  # in the directory of an imported run: where the model comes from

SOURCE_ROOT = Path(__file__).parents[2]  # the checkout, or site-packages when installed
PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece",
    "tensorflow-datasets",
)  # fmt: skip
_CODE = ("t2t", "configs")  # folders of SOURCE_ROOT with files that affect results
_SUMMARIZED = ("revision", "changed", "code", "seed", "command")
_IMPORT = re.compile(r"^ *from (t2t[\w.]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
_ANY_IMPORT = re.compile(r"^ *(?:import (\w+)|from (\w+)[\w.]* import )", re.MULTILINE)
_PINNED = re.compile(r"([\w-]+)[^;]*[<=]=")  # a requirement such as "jaxlib<=0.11.2,>=0.11.2"
_ENVIRONMENT = ("XLA_", "JAX_", "LIBTPU_")  # prefixes of environment variables that are recorded


def record_compute(model: ModelConfig) -> dict[str, str]:
    """Returns what the ledger records of the dtypes in which the current mesh's devices compute."""
    policy = choose_policy(model)
    return {"activations": str(policy.dtype), "products": policy.describe_products()}


def record_corpora(parts: Sequence[Corpus]) -> list[dict[str, Any]]:
    """Returns what the ledger records of the corpora of a split."""
    return [
        {"name": part.name, "pairs": len(part), "sha256": part.fingerprint()}
        | ({"dropped": dict(part.dropped)} if part.dropped else {})
        for part in parts
    ]


def record_start(
    workdir: Path,
    config: Config,
    vocabulary: Vocabulary,
    corpora: Mapping[str, Sequence[Corpus]],
    step: int,
    initial: Mapping[str, Any] | None = None,
    teachers: Sequence[Mapping[str, Any]] = (),
    plan: Mapping[str, Any] = {},
) -> None:
    """Appends a line for this start to the ledger, and keeps the plugins' source; in process 0.

    `step` is that of the checkpoint that training continues from, or 0, and `initial` is the origin
    of the parameters, if they are of another run; later starts repeat it. `teachers` are the models
    that the loss reads, each with the "sha256" of its parameters. `plan` has
    further facts about the batches.

    Raises:
        RunError: the run directory cannot be written, or the teachers are not those of the start
            before.
    """
    if not is_first():
        return
    described = {split: record_corpora(parts) for split, parts in corpora.items()}
    entry = {
        "date": now(),
        "step": step,
        "command": shlex.join(sys.orig_argv),
        **find_revision(config.plugins),
        "config": overrides(config),
        "seed": config.seed,
        "corpora": described,
        "vocabulary": vocabulary.fingerprint(),
        "versions": find_versions(PACKAGES),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            # "device" says what JAX_PLATFORMS led to; t2t may have set it itself
            if name.startswith(_ENVIRONMENT) and name != "JAX_PLATFORMS"
        },
        "compute": record_compute(config.model),
        "operations": list_kernels(config.model),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
    }
    if initial is None and step:
        initial = read_last_start(workdir).get("initial")
    if initial:
        entry["initial"] = initial
    if teachers:
        entry["teachers"] = [*teachers]
    entry |= {name: value for name, value in plan.items() if value}
    if step:  # nothing was trained with what a start that failed has kept
        check_plugins(workdir, config.plugins)
        _check_teachers(workdir, teachers)
    path = workdir / "ledger.jsonl"
    with explain_write_errors(RunError, path):
        save_plugins(workdir, config.plugins)
        before = path.read_bytes() if path.exists() else b""
        write_file(path, before + json.dumps(entry).encode() + b"\n")


def _check_teachers(workdir: Path, teachers: Sequence[Mapping[str, Any]]) -> None:
    """Raises `RunError` if teachers have other parameters than at the last start."""
    before = read_last_start(workdir).get("teachers", [])
    for old, new in zip(before, teachers, strict=False):
        if old["sha256"] != new["sha256"]:
            raise RunError(
                f"{workdir} was trained with the teacher {old['run']}:{old['checkpoint']}, sha256 "
                f"{old['sha256'][:16]}, but {new['run']}:{new['checkpoint']} has "
                f"{new['sha256'][:16]}; restore that checkpoint, or choose another --workdir"
            )


def read_ledger(workdir: Path) -> list[dict[str, Any]]:
    """Returns the entries of all starts in order, without damaged lines."""
    path = workdir / "ledger.jsonl"
    entries = []
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            _log.warning("%s, line %d: left out, since it is damaged", path, number)
    return entries


def read_last_start(workdir: Path) -> dict[str, Any]:
    """Returns the entry of the last start; empty if the ledger has none."""
    return (read_ledger(workdir) or [{}])[-1]


def read_import(workdir: Path) -> dict[str, Any] | None:
    """Returns what `t2t.import_model` recorded of a run's source; None if it was trained."""
    path = workdir / IMPORTED
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else None


def find_start(workdir: Path, step: int) -> str:
    """Returns the date of the start of training that wrote the checkpoint of this step.

    It is "" if no ledger tells. A later start from an earlier step writes the checkpoint anew.
    """
    dates = [entry["date"] for entry in read_ledger(workdir) if entry["step"] < step]
    return str(dates[-1]) if dates else ""


def summarize_ledger(workdir: Path) -> dict[str, Any] | None:
    """Returns the part of the ledger that evaluations record; None if there is no ledger."""
    entries = read_ledger(workdir)
    if not entries:
        return None
    last = {name: entries[-1].get(name) for name in _SUMMARIZED}
    return {"started": entries[0]["date"], "starts": len(entries)} | last


def now() -> str:
    """Returns the current time in UTC, to the millisecond, since evaluations are ordered by it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns the versions of Python and of these packages, as far as they are installed."""
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = _find_version(name)
    return versions | {"python": platform.python_version()}


_find_version = functools.cache(importlib.metadata.version)  # which reads the whole METADATA


def find_revision(plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the revision of the running code: {"revision", "changed", "code"}.

    The first two are those of `find_commit`. `code` is the result of `hash_code`, which needs no
    git and depends on the contents of the files.
    """
    return {**find_commit(), "code": hash_code(plugins)}


def find_commit() -> dict[str, Any]:
    """Returns the commit of the running code: {"revision", "changed"}.

    `revision` is the commit of the checkout. Without git it is the commit that `git archive` or the
    installation wrote into the file REVISION, or None without that file. `changed` lists the files
    in t2t/ and configs/ that differ from the commit; it is None without git.
    """
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != SOURCE_ROOT.resolve():
        return {"revision": _read_shipped_revision(), "changed": None}
    status = _git("status", "--porcelain", "--", *_CODE)
    changed = None if status is None else [line.strip() for line in status.splitlines()]
    return {"revision": _git("rev-parse", "HEAD"), "changed": changed}


def hash_code(plugins: Sequence[str] = (), parts: Sequence[str] = _CODE) -> str:
    """Returns a SHA-256 of names and contents of modules of t2t, and of `read_sources(plugins)`.

    It includes files that git does not track. It is the same in a checkout and in an installation
    of it. `parts` are files and folders of the checkout.
    """
    # An installation has configs/ in t2t/. Its SOURCE_ROOT also holds packages of other projects.
    installed = (SOURCE_ROOT / "t2t" / "configs").is_dir()
    places = [SOURCE_ROOT / part for part in parts if not (installed and part == "configs")]
    files = sorted(
        (re.sub("^t2t/configs/", "configs/", path.relative_to(SOURCE_ROOT).as_posix()), path)
        for place in places
        for path in ([place] if place.suffix == ".py" else place.rglob("*.py"))
    )
    return hash_sources({name: path.read_bytes() for name, path in files} | read_sources(plugins))


def hash_params(params: Params) -> str:
    """Returns a SHA-256 of all parameters: their names, shapes and values."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(params):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype}{array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@functools.cache
def list_code(*modules: str) -> tuple[str, ...]:
    """Returns the files of these modules and of all modules of t2t that they import, for `parts`.

    Imports within functions count, too; so does what those modules import in turn.
    """
    found: dict[str, Path] = {}
    left = [*modules]
    while left:
        name = left.pop()
        if name in found or not name.startswith("t2t."):
            continue
        place = SOURCE_ROOT / name.replace(".", "/")
        files = place.with_suffix(".py"), place / "__init__.py"
        path = next(filter(Path.exists, files), None)
        if path is None:  # it is the name of a function
            continue
        found[name] = path
        # The lines are read as ruff formats them; a parser would take ten times as long.
        for module, listed, rest in _IMPORT.findall(path.read_text("utf-8")):
            names = re.findall(r"\w+", listed or rest)
            left += [module, *(f"{module}.{each}" for each in names)]
    return tuple(sorted(path.relative_to(SOURCE_ROOT).as_posix() for path in found.values()))


def has_changed(files: Iterable[str]) -> bool:
    """Returns whether one of these files, as `list_code` returns them, is newer than the process.

    Then it may differ from what this process has imported.
    """
    return any((SOURCE_ROOT / file).stat().st_mtime > BEGAN for file in files)


def identify_code(plugins: Sequence[str], modules: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the code that translates and scores, as a passport and other results record it.

    "code" has the SHA-256 of `modules` with all that they import of t2t, and of the plugins'
    source; "versions" those of the packages that are imported there.
    """
    code = {"t2t": hash_code((), list_code(*modules)), "plugins": hash_code(plugins, ())}
    return {"code": code, "versions": find_imported_versions(*modules)}


@functools.cache
def find_imported_versions(*modules: str) -> dict[str, str]:
    """Returns the versions of the packages that these modules and all that they import of t2t need.

    Imports within functions count, too, if the package is installed. JAX computes by further
    packages, which it pins: jaxlib and, on accelerators, libtpu or a plugin.
    """
    texts = [(SOURCE_ROOT / file).read_text("utf-8") for file in list_code(*modules)]
    named = {one or other for text in texts for one, other in _ANY_IMPORT.findall(text)}
    imported = named - sys.stdlib_module_names - {"t2t"}
    versions = find_versions(sorted(imported))  # most packages have the name of their module
    for name in sorted(imported - versions.keys()):
        # Others begin with it, as orbax-checkpoint. `packages_distributions` takes 0.2 s.
        found = (path for place in sys.path for path in Path(place).glob(f"{name}_*.dist-info"))
        versions |= find_versions(path.name.split("-")[0].replace("_", "-") for path in found)
    pinned = map(_PINNED.match, importlib.metadata.requires("jax") or ())
    return versions | find_versions(match[1] for match in pinned if match)


def identify_programs(modules: Sequence[str], facts: Hashable) -> str:
    """Returns the identity of `SavedPrograms` for functions of these modules.

    `facts` are what these functions depend on beside their code, such as a config. It is "" if the
    code may be another one: a file that has changed since this process began is not what it has
    imported.
    """
    if has_changed(list_code(*modules)):
        return ""
    return hashlib.sha256(repr((identify_code((), modules), facts)).encode()).hexdigest()


def _read_shipped_revision() -> str | None:
    """Returns the commit in the file REVISION of an archive or an installation."""
    for path in (SOURCE_ROOT / "t2t" / "REVISION", SOURCE_ROOT / "REVISION"):
        # In a checkout the file holds git's placeholder "$Format:%H$" instead of a commit.
        if path.exists() and not (text := path.read_text("utf-8").strip()).startswith("$"):
            return text or None
    return None


def _git(*arguments: str) -> str | None:
    """Runs git without taking locks, in anybody's checkout; returns its output, or None."""
    trusted = f"safe.directory={SOURCE_ROOT}"
    command = ["git", "--no-optional-locks", "-c", trusted, "-C", str(SOURCE_ROOT), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.rstrip("\n")


def save_plugins(workdir: Path, plugins: Sequence[str]) -> None:
    """Writes the plugins' source to the run directory, in place of an earlier one.

    Raises:
        OSError: it cannot be written.
    """
    folder, sources = workdir / COPIES, read_sources(plugins)
    for path in list_files(folder):
        if path.suffix == ".py" and str(path.relative_to(folder)) not in sources:
            path.unlink()
    for name, content in sources.items():
        write_file(folder / name, content)


def check_plugins(workdir: Path, plugins: Sequence[str]) -> None:
    """Warns of plugins that differ from those that the run was last trained with."""
    for name, source in read_sources(plugins).items():
        if (copy := workdir / COPIES / name).exists() and copy.read_bytes() != source:
            _log.warning(
                "plugins: %s is not the source that %s was trained with, so results may differ; to "
                "use the run's own, leave --plugins out and add --trust_plugins",
                name, workdir,
            )  # fmt: skip
