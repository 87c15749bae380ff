"""Programs in a warm process are those of a new one: results, output, statuses and signals."""

import dataclasses
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.runtime import warm_programs
from t2t.runtime.command_line import INTERRUPTED
from t2t.runtime.warm_programs import Running, WarmPrograms, is_warm
from t2t.training.checkpoint import restore_params
from t2t.training.provenance import hash_params, read_ledger
from tests import programs
from tests.tiny_training import make_config, write_recipe

SHORT = '''
"""A program."""
import dataclasses, mmap, os, resource, sys, time, types
from t2t.config.requests import Request
from t2t.config.variants import import_plugins
from t2t.runtime import command_line
from own import TEXT

kept = sys.modules.setdefault("kept", [])  # until the process ends

@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked(Request):
    text: str = TEXT
    status: int = 0
    seconds: float = 0.0
    growth: int = 0
    mappings: int = 0
    plugins: tuple[str, ...] = ()

def main(request: Asked) -> int:
    os.environ["COUNT"] = os.environ.get("COUNT", "") + "1"
    print(request.text, os.environ["COUNT"], file=sys.stderr)
    import_plugins(request.plugins)
    if request.status < 0:
        raise KeyError("a fault")
    time.sleep(request.seconds)
    if request.growth:  # in kilobytes, as if it had used them
        used = types.SimpleNamespace(ru_maxrss=request.growth, ru_utime=1e6, ru_stime=0.0)
        resource.getrusage = lambda who: used
    for number in range(request.mappings):  # of two kinds, which Linux does not join
        kept.append(mmap.mmap(-1, 4096, prot=(mmap.PROT_READ, mmap.PROT_WRITE)[number % 2]))
    return request.status

if __name__ == "__main__":
    command_line.run(main)
'''


@dataclasses.dataclass
class Warm:
    """Starts programs in the folder of the test."""

    folder: Path
    programs: WarmPrograms

    def start(self, module: str, *flags: str) -> Running:
        lock = self.lock()
        try:
            with (self.folder / "output.log").open("wb") as output:
                command = [sys.executable, "-m", module, *flags]
                return self.programs.start(command, 0, 1, output, output, lock)
        finally:
            os.close(lock)

    def lock(self) -> int:
        """Takes the lock that a program gets."""
        lock = os.open(self.folder / "lock", os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock

    def run(self, *flags: str, module: str = "short") -> tuple[int, int, str]:
        """Returns the process, its status, and the output."""
        program = self.start(module, *flags)
        status = program.wait()
        assert program.poll() == status
        assert program.core_seconds is not None
        assert program.core_seconds >= 0
        return program.pid, status, (self.folder / "output.log").read_text()


@pytest.fixture
def warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warm]:
    (tmp_path / "short.py").write_text(SHORT)
    (tmp_path / "own.py").write_text("TEXT = 'default'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(programs.ROOT))
    monkeypatch.setattr(warm_programs, "MODULES", ("short",))
    with WarmPrograms() as started:
        yield Warm(tmp_path, started)


def test_programs_share_a_process_and_nothing_else(warm: Warm) -> None:
    first, *found = warm.run("--text=one")
    assert found == [0, "one 1\n"]
    second, *found = warm.run("--seconds=0")
    assert found == [0, "default 1\n"]
    assert first == second
    program = warm.start("short", "--seconds=60")
    assert program.poll() is None
    with pytest.raises(BlockingIOError):
        warm.lock()
    assert program.measure_cores() < 1
    program.kill()


def test_program_that_fails_takes_its_process_along(warm: Warm) -> None:
    first, *found = warm.run("--status=3")
    assert found == [3, "default 1\n"]
    second, status, output = warm.run("--unknown")
    assert (status, output) == (2, "Unknown command line flag 'unknown'; see --help\n")
    third, status, output = warm.run("--status=-1")
    assert (status, output.splitlines()[-1]) == (1, "KeyError: 'a fault'")
    fourth, *found = warm.run()
    assert found == [0, "default 1\n"]
    assert len({first, second, third, fourth}) == 4


@pytest.mark.parametrize(
    ("stop", "status"), [(Running.terminate, INTERRUPTED), (Running.kill, -signal.SIGKILL)]
)
def test_signals_reach_the_program(warm: Warm, stop: Any, status: int) -> None:
    first, *_ = warm.run()
    program = warm.start("short", "--seconds=60")
    while not (warm.folder / "output.log").read_text():
        time.sleep(0.01)
    assert program.pid == first
    stop(program)
    assert program.wait() == status
    second, *found = warm.run()
    assert found == [0, "default 1\n"]
    assert second != first


def test_process_is_new_where_the_old_one_would_not_do(
    warm: Warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = [warm.run("--plugins=this")[0]]
    pids.append(warm.run()[0])
    (warm.folder / "own.py").write_text("TEXT = 'changed text'")
    pid, _, output = warm.run()
    assert output == "changed text 1\n"
    pids.append(pid)
    monkeypatch.setenv("XLA_FLAGS", "")
    pids.append(warm.run()[0])
    os.kill(pids[-1], signal.SIGKILL)  # while it is idle
    pids.append(warm.run()[0])
    assert warm.run(f"--growth={10 << 30}")[0] == pids[-1]
    pids.append(warm.run()[0])
    assert warm.run("--mappings=25000")[0] == pids[-1]
    pids.append(warm.run()[0])
    assert len({*pids}) == 7
    assert warm.run(module="this")[2].startswith("The Zen")  # started as any other program


def test_warm_processes_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("print('done')")
    script = """
import os, sys, time
from t2t.runtime import warm_programs
warm_programs.MODULES = ("short",)
started = warm_programs.WarmPrograms()
with open("output.log", "wb") as output:
    lock = os.open("lock", os.O_CREAT)
    program = started.start([sys.executable, "-m", "short"], 0, 1, output, output, lock)
program.wait()
print(program.pid, flush=True)
time.sleep(600)
"""
    environment = os.environ | {"PYTHONPATH": str(programs.ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout
        worker = Path("/proc", str(int(parent.stdout.readline())))
        assert worker.exists()
        parent.kill()
    deadline = time.monotonic() + 60
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not worker.exists()


@pytest.mark.parametrize(
    ("arguments", "accelerator", "expected"),
    [
        (("-m", "t2t.train", "--workdir=a"), False, True),
        (("-m", "t2t.evaluate", "--workdir=a"), False, True),
        (("-m", "t2t.evaluate", "--workdir=a"), True, False),
        (("-m", "t2t.train", "--distributed"), False, False),
        (("-m", "t2t.train", "--num_processes=2"), False, False),
        (("-m", "t2t.compare", "--workdir=a"), False, False),
        (("train.py",), False, False),
    ],
)
def test_only_a_training_or_evaluation_in_one_process_on_a_cpu_is_warm(
    arguments: tuple[str, ...], accelerator: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_programs, "may_have_accelerator", lambda: accelerator)
    assert is_warm([sys.executable, *arguments]) == expected
    assert not is_warm(["python", *arguments])


@pytest.mark.slow
def test_results_of_a_warm_process_are_those_of_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs in one process: of two seeds, and of another row. A fourth one is killed."""
    write_recipe(make_config(tmp_path), recipe := tmp_path / "recipe.py")
    monkeypatch.chdir(programs.ROOT)
    monkeypatch.setenv("XLA_FLAGS", programs.make_environment()["XLA_FLAGS"])

    def run(name: str, *flags: str) -> list[Any]:
        workdir = tmp_path / name
        train = warm.start("t2t.train", f"--config={recipe}", f"--workdir={workdir}", *flags)
        assert train.wait() == 0
        evaluate = warm.start("t2t.evaluate", f"--workdir={workdir}", "--split=validation")
        assert evaluate.wait() == 0
        pids.append((train.pid, evaluate.pid))
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
        kept = re.compile("loss|norm|skipped|perplexity|source_use")
        figures = [{k: v for k, v in json.loads(line).items() if kept.search(k)} for line in lines]
        texts = {path.name: path.read_text() for path in workdir.glob("evaluations/*.txt")}
        [scores] = workdir.glob("evaluations/*.json")
        assert read_ledger(workdir)[-1]["command"].endswith(" ".join([str(workdir), *flags]))
        measures = load_evaluation(scores).result["measures"]
        return [hash_params(restore_params(workdir, "last")[0]), figures, texts, measures]

    runs = {"first": (), "seed": ("--config.seed=1",), "row": ("--config.model.num_heads=2",)}
    pids: list[tuple[int, int]] = []
    with WarmPrograms() as started:
        warm = Warm(tmp_path, started)
        found = {name: run(f"warm_{name}", *flags) for name, flags in runs.items()}
        assert len({pid for pair in pids for pid in pair}) == 1
        begun = warm.start("t2t.train", f"--config={recipe}", f"--workdir={tmp_path / 'again'}")
        while begun.poll() is None and not (tmp_path / "again/checkpoints/5/params").exists():
            time.sleep(0.001)
        begun.kill()
        assert begun.wait() == -signal.SIGKILL
        assert run("again") == found["first"]
    monkeypatch.setattr(warm_programs, "MODULES", ())
    with WarmPrograms() as started:
        warm = Warm(tmp_path, started)
        assert found == {name: run(f"new_{name}", *flags) for name, flags in runs.items()}
    assert len({pid for pair in pids for pid in pair}) == 2 + 6
