"""The directory of a sweep: whose it is, and how far its runs are.

    sweep.json      what is compared: the config of each run, split, checkpoint, measure
    ROW-seedN/      a run directory; what its programs said is in its output.log
    report.md ...   made from the rest, as often as one likes

A run with an evaluation is finished. Nothing else is remembered, so a sweep may be killed at any
moment.
"""

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from t2t.config.fields import Config, flatten
from t2t.storage.atomic_files import write_file
from t2t.sweeps.sweep_rows import Run
from t2t.training.run_directory import RunError

EVALUATION = "sweep"  # what the evaluation that finishes a run is called
PLACES = ("mesh.", "data.directory", "data.cache_directory")  # where and how, not what


@dataclasses.dataclass(frozen=True)
class EvaluationProtocol:
    """How each run is scored, and by what the rows are judged."""

    split: str
    checkpoint: str
    measure: str = "bleu"


def find_score(workdir: Path, run: Run) -> Path:
    """Where the evaluation is that finishes a run."""
    return workdir / run.name / "evaluations" / f"{EVALUATION}.json"


def find_failure(workdir: Path, run: Run) -> Path:
    """Where it says why a run failed, as long as it was not tried again."""
    return workdir / run.name / "failure.txt"


@contextlib.contextmanager
def lock_sweep(workdir: Path, *, shared: bool) -> Iterator[int]:
    """Makes the directory this sweep's alone, or that of the tasks of one array.

    The lock lasts as long as its descriptor is open anywhere: handed on to the programs of the
    runs, it outlives a sweep that is killed until they end.

    Raises:
        RunError: another sweep holds it, or it cannot be written.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = (workdir / "lock").open("w")
    except OSError as error:
        raise RunError(f"{workdir} cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"another sweep is at work in {workdir}, or a run that a killed one left behind; "
                "wait for its end, or choose another --workdir"
            ) from None
        yield lock.fileno()


def open_sweep(workdir: Path, runs: Sequence[Run], protocol: EvaluationProtocol) -> None:
    """Notes what is compared, or checks that what is there is the same; runs may be added.

    Raises:
        RunError: a run was begun with another config, or runs are scored otherwise.
    """
    path = workdir / "sweep.json"
    wanted = {run.name: _flatten(run.config) for run in runs}
    there: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    changed = [
        f"--{name}: {there[name]!r} -> {value!r}"
        for name, value in vars(protocol).items()
        if name != "measure" and there.get(name, value) != value  # every measure is there
    ]
    for name in there["runs"].keys() & wanted.keys():
        old = _flatten(Config()) | there["runs"][name]  # a field that is new has its default
        changed += [
            f"{name}: {field}: {old[field]!r} -> {value!r}"
            for field, value in wanted[name].items()
            if old[field] != value and not field.startswith(PLACES)
        ]
    if changed:
        raise RunError(
            f"{workdir} holds another sweep:\n  "
            + "\n  ".join(sorted(changed))
            + "\nchoose another --workdir, or the old values to continue that one"
        )
    content = vars(protocol) | {"runs": there["runs"] | wanted}
    write_file(path, json.dumps(content, indent=2) + "\n")


def list_begun(workdir: Path, runs: Sequence[Run]) -> list[Run]:
    """Those that this directory was ever asked for."""
    path = workdir / "sweep.json"
    if not path.exists():
        raise RunError(f"{workdir} holds no sweep; leave out --report to begin one")
    names = json.loads(path.read_text())["runs"]
    return [run for run in runs if run.name in names]


def _flatten(config: Config) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists there."""
    flat: dict[str, Any] = json.loads(json.dumps(flatten(config)))
    return flat
