"""Wrong command lines and input end programs with one message, a status and no traceback."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import Config
from t2t.config.files import save_config
from t2t.runtime import error_messages
from t2t.runtime.command_line import INTERRUPTED, LOST
from tests import programs

ROOT = Path(__file__).parents[2]

# A program without JAX. The name of the run directory selects an action from ACTIONS.
PROGRAM = '''
import dataclasses, gc, logging, os, signal, sys, threading, time, warnings
from pathlib import Path
sys.path.insert(0, os.getcwd())  # as Python does for a program
from t2t.config.config_flag import read_config
from t2t.config.requests import Plugins, RunPath
from t2t.runtime import command_line
from t2t.data.corpus import DataError

@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked(Plugins):
    workdir: RunPath
    config: str
    names: tuple[str, ...] = ()
    fast: bool = False
    beam_size: int | None = None

def fail(error):
    raise error

def exhaust(message):
    """As JAX, which is not imported here."""
    raise type("JaxRuntimeError", (RuntimeError,), {"__module__": "jax.errors"})(message)

def lose():
    try:
        raise RuntimeError("UNAVAILABLE: connection to coordination service was lost")
    except RuntimeError as error:
        raise DataError("checkpoint 5 could not be written") from error

def interrupt(*_):
    """A callback of the garbage collector that receives a SIGTERM; the next one is lost."""
    gc.callbacks.clear()
    usual = signal.getsignal(signal.SIGTERM)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)  # Python handles it here at the latest
    finally:
        signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, usual))

def collect():
    gc.callbacks.append(interrupt)
    gc.collect()
    time.sleep(600)

def complain():
    """As TensorStore's threads do, for each file of a checkpoint that failed."""
    for message in ("Event loop is closed", "a fault"):
        error = RuntimeError(message)
        thread = threading.Thread(target=lambda: sys.excepthook(RuntimeError, error, None))
        thread.start()
        thread.join()

def use_streams():
    with open("held", "w") as file:
        os.write(file.fileno(), b"held")
        try:
            sys.stdin.read()
        except OSError as error:
            print(error, file=sys.stderr)
        print("output")
        sys.stdout.flush()

def replace():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        raise ImportError("a module could not be initialised")

def talk():
    logging.getLogger("t2t.train").info("from %s", "us")
    logging.getLogger("jax._src.xla_bridge").info("Unable to initialize backend 'tpu'")
    logging.getLogger("absl").warning("Metadata file does not exist")
    warnings.warn("watch out")

ACTIONS = {
    "files": lambda: print(read_config().data.train_src),
    "options": lambda: print(read_config().plugin),
    "talk": talk,
    "short": lambda: print("output"),
    "long": lambda: print("output" * 100_000),
    "streams": use_streams,
    "interrupted run": lambda: command_line.INTERRUPTED,
    "lost": lose,
    "device": lambda: exhaust("RESOURCE_EXHAUSTED: Out of memory allocating 25 bytes."),
    "fault": lambda: fail(ValueError("a fault")),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGTERM in a callback": collect,
    "SIGTERM in an import": replace,
    "thread": complain,
    "words": lambda: print("Bär 熊…") or fail(DataError("Bär 熊")),
}

def main(request: Asked):
    config, workdir = read_config(), request.workdir
    if workdir.name == "flags":
        return print(request.names, request.fast, request.beam_size)
    action = ACTIONS.get(workdir.name)
    if action:
        return action()
    print(config.model.num_heads, config.data.train_weights, workdir)

command_line.run(main)
'''

REMEDIES = (
    "use --config.mesh.fsdp=N on several devices, or in a new run "
    "--config.training.accumulation_steps=2; see docs/gpu.md"
)
RECIPE = """
from t2t.config.fields import Config, ConfigError

def get_config(kind=""):
    if kind == "dict":
        return {}
    if kind == "read":
        Config().training.step *= 2
    if kind == "folder":
        return {}["MY_FOLDER"]
    if kind:
        raise ConfigError(f"there is no {kind}")
    return Config()
"""


PLUGIN = """
from __future__ import annotations

import dataclasses
from t2t.config import PluginOptions, option
from t2t.config.variants import register

@register("plugin", "own")
@dataclasses.dataclass
class Options(PluginOptions):
    mix: float = option(0.5, "share of the other loss")
    words: tuple[str, ...] = option((), "words")
    loud: bool = option(False, "aloud")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "my_plugin.py").write_text(PLUGIN)
    (folder / "empty.py").write_text("config = None")
    return folder


def call(folder: Path, *flags: str) -> tuple[int, str, str]:
    """Runs the program; returns its status, output and messages."""
    done = programs.run("program.py", *flags, folder=folder)
    return done.returncode, done.stdout, done.stderr


def call_python(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Does the same in a Python of its own, for which JAX has no device."""
    environment = os.environ | {"JAX_PLATFORMS": "no such device"}
    done = programs.run_python(*arguments, folder=folder, environment=environment)
    return done.returncode, done.stdout, done.stderr


def test_output_is_utf8_in_every_locale(folder: Path) -> None:
    flags = "program.py", "--config=recipe.py", "--workdir=words"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = programs.run_python(*flags, folder=folder, environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (2, "Bär 熊…\n", "Bär 熊\n")


def test_flags_reach_the_program(folder: Path) -> None:
    flags = ["--config.model.num_heads=4", "--config.data.train_weights=2,0.5"]
    flags += ["--config.data.source=phrasebook+multi30k"]  # two corpora
    command = "program.py", "--config=recipe.py", "--workdir=~/run", *flags
    status, output, messages = call_python(folder, *command)
    assert (status, messages) == (0, "")
    assert output == f"4 (2.0, 0.5) {Path.home()}/run\n"
    flags = ["--config.model.d_k=None", "--config.data.train_weights="]
    assert call(folder, "--config=recipe.py", "--workdir=run", *flags) == (0, "8 () run\n", "")
    given = "--names=a,b --fast --beam_size=1 --names c --fast=true -beam_size 1"
    found = call(folder, "--config=recipe.py", "--workdir=flags", *given.split())
    assert found == (0, "('a', 'b', 'c') True 1\n", "")


KNOWN = "--config=recipe.py --workdir=run --config.plugins=my_plugin"
TEXT = "--config.data.source=text --config.data.train_tgt=x --config.data.train_tgt=y".split()


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["None", "b c"], ("None", "b c")),
        (["a,b.en", "b"], ("a,b.en", "b")),
        (["it's.en", "'b c'"], ("it's.en", "b c")),
        (["[1].en", "b"], ("[1].en", "b")),
        (["('a b', 'c')"], ("a b", "c")),  # a tuple of Python
    ],
)
def test_file_names_are_taken_as_they_are(
    folder: Path, files: list[str], names: tuple[str, ...]
) -> None:
    flags = TEXT + [f"--config.data.train_src={file}" for file in files]
    found = call(folder, "--config=recipe.py", "--workdir=files", *flags)
    assert found == (0, f"{names}\n", "")


def test_options_of_a_plugin_are_flags_with_its_types(folder: Path) -> None:
    flags = ["--config=recipe.py", "--workdir=options", "--config.plugin.own.mix=1"]
    flags += ["--config.plugin.own.words=a b", "--config.plugin.own.loud"]
    (folder / "flags").write_text("--config.plugins=my_plugin\n")
    for plugins in ("--config.plugins=my_plugin", "--flagfile=flags"):
        found = call(folder, *flags, plugins)
        assert found == (0, "{'own': Options(mix=1.0, words=('a b',), loud=True)}\n", "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--workdir=run", "flag --config=None: Flag --config must have a value"),
        ("--config=recipe.py --workdir=run now", "now: not a flag; see --help"),
        ("--config=none.py --workdir=run", "config=none.py is no file; name a recipe"),
        ("--config= --config.seed=1 --workdir=run", "config= is no file; name a recipe"),
        ("--config=recipe.py:dict --workdir=run", "get_config() returned {}, not a Config"),
        ("--config=recipe.py:read --workdir=run", "training.step: no such field; perhaps train"),
        ("--config=recipe.py:such --workdir=run", "there is no such"),
        ("--config=empty.py --workdir=run", "config=empty.py: there is no function get_config()"),
        ("--config=recipe.py --workdir=a --fast --nofast", "--fast is given as true and as false"),
        (f"{KNOWN} --config.seed=1 --config.seed=2", "--config.seed is given as 1 and as 2; give"),
        ("--workdir=a --config.seed=1", "--config.seed overrides a field of --config; add"),
        (f"{KNOWN} --config.model.num_head=2", "model.num_head='2': no such field; perhaps"),
        (
            f"{KNOWN} --config.model.d-model=2",
            "model.d-model: no such field; perhaps model.d_",
        ),
        (
            f"{KNOWN} --config.model.prefix.x=1",
            "flag --config=recipe.py: model.prefix.x: no such field; perhaps",
        ),
        (f"{KNOWN} --config.model.d_model=x", "model.d_model='x' is not of type int"),
        (f"{KNOWN} --config.model.d_model=None", "model.d_model=None is not of type int"),
        (f"{KNOWN} --noconfig.model.d_k", "called model.d_k; write --config.model.d_k=VALUE"),
        (f"{KNOWN} --config.data.hf_name --fast", "this is the next flag; give a value after ="),
        (f"{KNOWN} --config.wishes=size=base", "wishes='size=base': the recipe sets it; write"),
        (f"{KNOWN} --config.model=3", "model='3': this section is a ModelConfig; set its"),
        (f"{KNOWN} --config.plugin=3", "plugin='3': set one of its options, plugin.NAME."),
        (
            f"{KNOWN} --config.plugin.own.mixed=1",
            "plugin.own.mixed='1': plugin.own has mix (float, by",
        ),
        (f"{KNOWN} --config.plugin.other.mix=1", "plugin.other: no module of plugins has"),
    ],
)
def test_wrong_flag_is_one_message(folder: Path, flags: str, message: str) -> None:
    assert message in programs.refuse("program.py", *flags.split(), folder=folder)


EVALUATE = "evaluate --workdir=run"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("export --workdir=run --output=", "--output is empty; name a file or folder"),
        ("show --distributed", "--distributed: start this program in one process: "),
        ("train --workdir=nowhere", "--config is missing, and nowhere holds no run to continue; "),
        ("train --config= --workdir=nowhere", "config= is no file; name a recipe, such as"),
        (f"{EVALUATE} --config.decoding.beam_size=1", "--config.decoding.beam_size: write --beam"),
        (f"{EVALUATE} --noconfig.model.residual", "--noconfig.model.residual: this program reads"),
        (f"{EVALUATE} --config.plugins=mine", "--config.plugins: write --plugins; "),
        (f"{EVALUATE} --config=recipe.py", "--config: this program reads the config of the run"),
    ],
)
def test_wrong_flag_of_a_program_says_what_to_write(
    folder: Path, command: str, message: str
) -> None:
    assert programs.refuse(*f"t2t.{command}".split(), folder=folder).startswith(message)


def test_flags_allow_modules_that_a_run_names(folder: Path) -> None:
    (folder / "plugged").mkdir()
    save_config(Config(plugins=("a_plugin",)), folder / "plugged" / "config.json")
    for more, message in (
        (["--trust_plugins"], "names the module a_plugin, which is not imported"),  # has no copy
        (["--plugins=other,a_plugin"], "the module a_plugin cannot be imported (No module named"),
    ):
        flags = "--workdir=plugged", "--output=out", *more
        assert message in programs.refuse("t2t.export", *flags, folder=folder)


def test_training_refuses_before_it_looks_for_a_device(folder: Path) -> None:
    flags = ["--config=recipe.py", "--workdir=run", "--config.training.accumulation_steps=3"]
    status, _, messages = call_python(folder, "-m", "t2t.train", *flags)
    assert (status, messages.count("\n")) == (2, 1)
    assert messages.startswith("training.accumulation_steps=3 does not divide")
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("action", "status", "message"),
    [
        ("interrupted run", INTERRUPTED, ""),
        ("lost", LOST, "checkpoint 5 could not be written\n"),
        ("device", 2, f"out of memory (Out of memory allocating 25 bytes); {REMEDIES}\n"),
        ("SIGTERM", INTERRUPTED, "interrupted\n"),
        ("SIGTERM in a callback", INTERRUPTED, "interrupted\n"),
        ("SIGTERM in an import", INTERRUPTED, "interrupted\n"),
        ("thread", 0, "RuntimeError: a fault\n"),
    ],
)
def test_error_is_one_line(folder: Path, action: str, status: int, message: str) -> None:
    found = call(folder, "--config=recipe.py", f"--workdir={action}")
    assert found == (status, "", message)


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ("--config=recipe.py --workdir=fault", "ValueError: a fault"),
        ("--config=recipe.py:folder --config.seed=1 --workdir=run", "KeyError: 'MY_FOLDER'"),
    ],
)
def test_fault_of_the_program_or_the_recipe_keeps_its_traceback(
    folder: Path, flags: str, fault: str
) -> None:
    status, _, messages = call_python(folder, "program.py", *flags.split())
    assert status == 1
    assert "Traceback" in messages
    assert messages.rstrip().endswith(fault)


def test_memory_that_is_used_up_is_no_fault_of_the_program() -> None:
    wanted: dict[Callable[[], Any], str] = {
        lambda: jax.jit(lambda: jnp.zeros(2**45, jnp.uint8))().block_until_ready(): (
            r"out of memory \(Out of memory allocating \d+ bytes\); use "
        ),
        lambda: np.zeros(2**58): r"out of memory \(Unable to allocate 2.00 EiB .*\); use ",
        lambda: bytearray(2**62): "out of memory; use ",
    }
    for allocate, message in wanted.items():
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        assert re.match(message, error_messages.explain(caught.value) or "")
    of_cuda = jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory\nat 1")
    assert "\n" not in (error_messages.explain(of_cuda) or "\n")
    assert error_messages.explain(jax.errors.JaxRuntimeError("INTERNAL: a fault")) is None
    assert error_messages.explain(RuntimeError("out of memory")) is None  # not of JAX


def run_shell(folder: Path, action: str, redirections: str) -> tuple[int, str]:
    """Runs the program with redirections of the shell; returns its status and its messages."""
    command = f"set -o pipefail; {sys.executable} program.py --config=recipe.py --workdir={action}"
    done = subprocess.run(
        ["bash", "-c", f"{command} {redirections}"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_missing_streams_are_not_replaced_by_files_that_are_opened(folder: Path) -> None:
    status, messages = run_shell(folder, "streams", "<&- >&-")
    assert status == 2
    first, second = messages.splitlines()
    assert first == "[Errno 9] Bad file descriptor"
    assert second.startswith("standard input or output is closed; redirect it")
    assert (folder / "held").read_text() == "held"
    assert run_shell(folder, "talk", "2>&-") == (0, "")


def test_output_that_nobody_reads_or_that_cannot_be_written_ends_the_program(folder: Path) -> None:
    for action in ("short", "long"):
        assert run_shell(folder, action, "| true") == (1, "")
    assert run_shell(folder, "short", "> /dev/full") == (2, "No space left on device\n")


@pytest.mark.parametrize("flag", ["-h", "--helpfull"])
def test_help_is_no_error(flag: str, folder: Path) -> None:
    status, output, messages = call(folder, flag)
    assert (status, messages) == (0, "")
    assert "--workdir" in output


def test_only_messages_of_t2t_and_warnings_are_shown(folder: Path) -> None:
    status, _, messages = call(folder, "--config=recipe.py", "--workdir=talk")
    first, *rest = messages.splitlines()
    assert (status, first) == (0, "from us")
    assert "watch out" in rest[0]
    assert "backend" not in messages
    assert "Metadata" not in messages


def test_what_a_new_start_may_mend_has_a_status_of_its_own() -> None:
    aiohttp = pytest.importorskip("aiohttp")
    gloo = "FAILED_PRECONDITION: Gloo all-reduce failed"
    for error, message in (
        (TimeoutError(), "the bucket cannot be used: "),
        (aiohttp.ServerDisconnectedError(), "the bucket cannot be used: "),
        (
            jax.errors.JaxRuntimeError(f"{gloo}\nmore"),
            f"another process or the network did not answer: {gloo}",
        ),
    ):
        assert error_messages.is_unanswered(error)
        found = error_messages.explain(error) or ""
        assert (found.startswith(message), "\n" in found) == (True, False)
    for wrong in (ValueError("training.steps=0 must be positive"), OSError(2, "No such file")):
        assert not error_messages.is_unanswered(wrong)
    later = RuntimeError("the checkpoint cannot be written")
    later.__cause__ = aiohttp.ServerTimeoutError()
    assert error_messages.is_unanswered(later)
