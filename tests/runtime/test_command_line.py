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
sys.path.insert(0, os.getcwd())  # as Python does for a program
from t2t.config.flags import read_config
from t2t.config.requests import OneRun
from t2t.runtime import command_line
from t2t.config.fields import ConfigError
from t2t.data.corpus import DataError

@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked(OneRun):
    config: str
    names: tuple[str, ...] = ()
    fast: bool = False
    beam_size: int | None = None

class RunError(RuntimeError):
    """An error from a module outside t2t."""

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

def collect():
    gc.callbacks.append(lambda *_: gc.callbacks.clear() or os.kill(os.getpid(), signal.SIGTERM))
    gc.collect()
    time.sleep(20)

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

def lose_peer(reason):
    from jax.errors import JaxRuntimeError
    raise JaxRuntimeError(reason)

def fail_bucket():
    from aiohttp import ClientError
    raise ClientError("503")

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
    "gloo": lambda: lose_peer("FAILED_PRECONDITION: Gloo all-reduce failed: Read error\\nmore"),
    "internal": lambda: lose_peer("INTERNAL: a fault"),
    "interrupted run": lambda: command_line.INTERRUPTED,
    "data": lambda: fail(DataError("a.en, line 3: not UTF-8")),
    "lost": lose,
    "device": lambda: exhaust("RESOURCE_EXHAUSTED: Out of memory allocating 25 bytes."),
    "fault": lambda: fail(ValueError("a fault")),
    "foreign": lambda: fail(RunError("a fault")),
    "no file": lambda: open("nowhere/file"),
    "nameless": lambda: fail(OSError("something with the disk")),
    "client": fail_bucket,
    "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
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
LOST_PEER = "another process or the network did not answer"
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

    def list_problems(self):
        if self.mix > 1:
            yield f"mix={self.mix} must be at most 1"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "my_plugin.py").write_text(PLUGIN)
    (folder / "empty.py").write_text("config = None")
    (folder / "alone.py").write_text("def get_config():\n    return 3")
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


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_output_is_utf8_in_every_locale(folder: Path, encoding: str) -> None:
    flags = "program.py", "--config=recipe.py", "--workdir=words"
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = programs.run_python(*flags, folder=folder, environment=environment)
    assert done.stdout == "Bär 熊…\n"
    assert done.stderr.endswith("Bär 熊\n")


def test_flags_reach_the_program(folder: Path) -> None:
    flags = ["--config.model.num_heads=4", "--config.data.train_weights=2,0.5"]
    flags += ["--config.data.source=phrasebook+multi30k"]  # two corpora
    command = "program.py", "--config=recipe.py", "--workdir=~/run", *flags
    status, output, messages = call_python(folder, *command)
    assert (status, messages) == (0, "")
    assert output == f"4 (2.0, 0.5) {Path.home()}/run\n"
    flags = ["--config.model.d_k=None", "--config.data.train_weights="]
    assert call(folder, "--config=recipe.py", "--workdir=run", *flags) == (0, "8 () run\n", "")


def test_repeated_list_flags_add_up_and_equal_values_are_one(folder: Path) -> None:
    given = "--names=a,b --fast --beam_size=1 --names c --fast=true -beam_size 1"
    found = call(folder, "--config=recipe.py", "--workdir=flags", *given.split())
    assert found == (0, "('a', 'b', 'c') True 1\n", "")


TEXT = "--config.data.source=text --config.data.train_tgt=x --config.data.train_tgt=y".split()


@pytest.mark.parametrize("name", ["my file.txt", "123", "None", "a,b.en", "it's.en", "[1].en"])
def test_file_names_are_taken_as_they_are(folder: Path, name: str) -> None:
    files = f"--config.data.train_src={name}", "--config.data.train_src='b c'"
    found = call(folder, "--config=recipe.py", "--workdir=files", *TEXT, *files)
    assert found == (0, f"{(name, 'b c')}\n", "")


def test_tuple_of_file_names_is_read_as_python(folder: Path) -> None:
    files = "--config.data.train_src=('a b', 'c')"
    found = call(folder, "--config=recipe.py", "--workdir=files", *TEXT, files)
    assert found == (0, "('a b', 'c')\n", "")


def test_options_of_a_plugin_are_flags_with_its_types(folder: Path) -> None:
    options = (
        "--config.plugin.own.mix=1",
        "--config.plugin.own.words=a b",
        "--config.plugin.own.loud",
    )
    known = "--config=recipe.py", "--workdir=options"
    found = call(folder, *known, *options, "--config.plugins=my_plugin")
    assert found == (0, "{'own': Options(mix=1.0, words=('a b',), loud=True)}\n", "")
    found = call(folder, *known, "--config.plugins=my_plugin")
    assert found == (0, "{'own': Options(mix=0.5, words=(), loud=False)}\n", "")


def test_fault_of_a_recipe_keeps_its_traceback(folder: Path) -> None:
    status, _, messages = call(
        folder, "--config=recipe.py:folder", "--config.seed=1", "--workdir=run"
    )
    assert status == 1
    assert messages.rstrip().endswith("KeyError: 'MY_FOLDER'")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--config=recipe.py", "flag --workdir=None: Flag --workdir must have a value"),
        ("--workdir=run", "flag --config=None: Flag --config must have a value"),
        ("--config=recipe.py --workdir=run --steps=3", "Unknown command line flag 'steps'"),
        ("--config=recipe.py --workdri=run", "Did you mean: workdir ?"),
        ("--config=recipe.py --workdir=run now", "now: not a flag; see --help"),
        ("--config=none.py --workdir=run", "--config=none.py is no file; name a recipe"),
        ("--config=none.py --workdir=run --config.seed=1", "--config: [Errno 2] No such file"),
        ("--config=recipe.py:dict --workdir=run", "get_config() of the recipe returned dict"),
        ("--config=recipe.py:read --workdir=run", "training.step: no such field; perhaps train"),
        ("--config=recipe.py:such --workdir=run", "there is no such"),
        ("--config=empty.py --workdir=run", "--config=empty.py: the recipe has no function get_c"),
        ("--config=alone.py:such --workdir=run", "takes 0 positional arguments but 1 was given"),
        ("--config=recipe.py --workdir=a --workdir b", "--workdir is given as a and as b; give it"),
        ("--config=recipe.py --workdir=a --fast --nofast", "--fast is given as true and as false"),
        (
            "--config=recipe.py --workdir=a --config.seed=1 --config.seed=2",
            "--config.seed is given as 1 and as 2; give it once",
        ),
        ("--workdir=a --config.seed=1", "--config.seed overrides a field of --config; add"),
    ],
)
def test_wrong_flag_is_one_message(folder: Path, flags: str, message: str) -> None:
    assert message in programs.refuse("program.py", *flags.split(), folder=folder)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("model.num_head=2", "--config.model.num_head: no such field; perhaps model.num_heads, "),
        ("model.d_k=1.5", "flag --config.model.d_k=1.5: invalid literal for int()"),
        ("model.d_model=None", "model.d_model=None is not of type int"),
        ("model.residual=maybe", "Non-boolean argument to boolean flag"),
        ("model=3", "flag --config.model=3: write --config.model.FIELD=VALUE"),
        ("data.src_language=None", "data.src_language='None' must be a language; leave it empty"),
        ("data.train_weights=x", "data.train_weights=('x',) is not of type tuple[float, ...]"),
        ("model.num_heads=5", "model.num_heads=5 does not divide model.d_model=512; use one of"),
        ("plugin=3", "flag --config.plugin=3: write --config.plugin.NAME.FIELD=VALUE"),
        ("plugin.own=3", "flag --config.plugin.own=3: write --config.plugin.own.FIELD=VALUE"),
        ("plugin.own.mix=2", "plugin.own.mix=2.0 must be at most 1"),
        ("plugin.own.mixed=1", "--config.plugin.own.mixed: plugin.own has mix (float, by default"),
        ("plugin.other.mix=1", "--config.plugin.other.mix: plugin.other: no module of plugins has"),
    ],
)
def test_wrong_field_is_one_message(folder: Path, flag: str, message: str) -> None:
    flags = "--config=recipe.py", "--workdir=run", "--config.plugins=my_plugin"
    assert message in programs.refuse("program.py", *flags, f"--config.{flag}", folder=folder)


PROGRAMS = sorted(path.stem for path in (ROOT / "t2t").glob("*.py") if path.stem[0] != "_")
ALONE = [name for name in PROGRAMS if "Hosts" not in (ROOT / f"t2t/{name}.py").read_text()]


def test_programs_that_compute_on_all_devices_take_several_processes() -> None:
    assert {"train", "evaluate", "doctor"} <= {*PROGRAMS} - {*ALONE}


@pytest.mark.parametrize("name", ALONE)
def test_program_for_one_process_says_why(folder: Path, name: str) -> None:
    message = programs.refuse(f"t2t.{name}", "--distributed", folder=folder)
    assert message.startswith("--distributed: start this program in one process: ")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config.decoding.beam_size=1", "--config.decoding.beam_size: write --beam_size; "),
        ("--config.model.num_heads=1", "--config.model.num_heads: this program reads the config"),
        ("--noconfig.model.residual", "--noconfig.model.residual: this program reads the config"),
        ("--config.plugins=mine", "--config.plugins: write --plugins; "),
        ("--config=recipe.py", "--config: this program reads the config of the run"),
    ],
)
def test_program_without_a_recipe_says_what_to_write(flag: str, message: str) -> None:
    assert programs.refuse("t2t.evaluate", "--workdir=run", flag).startswith(message)


def test_new_run_is_refused_a_factor_of_noam_as_a_peak(folder: Path) -> None:
    flags = "--config=recipe.py", "--workdir=new", "--config.training.schedule=cosine"
    for name in ("t2t.train", "t2t.prepare"):
        message = programs.refuse(name, *flags, folder=folder)
        assert message.startswith("training.learning_rate=1 is a factor only with")


def test_flags_allow_modules_that_a_run_names(folder: Path) -> None:
    run = folder / "plugged"
    run.mkdir()
    save_config(Config(plugins=("a_plugin",)), run / "config.json")
    flags = "--workdir=plugged", "--output=out"
    for more, message in (
        ([], "names the module a_plugin, which is not imported unless you ask for it"),
        (["--trust_plugins"], "names the module a_plugin, which is not imported"),  # has no copy
        (["--plugins=other,a_plugin"], "the module a_plugin cannot be imported (No module named"),
    ):
        assert message in programs.refuse("t2t.export", *flags, *more, folder=folder)


def test_training_without_a_recipe_needs_a_run(folder: Path) -> None:
    message = programs.refuse("t2t.train", "--workdir=nowhere", folder=folder)
    assert message.startswith("--config is missing, and nowhere holds no run to continue; name")


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
        ("data", 2, "a.en, line 3: not UTF-8\n"),
        ("lost", LOST, "checkpoint 5 could not be written\n"),
        ("gloo", LOST, f"{LOST_PEER}: FAILED_PRECONDITION: Gloo all-reduce failed: Read error\n"),
        ("no file", 2, "nowhere/file: No such file or directory\n"),
        ("device", 2, f"out of memory (Out of memory allocating 25 bytes); {REMEDIES}\n"),
        ("nameless", 2, "something with the disk\n"),
        ("client", 2, "the bucket cannot be used: ClientError: 503\n"),
        ("SIGINT", INTERRUPTED, "interrupted\n"),
        ("SIGTERM", INTERRUPTED, "interrupted\n"),
        ("SIGTERM in a callback", INTERRUPTED, "interrupted\n"),
        ("SIGTERM in an import", INTERRUPTED, "interrupted\n"),
        ("thread", 0, "RuntimeError: a fault\n"),
    ],
)
def test_error_is_one_line(folder: Path, action: str, status: int, message: str) -> None:
    found = call(folder, "--config=recipe.py", f"--workdir={action}")
    assert found == (status, "", message)


@pytest.mark.parametrize("action", ["fault", "foreign", "internal"])
def test_fault_of_the_program_keeps_its_traceback(folder: Path, action: str) -> None:
    status, _, messages = call_python(
        folder, "program.py", "--config=recipe.py", f"--workdir={action}"
    )
    assert status == 1
    assert messages.startswith("Traceback")
    assert messages.endswith(" a fault\n")


def test_memory_that_is_used_up_is_no_fault_of_the_program() -> None:
    wanted: dict[Callable[[], Any], str] = {
        allocate_on_a_device: r"out of memory \(Out of memory allocating \d+ bytes\); use ",
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


def allocate_on_a_device() -> None:
    jax.jit(lambda: jnp.zeros(2**45, jnp.uint8))().block_until_ready()


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


@pytest.mark.parametrize("action", ["short", "long"])
def test_output_that_nobody_reads_ends_the_program_without_a_word(
    action: str, folder: Path
) -> None:
    assert run_shell(folder, action, "| true") == (1, "")


def test_output_that_cannot_be_written_is_an_error(folder: Path) -> None:
    assert run_shell(folder, "short", "> /dev/full") == (2, "No space left on device\n")


@pytest.mark.parametrize("flag", ["--help", "-h", "--helpfull"])
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
    assert error_messages.is_unanswered(TimeoutError())
    assert error_messages.is_unanswered(aiohttp.ServerDisconnectedError())
    assert not error_messages.is_unanswered(ValueError("training.steps=0 must be positive"))
    assert not error_messages.is_unanswered(FileNotFoundError(2, "No such file"))
    error = RuntimeError("the checkpoint cannot be written")
    error.__cause__ = aiohttp.ServerTimeoutError()
    assert error_messages.is_unanswered(error)
