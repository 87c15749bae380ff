"""The tasks in launch/sky/, with SkyPilot and without a cloud; launch/sky.sh ships a commit."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml

from t2t.runtime.command_line import INTERRUPTED
from t2t.training import provenance
from t2t.training.run_directory import list_steps
from tests.programs import ROOT, write_program
from tests.tiny_training import change, make_config, write_recipe

TASKS = sorted((ROOT / "launch" / "sky").glob("*.yaml"))
ABORTED = 134  # a process that lost another


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_task_names_what_exists(path: Path) -> None:
    task = yaml.safe_load(path.read_text())
    module, *flags = task["envs"]["PROGRAM"].split()
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
    named = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    assert all((ROOT / named[flag]).exists() for flag in ("config", "sweep") if flag in named)
    assert named["workdir"].startswith("gs://BUCKET/")
    [extras] = re.findall(r"--editable='\.\[(.+)\]'", task["setup"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*extras.split(",")} <= project["optional-dependencies"].keys()
    [constraints] = re.findall(r"--constraint=(\S+)", task["setup"])
    assert (ROOT / constraints).exists()
    assert "python=" + constraints[-8:-4] in task["setup"]


def find_skypilot() -> str | None:
    """The Python that has SkyPilot: T2T_SKY_PYTHON, or that of .venv-sky, which .ci/run makes."""
    python = os.environ.get("T2T_SKY_PYTHON", str(ROOT / ".venv-sky" / "bin" / "python"))
    return python if Path(python).exists() else None


READ_TASKS = """
import json, sys, sky
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    [resources] = task.resources
    print(json.dumps([
        task.num_nodes, resources.accelerators, resources.use_spot,
        resources.job_recovery["recover_on_exit_codes"],
    ]))
"""


@pytest.mark.slow
def test_skypilot_reads_the_tasks(tmp_path: Path) -> None:
    python = find_skypilot()
    if python is None:
        pytest.skip("SkyPilot is not installed in .venv-sky, nor does T2T_SKY_PYTHON name a Python")
    done = subprocess.run(
        [python, "-c", READ_TASKS, *TASKS],
        env=os.environ | {"HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    found = {path.stem: json.loads(line) for path, line in zip(TASKS, lines, strict=True)}
    assert {name: tuple(task[:2]) for name, task in found.items()} == {
        "gpu-4x8": (4, {"H100": 8}),
        "gpu-8": (1, {"H100": 8}),
        "sweep": (1, {"H100": 8}),
        "tpu": (1, {"tpu-v5litepod-16": 1}),
    }
    assert all(task[2:] == [True, [INTERRUPTED, ABORTED]] for task in found.values())


@pytest.mark.slow
def test_nodes_of_a_task_train_together_and_save_together(tmp_path: Path) -> None:
    """Runs the task's own script on two nodes of this machine, as SkyPilot does."""
    config = change(make_config(tmp_path), training={"steps": 10**6}, checkpoints={"every": 10**6})
    write_recipe(config, tmp_path / "recipe.py")
    run = tmp_path / "run"
    program = f"t2t.train --config={tmp_path}/recipe.py --workdir={run}"
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(node) for node in start_nodes(tmp_path, program)]
        for node in nodes:
            stack.callback(subprocess.run, ["pkill", "-KILL", "--session", str(node.pid)])
        while not (run / "metrics.jsonl").exists() and nodes[0].poll() is None:
            time.sleep(0.1)
        for node in nodes:
            children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text()
            os.kill(int(children), signal.SIGTERM)  # the program, not its shell
        assert [node.wait(timeout=600) for node in nodes] == [INTERRUPTED] * 2
    [step] = list_steps(run)
    assert 0 < step < 10**6
    ledger = provenance.read_ledger(run)
    assert ledger[-1]["processes"] == 2


def start_nodes(folder: Path, program: str) -> list[subprocess.Popen[bytes]]:
    """Starts the script of `gpu-4x8.yaml` on two nodes; `folder` is their working directory."""
    script = yaml.safe_load((ROOT / "launch" / "sky" / "gpu-4x8.yaml").read_text())["run"]
    assert script.count(":8476") == 1
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        script = script.replace(":8476", f":{probe.getsockname()[1]}")
    (folder / "run.sh").write_text(script)
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    write_program(folder / ".venv" / "bin" / "python", python)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": re.sub("device_count=8", "device_count=2", os.environ["XLA_FLAGS"]),
        "PROGRAM": program,
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_NUM_NODES": "2",
    }
    return [
        subprocess.Popen(
            # As SkyPilot does (sky/skylet/log_lib.py): an interactive shell with a file.
            ["bash", "-i", "run.sh"],
            cwd=folder,
            env=environment | {"SKYPILOT_NODE_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(2)
    ]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with launch/sky.sh, and a stub of `sky` that prints its arguments."""
    folder = tmp_path / "checkout"
    for name in ("launch/sky.sh", "REVISION", ".gitattributes", ".gitignore"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "launch" / "sky.sh").chmod(0o755)
    (folder / "t2t").mkdir()
    (folder / "t2t" / "one.py").write_text("ONE = 1\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=first")
    write_program(tmp_path / "bin" / "sky", '#!/bin/sh\nprintf "%s\\n" "$@"\n')
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t2t", "-c", "user.email=t2t@localhost"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def call_sky(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout.parent}/bin:{os.environ['PATH']}"
    return subprocess.run(
        [checkout / "launch" / "sky.sh", *arguments],
        env=os.environ | {"HOME": str(checkout.parent), "PATH": path},
        capture_output=True,
        text=True,
    )


def test_what_git_does_not_track_is_not_shipped_and_the_revision_is_known(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("untracked.txt", "t2t/untracked.py", "runs/ignored"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).touch()
    done = call_sky(checkout, "jobs", "launch", "task.yaml", "--env", "PROGRAM=t2t.train --a=b c")
    assert done.returncode == 0, done.stderr
    *arguments, workdir = done.stdout.splitlines()
    assert arguments == ["jobs", "launch", "task.yaml", "--env", "PROGRAM=t2t.train --a=b c"]
    tree = Path(workdir.removeprefix("--workdir="))
    shipped = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert shipped == {*git(checkout, "ls-files").splitlines()}
    monkeypatch.setattr(provenance, "SOURCE_ROOT", tree)
    assert provenance.find_revision()["revision"] == git(checkout, "rev-parse", "HEAD")


def test_only_a_commit_is_shipped(checkout: Path) -> None:
    (checkout / "t2t" / "one.py").write_text("ONE = 2\n")
    done = call_sky(checkout, "launch", "task.yaml")
    assert done.returncode == 2
    assert "not committed, and only what is committed is shipped:\n M t2t/one.py" in done.stderr
    (checkout / ".git").rename(checkout / "gone")
    done = call_sky(checkout, "launch", "task.yaml")
    assert done.returncode == 2
    assert "is no git checkout; only what is committed is shipped" in done.stderr
