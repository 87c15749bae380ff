"""Steps: programs with their flags, which pipelines and sweeps list, and the folder for them.

    teacher = Step("teacher", "train", {"config": "configs/quickstart.py"})
    Step("translations", "translate", {"workdir": teacher, "input": f"{pairs}/train.src"})

A step in a flag stands for what it writes: a run directory, a folder of text or a file. In a text
it is spelt `{teacher}`. Files and runs that a flag names by their own paths are inputs from
outside.

    DIR/NAME/               what the step NAME writes
    DIR/steps/NAME/         its record.json and output.log
    DIR/old/NAME.1/         what it had written before its flags or inputs changed
    DIR/report.md ...       computed from the files above, any number of times
"""

import dataclasses
import functools
import glob
import importlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from t2t.config.field_types import FieldType, InputPath
from t2t.config.fields import FIELD_TYPES, ConfigError, Fields
from t2t.config.files import check_types
from t2t.config.requests import Flag, Request, find_request, list_flags
from t2t.storage.paths import check_new_run_path, make_path


class Program(NamedTuple):
    """How a program of t2t is a step."""

    output: str = ""  # the file that it writes in the folder of the step; empty: the folder itself
    flag: str = "output"  # that names it; empty: the program prints its result
    resumes: bool = False  # the same command continues one that was stopped
    evaluates: bool = False  # its output is an evaluation, of a system that the report shows
    needs_all: bool = True  # False: it starts although steps that it needs have failed


PROGRAMS = {
    "prepare": Program(flag="workdir", resumes=True),
    "train": Program(flag="workdir", resumes=True),
    "import_model": Program(flag="workdir"),
    "write_pairs": Program(),
    "translate": Program(resumes=True),
    "score": Program("scores.txt", ""),
    "evaluate": Program("scores.json", evaluates=True),
    "evaluate_output": Program("scores.json", evaluates=True),
    "export": Program(),
    "choose_trial": Program(needs_all=False),
    "stop_worse": Program(needs_all=False),
}
OLD = "old"  # the folder of what changed steps had written
STEPS = "steps"  # the folder of records and logs
_TAKEN = (OLD, STEPS, "lock")  # other names of folders and files

PLACEHOLDER = re.compile(r"{(\w[^{}]*)}")
_LANGUAGES = ("src", "tgt", "pair")  # placeholders of data.directions


@dataclasses.dataclass(frozen=True)
class Step(Fields):
    """A program, its flags, and the place of its result in the report.

    As the value of a flag, and in an f-string, it stands for what it writes.
    """

    name: str  # of its folder
    program: str  # one of PROGRAMS
    # values by flag, without the flag of the output; a tuple is a flag that is repeated
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # what it writes, if not its own folder: "{run}/scores.json", or the folder "run" of a training
    # that another step continues
    output: str = ""
    # of an evaluation: the name of the system, of which it is a seed; empty: that of the step
    system: str = ""
    against: tuple[str, ...] = ()  # of an evaluation: the systems with which it is compared
    after: tuple[str, ...] = ()  # steps before which it does not start, though it reads nothing

    def __fspath__(self) -> str:
        return f"{{{self.name}}}"

    __str__ = __fspath__

    @property
    def needs(self) -> list[str]:
        """The names of the steps whose outputs this one reads."""
        texts = [*(text for _, text in list_texts(self.flags)), self.output]
        found = (name for text in texts for name in PLACEHOLDER.findall(text))
        return [name for name in dict.fromkeys(found) if name not in _LANGUAGES]


@functools.cache
def find_program(name: str) -> type[Request]:
    """The request of a program of t2t."""
    # By name, since programs are above this layer; they import the library when they run.
    kind = find_request(importlib.import_module(f"t2t.{name}").main)
    assert kind is not None
    return kind


@functools.cache
def find_flags(program: str) -> dict[str, Flag]:
    """The flags of a program, and those that override fields of a config, by their names."""
    own = {flag.name: flag for flag in list_flags(find_program(program)) if flag.name}
    own["flagfile"] = Flag(kind=FieldType.of(InputPath))  # of absl: a file with more flags
    return {f"config.{name}": Flag(kind=kind) for name, kind in FIELD_TYPES.items()} | own


def find_paths(text: str) -> list[Path]:
    """The files and folders of a path, which may be a pattern; none if there is no such path."""
    if not text:
        return []
    try:
        path = Path(text).expanduser().absolute()
        if path.exists():
            return [path]
        return [*map(Path, sorted(glob.glob(str(path))))]  # noqa: PTH207
    except (OSError, RuntimeError, ValueError):  # too long; no such user; a zero byte
        return []


def list_texts(flags: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields flag and value of each text, or path; of a tuple each value."""
    for name, given in flags.items():
        for value in given if isinstance(given, tuple | list) else (given,):
            if isinstance(value, str | os.PathLike):
                yield name, os.fspath(value)


class Workshop:
    """Steps in an order in which each follows those that it needs, and the folder for them."""

    def __init__(self, steps: Sequence[Step], workdir: Path):
        """Sorts the steps.

        Raises:
            ConfigError: two steps have one name, a name or a program is unknown, or steps need each
                other in a circle; or the folder's name has braces.
            PathError: the folder cannot be named in a list of runs.
        """
        check_new_run_path(workdir)
        if PLACEHOLDER.search(str(workdir)):
            raise ConfigError(
                f"--workdir={workdir} has braces, which stand for steps; choose another"
            )
        self.workdir = workdir.absolute()
        named: dict[str, Step] = {}
        for step in steps:
            _check_step(step, named)
            named[step.name] = step
        for step in steps:
            if unknown := [name for name in (*step.needs, *step.after) if name not in named]:
                raise ConfigError(
                    f"step {step.name} needs {{{unknown[0]}}}, which is no step; the steps are "
                    f"{', '.join(named)}, and no other value can have braces"
                )
        try:
            TopologicalSorter({s.name: (*s.needs, *s.after) for s in steps}).prepare()
        except CycleError as error:
            raise ConfigError(
                f"steps need each other in a circle: {' -> '.join(reversed(error.args[1]))}; let "
                "one of them read something else"
            ) from None
        self.steps: dict[str, Step] = {}
        for name in named:
            self._add(name, named)
        self._check_systems()

    def _add(self, name: str, named: Mapping[str, Step]) -> None:
        """Adds a step behind those that it needs; otherwise the order is that of the recipe."""
        if name not in self.steps:
            for each in (*named[name].needs, *named[name].after):
                self._add(each, named)
            self.steps[name] = named[name]

    def _check_systems(self) -> None:
        evaluations = [s for s in self.steps.values() if PROGRAMS[s.program].evaluates]
        systems = {step.system or step.name for step in evaluations}
        for step in self.steps.values():
            if step not in evaluations and (step.system or step.against):
                raise ConfigError(
                    f"step {step.name}: system and against are for evaluations; leave them out"
                )
            if unknown := [name for name in step.against if name not in systems]:
                raise ConfigError(
                    f"step {step.name} is compared with {unknown[0]!r}, which no step evaluates; "
                    f"use {', '.join(sorted(systems))}"
                )

    def find_folder(self, name: str) -> Path:
        """The folder in which a step writes, unless its output lies in that of another step."""
        output = self.steps[name].output
        return self.workdir / (name if PLACEHOLDER.search(output) else output or name)

    def goes_on(self, name: str) -> bool:
        """Returns whether a step continues a training that another one has begun in its folder."""
        earlier = itertools.takewhile(lambda other: other != name, self.steps)
        return self.find_folder(name) in map(self.find_folder, earlier)

    def find_records(self, name: str) -> Path:
        """The folder of a step's record and log."""
        return self.workdir / STEPS / name

    def find_output(self, name: str) -> Path:
        """The output of a step: a file or a folder."""
        step = self.steps[name]
        if step.output:
            is_inside = PLACEHOLDER.search(step.output)  # the folder of another step
            own = self._replace(step.output)
            return make_path(own) if is_inside else self.workdir / own
        return self.workdir / name / PROGRAMS[step.program].output

    def shorten(self, text: str) -> str:
        """Returns a text with `{NAME}` in place of the paths of outputs."""
        for name in sorted(self.steps, key=len, reverse=True):  # one may be the start of another
            text = text.replace(f"{self.find_output(name)}", f"{{{name}}}")
        return text

    def _replace(self, text: str) -> str:
        """Returns a text with the paths of outputs in place of `{NAME}`."""
        return PLACEHOLDER.sub(
            lambda found: found[0] if found[1] in _LANGUAGES else str(self.find_output(found[1])),
            text,
        )

    def resolve(self, step: Step) -> dict[str, Any]:
        """Returns the flags of a step, with paths in place of `{NAME}` and with its output."""

        def replace(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return tuple(map(replace, value))
            return (
                self._replace(os.fspath(value)) if isinstance(value, str | os.PathLike) else value
            )

        flags = {name: replace(value) for name, value in step.flags.items()}
        if flag := PROGRAMS[step.program].flag:
            flags[flag] = str(self.find_output(step.name))
        return flags

    def list_arguments(self, step: Step) -> Iterator[tuple[str, str]]:
        """Yields flag and text of each argument of a step's command."""
        known = find_flags(step.program)
        for name, given in self.resolve(step).items():
            several = isinstance(given, tuple | list)
            for value in (given or ("",)) if several else (given,):
                text = str(value)
                if several and given and name.startswith("config."):
                    text = repr(value)  # the config reads each value of a tuple as Python
                elif "," in text and known.get(name, Flag()).is_joined:
                    # The name of a file is one value of a list, which commas would take apart.
                    text = '"{}"'.format(text.replace('"', '""')) if find_paths(text) else text
                yield name, text

    def make_command(self, step: Step) -> list[str]:
        """Returns the command line of a step."""
        flags = [f"--{name}={text}" for name, text in self.list_arguments(step)]
        return [sys.executable, "-m", f"t2t.{step.program}", *flags]


def _check_step(step: Step, known: Mapping[str, Step]) -> None:
    try:
        check_types(step)
    except ConfigError as error:
        raise ConfigError(f"step {step.name}: {error}") from None
    if not re.fullmatch(r"\w[\w.-]*", step.name) or step.name in (*_TAKEN, *_LANGUAGES):
        raise ConfigError(
            f"step {step.name!r} cannot name a folder; use letters, digits and _.-, but not "
            f"{', '.join((*_TAKEN, *_LANGUAGES))}"
        )
    if step.name in known:
        raise ConfigError(f"two steps write the folder {step.name}; give each a name of its own")
    if step.program not in PROGRAMS:
        raise ConfigError(
            f"step {step.name}: program {step.program!r} is unknown; use {', '.join(PROGRAMS)}"
        )
    flag = PROGRAMS[step.program].flag
    if flag and flag in step.flags:
        raise ConfigError(
            f"step {step.name}: leave out --{flag}, which follows from its name; others read it as "
            f"{{{step.name}}}"
        )
