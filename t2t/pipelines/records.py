"""Records of the steps of a pipeline, and the plan that follows from them.

The key of a step is a hash of its program, flags, recipe and inputs; the input of another step
counts by that one's key. A record with this key, and the output, mean that the step is finished.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t2t.config.fields import ConfigError, flatten
from t2t.config.recipes import load_recipe
from t2t.config.variants import import_plugins
from t2t.evaluation.load_models import identify_code
from t2t.pipelines.steps import PROGRAMS, Pipeline, Step
from t2t.storage.atomic_files import list_files, write_file
from t2t.storage.file_facts import recall, remember
from t2t.storage.paths import find_version
from t2t.training.provenance import hash_code

RECORD = "record.json"
_FACTS = ".inputs"  # the folder of hashes of inputs from outside, kept while they do not change
# Of a run that is an input: what changes when it is used, and not by training.
_OTHERS = ("evaluations", "tensorboard", "lock", "ledger.jsonl", "metrics.jsonl")


@dataclasses.dataclass
class Record:
    """The inputs, starts and cost of a step, as its record.json holds them."""

    key: str
    facts: dict[str, Any]  # what the key is a hash of
    command: list[str] = dataclasses.field(default_factory=list)
    # of each start: begun (date), seconds, core_seconds, status (None: it was cut off)
    starts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    finished: str = ""  # date
    bytes: int = 0  # of the output
    # the code with which it began; it is no part of the key, which a new version does not change
    code: dict[str, Any] = dataclasses.field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes the record into the folder of its step."""
        write_file(folder / RECORD, json.dumps(vars(self), indent=1) + "\n")

    def sum_up(self, name: str) -> float:
        """The sum of "seconds" or "core_seconds" over all starts."""
        return math.fsum(start[name] for start in self.starts)


def read_record(folder: Path) -> Record | None:
    """Returns the record of a step; None if there is none.

    Raises:
        ConfigError: it is damaged.
    """
    path = folder / RECORD
    try:
        return Record(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise ConfigError(
            f"{path} is damaged; remove its folder, and the step runs again"
        ) from None


def measure_files(output: Path) -> int:
    """The bytes of a file, or of all files in a folder; 0 if it does not exist."""
    files = list_files(output) if output.is_dir() else [output]
    return sum(each.stat().st_size for each in files if each.exists())


@dataclasses.dataclass(frozen=True)
class Work:
    """The plan for a step: skip, run or continue it, and why."""

    step: Step
    action: str  # "none" (it is finished), "run" or "continue"
    reason: str
    record: Record  # the one that is kept from now on
    is_aside: bool = False  # what is there is of other settings, and is put aside


def plan(pipeline: Pipeline) -> dict[str, Work]:
    """Returns what is to be done for each step, and why.

    Raises:
        ConfigError: an input does not exist, or a record is damaged.
    """
    found: dict[str, Work] = {}
    for step in pipeline.steps.values():
        keys = {name: found[name].record.key for name in step.needs}
        facts = _find_facts(pipeline, step, keys, read_record(pipeline.find_folder(step.name)))
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        new = Record(key, facts, code=_find_code(step.program))
        found[step.name] = find_work(pipeline, step, new)
    return found


def find_work(pipeline: Pipeline, step: Step, new: Record) -> Work:
    """Compares the record of a step with the one that it would get now."""
    old = read_record(pipeline.find_folder(step.name))
    if old is None:
        return Work(step, "run", "not begun", new)
    if old.key != new.key:
        return Work(step, "run", "; ".join(_list_changes(old.facts, new.facts)), new, is_aside=True)
    if not old.finished:
        resumes = PROGRAMS[step.program].resumes
        if resumes and step.program != "train" and old.code != new.code:  # training decides itself
            reason = "not finished, and t2t or a package has another version"
            return Work(step, "run", reason, new, is_aside=True)
        return Work(step, "continue" if resumes else "run", "not finished", old)
    if not (output := pipeline.find_output(step.name)).exists():
        reason = f"{output} is missing"
        return Work(step, "run", reason, dataclasses.replace(old, finished="", code=new.code))
    return Work(step, "none", "finished", old)


@functools.cache
def _find_code(program: str) -> dict[str, Any]:
    return identify_code((), [f"t2t.{program}"])


def _find_facts(
    pipeline: Pipeline, step: Step, keys: Mapping[str, str], old: Record | None
) -> dict[str, Any]:
    """Returns all that the output of a step depends on, as JSON reads it back."""
    facts: dict[str, Any] = {"program": step.program, "flags": dict(step.flags), "steps": keys}
    recipe = str(step.flags.get("config", ""))
    known = recipe and "{" not in recipe  # else it may read a run that is not there yet
    facts["recipe"] = flatten(load_recipe(recipe)) if known else {}
    facts["inputs"] = {
        f"{name}={path}": _hash_input(path, pipeline.workdir / _FACTS)
        for name, path in step.list_inputs(facts["recipe"])
    } | _hash_plugins(step.list_plugins(facts["recipe"]), old)
    copied: dict[str, Any] = json.loads(json.dumps(facts, default=str))
    return copied


def _hash_plugins(modules: Iterable[str], old: Record | None) -> dict[str, str]:
    """The SHA-256 of each plugin's source; of one that is not here that of the record."""
    found = {}
    for name in modules:
        try:
            import_plugins([name])
            found[f"plugins={name}"] = hash_code([name], ())
        except ConfigError:  # the checks refuse it if the step has to run
            found[f"plugins={name}"] = old.facts["inputs"].get(f"plugins={name}", "") if old else ""
    return found


def _hash_input(path: Path, facts: Path) -> str:
    """The SHA-256 of a file, or of all files in a folder but those of `_OTHERS`."""
    if path.is_dir():
        inner = sorted(each for each in path.rglob("*") if each.is_file())
        parts = [(each.relative_to(path), each) for each in inner]
        lines = [
            f"{name} {_hash_input(p, facts)}"
            for name, p in parts
            if name.parts[0] not in _OTHERS and "__pycache__" not in name.parts
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if known := recall(facts, path):
        return str(known["sha256"])
    version = find_version(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if facts.parent.exists():
        remember(facts, path, {"sha256": digest}, version)
    return digest


def _list_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each fact that differs."""
    if old["program"] != new["program"]:
        yield f"program: {old['program']} -> {new['program']}"
    for section, words in (("steps", "step {} changed"), ("inputs", "{} changed")):
        before, after = old.get(section, {}), new.get(section, {})
        names = [name for name in after if before.get(name) != after[name]]
        yield from (words.format(name) for name in names)
    for section in ("flags", "recipe"):
        before, after = old.get(section, {}), new.get(section, {})
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                shown = "--" * (section == "flags")
                yield f"{shown}{name}: {before.get(name)} -> {after.get(name)}"
