"""The scripts in launch/, as far as they run without a cluster."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t2t.runtime import program
from t2t.training.early_stopping import STOPPED_EARLY, read_stop_request
from t2t.training.run_directory import list_steps
from tests.tiny_training import change, make_config, read_figures, write_recipe

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))

# A stub of srun: starts tasks with SLURM's variables and passes on the signals that SLURM sends.
SRUN = """#!/usr/bin/env bash
echo "$@" >>"$STUBS/srun.log"
while [[ $1 == --* ]]; do shift; done
[[ ! -e $STUBS/status ]] || exit "$(<"$STUBS/status")"
export SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_NODES=1
for task in $(seq 0 $((SLURM_NTASKS - 1))); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    pids[task]=$!
done
trap 'kill -TERM "${pids[@]}"' TERM
status=0
for pid in "${pids[@]}"; do
    until wait "$pid"; code=$?; ! kill -0 "$pid" 2>/dev/null; do :; done
    ((code == 0)) || status=$code
done
exit "$status"
"""
# A stub of the environment's Python, whose programs do nothing: training waits until its checkpoint
# was translated, or until it is told to stop.
PYTHON = """#!/usr/bin/env bash
case "$*" in
*phrasebook*) printf 'The dog runs.\\tDer Hund rennt.\\n' ;;
*t2t.train*)
    echo "$@" >>"$STUBS/train.log"
    mkdir -p "$STUBS/run/checkpoints/50"
    until [[ -e $STUBS/translated ]]; do
        [[ ! -e $STUBS/run/stop.json ]] || exit 76
        sleep 0.1
    done
    ;;
*t2t.translate*)
    [[ ! -e $STUBS/broken ]] || exit 1
    touch "$STUBS/translated"
    echo "Der Hund läuft."
    ;;
*t2t.evaluate* | *"-m pip"* | *"-m ensurepip"*) ;;
*) exec "$REAL_PYTHON" "$@" ;;
esac
"""
SCONTROL = '#!/usr/bin/env bash\necho "$@" >>"$STUBS/scontrol.log"\n'


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_is_valid_bash(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def run_quickstart(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "python").write_text(PYTHON)
    (folder / "bin" / "python").chmod(0o755)
    names = {"T2T_ENVIRONMENT": str(folder), "STUBS": str(folder), "REAL_PYTHON": sys.executable}
    return subprocess.run(
        [ROOT / "launch" / "quickstart.sh", folder / "run", "--config.training.steps=100"],
        env={name: value for name, value in os.environ.items() if name != "PYTHON"} | names,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_quickstart_translates_with_the_first_checkpoint(tmp_path: Path) -> None:
    done = run_quickstart(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    _, training, _, translations, _ = re.split(r"\n== .*\n", done.stdout)
    example = "source       The dog runs.\ntranslation  Der Hund läuft.\n"
    assert f"by the first checkpoint, while training goes on:\n\n{example}" in training
    assert translations.startswith(example)
    assert (tmp_path / "train.log").read_text().endswith("/run --config.training.steps=100\n")
    again = run_quickstart(tmp_path)
    assert again.returncode == 0
    assert "first checkpoint" not in again.stdout


def test_quickstart_ends_where_the_first_checkpoint_cannot_translate(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    done = run_quickstart(tmp_path)
    assert done.returncode == STOPPED_EARLY
    assert "== Evaluation" not in done.stdout
    request = read_stop_request(tmp_path / "run")
    assert request
    assert "could not translate with the first checkpoint" in request.reason


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        ("3.12", {}, f"{ROOT}/launch/constraints/python3.12.txt\n"),
        ("3.12", {"T2T_CONSTRAINTS": ""}, "\n"),
        ("3.99", {}, "warning: t2t was not tested with Python 3.99"),
        ("3.12", {"T2T_CONSTRAINTS": "/no.txt"}, "error: T2T_CONSTRAINTS=/no.txt is no file\n"),
    ],
    ids=str,
)
def test_launchers_install_what_was_tested(
    tmp_path: Path, version: str, given: dict[str, str], expected: str
) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\necho {version}\n")
    (tmp_path / "python").chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if "T2T_" not in name}
    done = subprocess.run(
        ["bash", "-c", "source launch/environment.sh; python=$FAKE; find_constraints"],
        cwd=ROOT,
        env=inherited | {"FAKE": str(tmp_path / "python")} | given,
        capture_output=True,
        text=True,
    )
    assert (done.stdout + done.stderr).startswith(expected)
    assert done.returncode == expected.startswith("error")


MAKE_ENVIRONMENT = """source launch/environment.sh
find_python() { fail "made again"; }
make_environment requirements.txt"""


def test_environment_of_the_same_python_is_kept(tmp_path: Path) -> None:
    """The output of `python -VV` may contain brackets, a pattern in bash unless it is quoted."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    names = {"PYTHON": sys.executable, "REAL_PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", "-c", MAKE_ENVIRONMENT],
        cwd=ROOT,
        env=os.environ | names | {"T2T_ENVIRONMENT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "[" in sys.version


def test_folder_that_is_no_environment_is_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("of value")
    done = subprocess.run(
        ["bash", "-c", "source launch/environment.sh; make_environment requirements.txt"],
        cwd=ROOT,
        env=os.environ | {"T2T_ENVIRONMENT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"error: {tmp_path} was not made by the scripts in launch/" in done.stderr
    assert [*tmp_path.iterdir()] == [tmp_path / "thesis.tex"]


def test_environment_whose_making_is_interrupted_is_marked(tmp_path: Path) -> None:
    (tmp_path / "made-by-t2t").touch()
    (tmp_path / "of an older one").mkdir()
    python = tmp_path.parent / "python"
    python.write_text('#!/bin/bash\n[[ $* != "-m venv"* ]] || exit 130\nexec python3 "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-ec", "source launch/environment.sh; make_environment requirements.txt"],
        cwd=ROOT,
        env=os.environ | {"T2T_ENVIRONMENT": str(tmp_path), "PYTHON": str(python)},
        stdout=subprocess.DEVNULL,
    )
    assert done.returncode == 130
    assert [*tmp_path.iterdir()] == [tmp_path / "made-by-t2t"]


def test_environment_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "made-by-t2t").touch()
    done = subprocess.run(
        ["bash", "-c", MAKE_ENVIRONMENT],
        cwd=ROOT,
        env=os.environ | {"T2T_ENVIRONMENT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "error: made again" in done.stderr


def test_program_that_does_not_exist_is_one_message() -> None:
    command = ["launch/local.py", "--processes=2", "--", "no-such-program"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no-such-program is no program on the PATH" in done.stderr


def test_program_whose_output_cannot_be_written_ends() -> None:
    program = "print('\\n' * 200_000); print('end', end='\\n' * 200_000)"  # more than a pipe holds
    command = ["launch/local.py", "--processes=1", "--", sys.executable, "-c", program]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=full, timeout=60)
    assert done.returncode in (0, 120)  # 120: Python could not write what was left at its end


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("--config.seed=1", "RUN comes before the flags"),
        ("gs://b/run", "RUN is a local folder"),
        ("a,b", "RUN may not contain a comma"),
    ],
)
def test_quickstart_refuses_what_is_no_folder(run: str, message: str) -> None:
    quickstart = ROOT / "launch" / "quickstart.sh"
    done = subprocess.run([quickstart, run], capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.slow
def test_slurm_job_is_requeued_when_it_is_preempted_and_continues(tmp_path: Path) -> None:
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    config = change(make_config(tmp_path), training={"steps": 30}, mesh={"data": 2})
    write_recipe(config, tmp_path / "recipe.py")
    run = tmp_path / "run"
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "STUBS": str(tmp_path),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_NTASKS": "2",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    }

    def submit() -> subprocess.Popen[str]:
        flags = ["t2t.train", f"--config={tmp_path}/recipe.py", f"--workdir={run}"]
        return subprocess.Popen(
            ["launch/slurm.sh", *flags],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    job = submit()
    while not list_steps(run) and job.poll() is None:
        time.sleep(0.05)
    [step] = find_children(job.pid)
    os.kill(step, signal.SIGTERM)
    _, messages = job.communicate(timeout=300)
    assert job.returncode == program.INTERRUPTED, messages
    assert (tmp_path / "scontrol.log").read_text() == f"requeue {os.getpid()}\n"
    stopped = list_steps(run)[-1]
    assert stopped < 30
    job = submit()
    _, messages = job.communicate(timeout=300)
    assert job.returncode == 0, messages
    assert list_steps(run)[-1] == 30
    assert [figures["step"] for figures in read_figures(run, "train/")] == list(range(5, 35, 5))


def find_children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def run_slurm(folder: Path, *command: str, **names: str) -> tuple[int, str, str]:
    """Runs the job with a stub of srun that ends with the status in a file.

    Returns the exit status, the messages, and how srun was called.
    """
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "STUBS": str(folder),
        "SLURM_JOB_ID": "7",
        "PYTHON": sys.executable,
    }
    done = subprocess.run(
        [ROOT / "launch" / "slurm.sh", *command],
        cwd=folder,
        env=os.environ | environment | names,
        capture_output=True,
        text=True,
    )
    called = folder / "srun.log"
    return done.returncode, done.stderr, called.read_text() if called.exists() else ""


@pytest.mark.parametrize(
    ("ended", "restarts", "requeued"),
    [(0, 0, False), (75, 99, True), (76, 0, False), (2, 0, False), (1, 0, False), (134, 0, True),
     (137, 9, True), (134, 10, False)],
)  # fmt: skip
def test_slurm_job_is_requeued_where_that_helps(
    tmp_path: Path, ended: int, restarts: int, requeued: bool
) -> None:
    (tmp_path / "status").write_text(str(ended))
    names = {"SLURM_NTASKS": "16", "SLURM_RESTART_COUNT": str(restarts)}
    status, _, called = run_slurm(tmp_path, "t2t.train", "--workdir=a b", **names)
    assert status == ended
    assert (tmp_path / "scontrol.log").exists() == requeued
    assert called == (
        f"--cpus-per-task=8 {sys.executable} -m t2t.train --workdir=a b "
        "--distributed\n"
    )


def test_slurm_job_runs_in_a_container(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("0")
    names = {"T2T_IMAGE": "registry#t2t:cuda", "T2T_MOUNTS": "/data:/data", "PYTHON": ""}
    names |= {"SLURM_CPUS_PER_TASK": "12", "SLURM_NTASKS": "1"}
    status, _, called = run_slurm(tmp_path, "t2t.prepare", "--config=configs/base.py", **names)
    assert status == 0
    assert called == (
        "--cpus-per-task=12 --container-image=registry#t2t:cuda "
        f"--container-workdir={tmp_path} --container-mounts={tmp_path}:{tmp_path},/data:/data "
        "python -m t2t.prepare --config=configs/base.py\n"
    )


def test_slurm_array_runs_one_run_of_a_sweep_per_task(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("0")
    _, _, called = run_slurm(tmp_path, "t2t.sweep", "--workdir=x", SLURM_ARRAY_TASK_ID="3")
    assert called.endswith("-m t2t.sweep --workdir=x --index=3\n")


def test_slurm_job_without_its_python_says_how_to_make_it(tmp_path: Path) -> None:
    status, messages, called = run_slurm(tmp_path, "t2t.train", PYTHON="")
    assert (status, called) == (2, "")
    assert messages.startswith("error: .venv/bin/python is missing; make it with: bash -c 'source")


def test_status_that_requeues_is_the_programs_own() -> None:
    text = (ROOT / "launch" / "slurm.sh").read_text()
    [status] = re.findall(r"readonly interrupted=(\d+)", text)
    assert int(status) == program.INTERRUPTED
