"""The steps of a pipeline, which a file such as `configs/pipelines/distil.py` lists.

A step is a program with its flags. `{teacher}` in a flag stands for what the step `teacher` writes:
a run directory, a folder of text or a file. Files and runs that a flag names by their own paths are
inputs from outside.
"""

import dataclasses
import functools
import glob
import importlib
import inspect
import os
import re
import runpy
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import GenericAlias
from typing import Any, NamedTuple

from absl.flags import BooleanParser

from t2t.config.field_types import FieldType
from t2t.config.fields import FIELD_TYPES, ConfigError, Fields, explain_attribute, show
from t2t.config.files import check_type
from t2t.config.recipes import find_recipe
from t2t.config.requests import Flag, Request, find_request, list_flags


class Program(NamedTuple):
    """How a program of t2t is a step."""

    output: str  # the file or folder that it writes, in the folder of the step
    flag: str = "output"  # that names it; empty: the program prints its result
    resumes: bool = False  # the same command continues one that was stopped
    evaluates: bool = False  # its output is an evaluation, of a system that the report shows


PROGRAMS = {
    "prepare": Program("run", "workdir", resumes=True),
    "train": Program("run", "workdir", resumes=True),
    "import_model": Program("run", "workdir"),
    "write_pairs": Program("text"),
    "translate": Program("text", resumes=True),
    "score": Program("scores.txt", ""),
    "evaluate": Program("scores.json", evaluates=True),
    "evaluate_output": Program("scores.json", evaluates=True),
    "export": Program("model"),
}
OLD = "old"  # the folder of what changed steps had written
_TAKEN = (OLD, "lock", "report.md", "report.json", "quality.svg")  # in the folder of the steps

PLACEHOLDER = re.compile(r"{(\w[^{}]*)}")
_LANGUAGES = ("src", "tgt", "pair")  # placeholders of data.directions
# How a text becomes a setting of a recipe, by its type.
_READERS: dict[type, Callable[[str], Any]] = {
    str: str, int: int, float: float, bool: BooleanParser().parse,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Step(Fields):
    """A program, its flags, and the place of its result in the report."""

    name: str  # of its folder
    program: str  # one of PROGRAMS
    # values by flag, without the flag of the output; a tuple is a flag that is repeated
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # of an evaluation: the name of the system, of which it is a seed; empty: that of the step
    system: str = ""
    against: tuple[str, ...] = ()  # of an evaluation: the systems with which it is compared

    @property
    def needs(self) -> list[str]:
        """The names of the steps whose outputs this one reads."""
        found = (name for _, text in list_texts(self.flags) for name in PLACEHOLDER.findall(text))
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


class Pipeline:
    """Steps in an order in which each follows those that it needs, and the folder for them."""

    def __init__(self, steps: Sequence[Step], workdir: Path):
        """Sorts the steps.

        Raises:
            ConfigError: two steps have one name, a name or a program is unknown, or steps need each
                other in a circle.
        """
        self.workdir = workdir.absolute()
        named: dict[str, Step] = {}
        for step in steps:
            _check_step(step, named)
            named[step.name] = step
        for step in steps:
            if unknown := [name for name in step.needs if name not in named]:
                raise ConfigError(
                    f"step {step.name} needs {{{unknown[0]}}}, which is no step; the steps are "
                    f"{', '.join(named)}, and no other value can have braces"
                )
        try:
            order = [*TopologicalSorter({s.name: s.needs for s in steps}).static_order()]
        except CycleError as error:
            raise ConfigError(
                f"steps need each other in a circle: {' -> '.join(reversed(error.args[1]))}; let "
                "one of them read something else"
            ) from None
        self.steps = {name: named[name] for name in order}
        self._check_systems()

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
        """The folder of a step."""
        return self.workdir / name

    def find_output(self, name: str) -> Path:
        """The output of a step: a file or a folder."""
        return self.workdir / name / PROGRAMS[self.steps[name].program].output

    def shorten(self, text: str) -> str:
        """Returns a text with `{NAME}` in place of the paths of outputs."""
        for name in self.steps:
            text = text.replace(f"{self.find_output(name)}", f"{{{name}}}")
        return text

    def resolve(self, step: Step) -> dict[str, Any]:
        """Returns the flags of a step, with paths in place of `{NAME}` and with its output."""

        def replace(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return tuple(map(replace, value))
            if not isinstance(value, str | os.PathLike):
                return value
            return PLACEHOLDER.sub(
                lambda found: found[0] if found[1] in _LANGUAGES
                else str(self.find_output(found[1])), os.fspath(value),
            )  # fmt: skip

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
    for name, hint in typing.get_type_hints(Step).items():
        try:
            check_type(name, getattr(step, name), hint)
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
            f"step {step.name}: leave out --{flag}, which the pipeline chooses; others read it as "
            f"{{{step.name}}}"
        )


def read_steps(recipe: str, settings: Sequence[str]) -> list[Step]:
    """Calls `get_steps` of a recipe with settings such as "seeds=0,1,2".

    Raises:
        ConfigError: the file or the function does not exist, a setting is unknown or has the wrong
            type, or the function returns something else than steps.
    """
    path = Path(find_recipe(recipe)).expanduser()
    where = f"--recipe={recipe}"
    if not path.is_file():
        raise ConfigError(f"{where} is no file; name one such as configs/pipelines/distil.py")
    if not callable(get_steps := runpy.run_path(str(path)).get("get_steps")):
        raise ConfigError(f"{where}: there is no function get_steps(); see docs/students.md")
    given = _read_settings(inspect.signature(get_steps, eval_str=True), settings)
    try:
        steps = get_steps(**given)
    except AttributeError as error:
        raise explain_attribute(error) or error from None
    if not isinstance(steps, list) or not all(isinstance(each, Step) for each in steps):
        raise ConfigError(f"{where}: get_steps() has to return a list of Step, not {show(steps)}")
    if not steps:
        raise ConfigError(f"{where}: get_steps() returns no steps")
    return steps


def _read_settings(signature: inspect.Signature, settings: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments of `get_steps`, each with the type of its parameter."""
    known, given = signature.parameters, dict[str, Any]()
    names = ", ".join(known) or "none"
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in known:
            raise ConfigError(f"--set={setting}: write NAME=VALUE; the recipe's names are {names}")
        if name in given:
            raise ConfigError(f"--set={setting}: {name} is given twice")
        given[name] = _read_setting(f"--set={setting}", text, known[name].annotation)
    missing = [name for name, each in known.items() if each.default is each.empty]
    if missing := [name for name in missing if name not in given]:
        shown = " ".join(f"--set={name}=VALUE" for name in missing)
        raise ConfigError(f"the recipe asks for {', '.join(missing)}; add {shown}")
    return given


def _read_setting(shown: str, text: str, hint: Any) -> Any:
    """Returns a setting with the type of its parameter; `shown` is how it was given."""
    kind = FieldType.of(hint)
    for plain, read in _READERS.items():
        try:
            if kind.plain in (plain, plain | None):
                value = None if kind.plain != plain and text == "None" else read(text)
            elif kind.plain == GenericAlias(tuple, (plain, ...)):
                value = tuple(map(read, filter(None, text.split(","))))
            else:
                continue
        except ValueError:
            raise ConfigError(f"{shown}: the value must be of type {kind}") from None
        for fault in kind.list_faults(value):
            raise ConfigError(f"{shown}: the value {fault}")
        return value
    raise ConfigError(
        f"{shown}: the recipe gives this parameter no type that a setting can have; annotate it "
        f"with {', '.join(each.__name__ for each in _READERS)}, one of these with | None, or a "
        "tuple such as tuple[int, ...]"
    )
