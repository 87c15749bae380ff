"""What made a run: a line of `ledger.jsonl` for each start of its training.

Only what cannot be read from the rest of the run directory is here: code, data, packages, machine.
"""

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
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t2t.config.fields import Config
from t2t.config.files import overrides
from t2t.data.corpus import Corpus
from t2t.data.tokenizer import Vocabulary
from t2t.ops.choose import choose_policy, describe_choice
from t2t.runtime.distributed import is_first
from t2t.training.run_directory import RunError, list_steps

_log = logging.getLogger(__name__)

CHECKOUT = Path(__file__).parents[2]  # or where t2t is installed, with the recipes inside of it
PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece",
    "tensorflow-datasets",
)  # fmt: skip
_CODE = ("t2t", "configs")  # folders of the checkout that decide what is computed
_TRACED = ("revision", "changed", "code", "seed", "command")
_ENVIRONMENT = ("XLA_", "JAX_", "LIBTPU_")  # variables so named change what is computed


_OTHER_TEXT = {
    "train": (
        "a run continues with the batches of the text it began with; restore that text, or choose "
        "another --workdir"
    ),
    "validation": (
        "its checkpoints have validation scores, and scores of different texts do not say which is "
        "best; restore that text, choose another --workdir, or score the new text with "
        "`python -m t2t.evaluate --workdir=RUN --src=FILE --ref=FILE`"
    ),
}


def check_corpora(
    workdir: Path, corpora: Mapping[str, Sequence[Corpus]], measures: Collection[str]
) -> None:
    """Refuses to continue a run on other text than that of its last start.

    The training text is bound by any checkpoint, the validation text by one with a score on it
    (`checkpoint.list_measures`). The text alone counts here, not where it lies.

    Raises:
        RunError: the text of a split has changed.
    """
    if not list_steps(workdir):
        return
    entries = read_ledger(workdir)
    if not entries:
        _log.warning("%s has no ledger: that its text is still the same is not checked", workdir)
    for split, parts in corpora.items():
        if split == "validation" and not measures:
            continue
        before = [entry["corpora"][split] for entry in entries if split in entry["corpora"]][-1:]
        found = _describe_corpora(parts)
        if before and [part["sha256"] for part in before[0]] != [part["sha256"] for part in found]:
            raise RunError(
                f"{workdir} was started with another {split} text:\n"
                f"  {_name_corpora(before[0])}\ninstead of\n  {_name_corpora(found)}\n"
                + _OTHER_TEXT[split]
            )


def _describe_corpora(parts: Sequence[Corpus]) -> list[dict[str, Any]]:
    return [{"name": part.name, "pairs": len(part), "sha256": part.fingerprint()} for part in parts]


def _name_corpora(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n  ".join(
        f"{part['name']}: {part['pairs']} pairs, sha256 {part['sha256'][:16]}" for part in parts
    )


def record_start(
    workdir: Path,
    config: Config,
    vocabulary: Vocabulary,
    corpora: Mapping[str, Sequence[Corpus]],
    step: int,
) -> None:
    """Appends this start, from process 0; `corpora` by split, `step` that of the checkpoint.

    Raises:
        RunError: the run directory cannot be written.
    """
    if not is_first():
        return
    policy = choose_policy(config.model)
    entry = {
        "date": now(),
        "step": step,
        "command": shlex.join(sys.orig_argv),
        **find_revision(config.plugins),
        "config": overrides(config),
        "seed": config.seed,
        "corpora": {split: _describe_corpora(parts) for split, parts in corpora.items()},
        "vocabulary": vocabulary.fingerprint(),
        "versions": find_versions(PACKAGES),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_ENVIRONMENT)
        },
        "compute": {
            "activations": str(policy.dtype),
            "products": policy.describe_products(),
        },
        "operations": describe_choice(config.model),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
    }
    path = workdir / "ledger.jsonl"
    try:
        with path.open("ab") as file:
            if file.tell() and not path.read_bytes().endswith(b"\n"):
                file.write(b"\n")  # behind a line that a killed process did not finish
            file.write(json.dumps(entry).encode() + b"\n")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None


def read_ledger(workdir: Path) -> list[dict[str, Any]]:
    """All starts in order; none of a run that is older than the ledger."""
    path = workdir / "ledger.jsonl"
    entries = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], start=1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            _log.warning("%s, line %d: left out, for it is damaged", path, number)
    return entries


def trace(workdir: Path) -> dict[str, Any] | None:
    """What a score says of its run; None where the run has no ledger."""
    entries = read_ledger(workdir)
    if not entries:
        return None
    last = {name: entries[-1].get(name) for name in _TRACED}
    return {"started": entries[0]["date"], "starts": len(entries)} | last


def now() -> str:
    """The time, UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Of these packages, and of Python."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return versions | {"python": platform.python_version()}


def find_revision(plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Commit of the checkout that runs, its programs and recipes that differ, and a hash of all.

    The hash covers the files of the imported `plugins`, too.

    The hash tells two changes of the same files apart, and needs no git. Without git the commit is
    the one that `git archive` or the installation wrote into REVISION, and `changed` is None;
    `revision` is None, too, where there is neither.
    """
    code = hash_code(plugins)
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != CHECKOUT.resolve():
        return {"revision": _read_shipped_revision(), "changed": None, "code": code}
    status = _git("status", "--porcelain", "--", *_CODE)
    changed = None if status is None else [line.strip() for line in status.splitlines()]
    return {"revision": _git("rev-parse", "HEAD"), "changed": changed, "code": code}


def hash_code(plugins: Sequence[str] = ()) -> str:
    """SHA-256 of all programs, recipes and plugins with their names, known to git or not.

    It is the same in a checkout and where that was installed.
    """
    installed = (CHECKOUT / "t2t" / "configs").is_dir()  # what is beside it is not ours
    folders = [CHECKOUT / part for part in (_CODE[:1] if installed else _CODE)]
    files = sorted(
        (re.sub("^t2t/configs/", "configs/", path.relative_to(CHECKOUT).as_posix()), path)
        for folder in folders
        for path in folder.rglob("*.py")
    )
    sources = {name: getattr(sys.modules[name], "__file__", None) for name in plugins}
    files += [(name, Path(source)) for name, source in sources.items() if source]
    digest = hashlib.sha256()
    for name, path in files:
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _read_shipped_revision() -> str | None:
    for path in (CHECKOUT / "t2t" / "REVISION", CHECKOUT / "REVISION"):
        if path.exists() and not (revision := path.read_text().strip()).startswith("$"):
            return revision or None
    return None


def _git(*arguments: str) -> str | None:
    """What it prints; None where it fails. It takes no lock that another git would wait for."""
    command = ["git", "--no-optional-locks", "-C", str(CHECKOUT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.rstrip("\n")
