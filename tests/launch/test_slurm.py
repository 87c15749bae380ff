"""launch/slurm.sh on a real SLURM, which tests/launch/slurm_cluster.sh starts.

All jobs are submitted at the start, since each of them mostly waits. Where T2T_EXPECT_SLURM is set,
a SLURM that does not run is a failure.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from t2t.config.files import save_config
from t2t.runtime.command_line import INTERRUPTED
from t2t.training.run_directory import list_steps
from tests.programs import ROOT, write_program
from tests.tiny_training import change, make_config, read_figures

PATIENCE = 600  # seconds until a job that does not get further is a failure
JOB_NAME = "t2t-tests"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


class State(NamedTuple):
    """The state that SLURM reports of a job, or of a task of an array."""

    name: str
    status: int
    restarts: int


class Job(NamedTuple):
    """A job, or a task of an array, and the file with its output."""

    number: str
    log: Path

    def look(self) -> State:
        text = call("scontrol", "show", "job", self.number)
        name, status, restarts = (
            re.findall(rf"\b{field}=(\w+)", text)[0]
            for field in ("JobState", "ExitCode", "Restarts")
        )
        return State(name, int(status), int(restarts))

    def wait_until(self, has_come: Callable[[State], bool]) -> State:
        """Waits until something is true of the job; that it never will be is a failure."""
        deadline = time.monotonic() + PATIENCE
        while not has_come(state := self.look()):
            if state.name in ENDED or time.monotonic() > deadline:
                pytest.fail(f"job {self.number} is {state}, with the output\n{self.read_log()}")
            time.sleep(0.5)
        return state

    def wait_for_end(self) -> State:
        return self.wait_until(lambda state: state.name in ENDED)

    def read_log(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def call(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def submit(folder: Path, *command: str, python: str = sys.executable, cwd: Path = ROOT) -> Job:
    """Submits launch/slurm.sh, with flags of sbatch before it and a program behind it."""
    flags = ["--parsable", f"--job-name={JOB_NAME}", "--cpus-per-task=1", f"--output={folder}/log"]
    one_device = os.environ["XLA_FLAGS"].replace("=8", "=1")
    environment = os.environ | {"PYTHON": python, "XLA_FLAGS": one_device}
    done = subprocess.run(
        ["sbatch", *flags, *command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return Job(done.stdout.strip(), folder / "log")


def submit_stub(folder: Path, text: str, *flags: str) -> Job:
    """Submits a job whose Python is a script of bash."""
    python = write_program(folder / "python", f"#!/usr/bin/env bash\nulimit -c 0\n{text}")
    script = str(ROOT / "launch" / "slurm.sh")
    return submit(
        folder, *flags, script, "t2t.sweep", "--workdir=a b", python=str(python), cwd=folder
    )


def read_ends(log: str) -> dict[int, str]:
    """Reads how the tasks ended that did not end with status 0, from srun's messages."""
    ends: dict[int, str] = {}
    for tasks, end in re.findall(r"srun: error: \w+: tasks? ([\d,-]+): (.+)", log):
        for part in tasks.split(","):
            first, _, last = part.partition("-")
            ends |= dict.fromkeys(range(int(first), int(last or first) + 1), end)
    return ends


pytestmark = pytest.mark.slow

# Training that goes on until it is stopped, on a machine of any speed, and ends soon after that.
RECIPE = """
import dataclasses
from pathlib import Path
from t2t.config.files import load_config
from t2t.training.run_directory import list_steps


def get_config():
    config = load_config(Path("{folder}/config.json"))
    saved = list_steps(Path("{folder}/run"))
    steps = saved[-1] // 5 * 5 + 10 if saved else 1_000_000
    training = dataclasses.replace(config.training, steps=steps)
    return dataclasses.replace(config, training=training)
"""
# The task of an array that has the array's number is stopped while the others run.
STOP_ONE_TASK = """
echo "${@: -1}"
[[ $SLURM_JOB_ID == "$SLURM_ARRAY_JOB_ID" ]] || exec sleep 5
sleep 2
[[ $SLURM_RESTART_COUNT ]] || exit 75
"""
PRINT_ARGUMENTS = """
echo "sees GPUs ${CUDA_VISIBLE_DEVICES-of all jobs}: ${*@Q}"
"""


def end_by_restarts(statuses: str) -> str:
    """A script that ends in another way after each restart."""
    return f"""
statuses=({statuses})
status=${{statuses[SLURM_RESTART_COUNT]}}
((status < 128)) || kill -$((status - 128)) $$
exit "$status"
"""


class Stub(NamedTuple):
    """A script in place of Python, flags of sbatch, and how the job ends."""

    script: str
    flags: list[str]
    end: str = "COMPLETED"
    restarts: int = 0


STUBS = {
    "ends with 0": Stub("exit 0", []),
    "ends with 2": Stub("exit 2", [], "FAILED"),
    "ends with 76": Stub("exit 76", [], "FAILED"),
    "crashes without a new checkpoint": Stub(
        end_by_restarts("134 137 143 " + "137 " * 7 + "134 0"), [], "FAILED", 10
    ),
    "crashes after checkpoints": Stub(
        'mkdir -p "a b/checkpoints/$SLURM_RESTART_COUNT"\n' + end_by_restarts("137 " * 12 + "0"),
        ["--comment=my own words"],
        restarts=12,
    ),
    "reaches time limits and crashes": Stub(
        end_by_restarts(f"{INTERRUPTED} " * 11 + "137 0"), [], restarts=12
    ),
    "loses one process": Stub(
        "[[ ! $SLURM_RESTART_COUNT ]] || exit 0; exit $((SLURM_PROCID ? 134 : 1))",
        ["--ntasks=2"],
        restarts=1,
    ),
    "has one process": Stub(PRINT_ARGUMENTS, []),
    "has two nodes": Stub(PRINT_ARGUMENTS, ["--nodes=2", "--partition=high"]),
    "has a task per GPU": Stub(PRINT_ARGUMENTS, ["--ntasks-per-node=2", "--gpus-per-node=2"]),
    "has a GPU per task": Stub(PRINT_ARGUMENTS, ["--ntasks=2", "--gpus-per-task=1"]),
}


class Training(NamedTuple):
    """A job of training that was stopped, and what came of it."""

    state: State
    log: str
    run: Path
    saved: int  # the last checkpoint when SLURM had put the job back into the queue


class Jobs(NamedTuple):
    """All jobs of this file."""

    training: dict[str, Future[Training]]
    array: Job
    by_name: dict[str, Job]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """All jobs, submitted to a SLURM that runs."""
    try:
        partitions = call("sinfo", "--noheader", "--format=%R").split()
    except (OSError, subprocess.CalledProcessError):
        partitions = []
    if not {"main", "low", "high"} <= {*partitions}:
        missing = "SLURM does not run; as root on Debian: tests/launch/slurm_cluster.sh start"
        if os.environ.get("T2T_EXPECT_SLURM"):
            pytest.fail(missing)
        pytest.skip(missing)
    make_folder = tmp_path_factory.mktemp
    by_name = {
        name: submit_stub(make_folder("job"), stub.script, *stub.flags)
        for name, stub in STUBS.items()
    }
    folder = make_folder("job")
    doctor = ["launch/slurm.sh", "t2t.doctor", f"--workdir={folder}/run"]
    flags = ["--nodes=2", "--gpus-per-node=2", "--partition=high"]
    by_name["has idle GPUs"] = submit(folder, *flags, *doctor)
    folder = make_folder("job")
    array = submit_stub(folder, STOP_ONE_TASK, "--array=3-5", f"--output={folder}/log%a")
    with ThreadPoolExecutor() as threads:
        try:
            training = {
                "preemption": threads.submit(preempt, make_folder("preempted")),
                "time limit": threads.submit(reach_time_limit, make_folder("limited")),
                "lost process": threads.submit(lose_process, make_folder("killed")),
            }
            yield Jobs(training, array, by_name)
        finally:  # also ends the threads
            call("scancel", f"--name={JOB_NAME}")


def submit_training(folder: Path, *flags: str) -> tuple[Job, Path]:
    """Submits training of two processes, and returns the job and its run when it has saved once."""
    config = change(make_config(folder), mesh={"data": 2})
    save_config(config, folder / "config.json")
    (folder / "recipe.py").write_text(RECIPE.format(folder=folder))
    run = folder / "run"
    command = ["launch/slurm.sh", "t2t.train", f"--config={folder}/recipe.py", f"--workdir={run}"]
    job = submit(folder, *flags, *command)
    job.wait_until(lambda _: bool(list_steps(run)))
    return job, run


def preempt(folder: Path) -> Training:
    """Preempts training on two nodes by a job in another partition."""
    two_nodes = ["--nodes=2", "--ntasks-per-node=1"]
    job, run = submit_training(folder, "--partition=low", *two_nodes)
    flags = [*two_nodes, "--exclusive", f"--job-name={JOB_NAME}", "--output=/dev/null"]
    call("sbatch", "--partition=high", *flags, "--wrap=sleep 1")
    return finish(job, run)


def reach_time_limit(folder: Path) -> Training:
    """Lets training come close to its time limit."""
    job, run = submit_training(folder, "--ntasks=2", "--time=60", "--signal=TERM@110")
    # Limits are whole minutes. This one is one or two minutes away, and then so is the signal.
    [hours, minutes] = re.findall(
        r"RunTime=(\d+):(\d+)", call("scontrol", "show", "job", job.number)
    )[0]
    limit = 60 * int(hours) + int(minutes) + 2
    call("scontrol", "update", f"JobId={job.number}", f"TimeLimit={limit}")
    job.wait_until(lambda state: state.restarts > 0)
    call("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")
    return finish(job, run)


def lose_process(folder: Path) -> Training:
    """Kills the second of two processes of training."""
    job, run = submit_training(folder, "--ntasks=2")
    rows = map(str.split, call("scontrol", "listpids", job.number, "n1").splitlines())
    [pid] = [row[0] for row in rows if row[2:] == ["0", "1", "1"]]  # step, local and global task
    call("kill", "-KILL", pid)
    return finish(job, run)


def finish(job: Job, run: Path) -> Training:
    job.wait_until(lambda state: state.restarts > 0)
    saved = list_steps(run)[-1]
    return Training(job.wait_for_end(), job.read_log(), run, saved)


@pytest.mark.parametrize("fault", ["preemption", "time limit", "lost process"])
def test_training_continues_after(fault: str, jobs: Jobs) -> None:
    training = jobs.training[fault].result()
    assert training.state == State("COMPLETED", 0, restarts=1), training.log
    starts = map(int, re.findall(r"starting after step (\d+)", training.log))
    assert [*starts] == [0, training.saved], training.log
    end = training.saved // 5 * 5 + 10
    assert list_steps(training.run)[-1] == end
    for prefix in ("train/", "validation/"):
        steps = [figures["step"] for figures in read_figures(training.run, prefix)]
        assert steps == [*range(5, end + 5, 5)]
    ends = read_ends(training.log)
    if fault == "lost process":
        assert (ends[0] in ("Aborted", "Exited with exit code 134"), ends[1]) == (True, "Killed")
    else:  # all processes save
        assert ends == dict.fromkeys([0, 1], "Exited with exit code 75")


def test_task_of_an_array_is_requeued_alone(jobs: Jobs) -> None:
    tasks = {n: Job(f"{jobs.array.number}_{n}", Path(f"{jobs.array.log}{n}")) for n in (3, 4, 5)}
    assert sorted(task.wait_for_end().restarts for task in tasks.values()) == [0, 0, 1]
    for number, task in tasks.items():  # each is a run of a sweep
        assert task.read_log().startswith(f"--index={number}\n")


@pytest.mark.parametrize("name", STUBS)
def test_job_is_requeued_where_that_helps(name: str, jobs: Jobs) -> None:
    job, stub = jobs.by_name[name], STUBS[name]
    state = job.wait_for_end()
    assert (state.name, state.restarts) == (stub.end, stub.restarts), job.read_log()
    if name.startswith("ends with"):
        assert state.status == int(name.split()[-1])
    if name == "crashes after checkpoints":  # lost starts are counted behind the user's comment
        comment = r"Comment=my own words lost starts: 1 at \d+ *\n"
        assert re.search(comment, call("scontrol", "show", "job", job.number))


def read_tasks(job: Job) -> tuple[list[str], list[str]]:
    """Reads which GPUs the tasks of a job see, and their arguments."""
    job.wait_for_end()
    lines = [line.partition(": ") for line in job.read_log().splitlines()]
    return [line[0] for line in lines], [line[2] for line in lines]


def test_each_task_gets_the_arguments_and_looks_for_others_if_there_are_some(jobs: Jobs) -> None:
    given = "'-m' 't2t.sweep' '--workdir=a b'"
    assert read_tasks(jobs.by_name["has one process"])[1] == [given]
    assert read_tasks(jobs.by_name["has two nodes"])[1] == [f"{given} '--distributed'"] * 2


def test_tasks_see_all_gpus_of_their_job_and_no_others(jobs: Jobs) -> None:
    (first, second), _ = read_tasks(jobs.by_name["has a task per GPU"])
    assert re.fullmatch(r"sees GPUs \d,\d", first)
    assert first == second
    assert read_tasks(jobs.by_name["has a GPU per task"])[0] == ["sees GPUs of all jobs"] * 2
    idle = jobs.by_name["has idle GPUs"]  # fewer tasks than GPUs
    assert idle.wait_for_end() == State("FAILED", 2, restarts=0), idle.read_log()
    assert "but its node has 1 tasks" in idle.read_log()


@pytest.mark.usefixtures("jobs")
def test_job_without_its_python_says_how_to_make_it(tmp_path: Path) -> None:
    script = str(ROOT / "launch" / "slurm.sh")
    job = submit(tmp_path, script, "t2t.train", python="", cwd=tmp_path)
    assert job.wait_for_end() == State("FAILED", 2, restarts=0)
    assert job.read_log().startswith("error: .venv/bin/python is missing; make it with: bash -c ")
