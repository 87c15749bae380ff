"""How processes find their GPUs and each other."""

import signal
import socket
from pathlib import Path

import pytest

from t2t.config.fields import ConfigError
from t2t.config.requests import Hosts
from t2t.runtime import command_line
from t2t.runtime.distributed import check_visible_gpus, wait_for_coordinator
from tests import programs

EIGHT = "0,1,2,3,4,5,6,7"


@pytest.mark.parametrize(
    ("visible", "tasks", "more"),
    [
        (EIGHT, "8(x2)", {}),
        ("0,1,2,3", "8(x2),4", {"SLURM_NODEID": "2"}),
        ("0", "8", {"JAX_LOCAL_DEVICE_IDS": "0"}),
        ("", "8", {}),  # no GPUs
        (EIGHT, "", {}),  # not under SLURM
    ],
)
def test_one_gpu_per_task_is_what_jax_expects(
    visible: str, tasks: str, more: dict[str, str]
) -> None:
    slurm = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": "0"}
    check_visible_gpus({"CUDA_VISIBLE_DEVICES": visible} | slurm | more)


@pytest.mark.parametrize(("visible", "tasks"), [("0", "8"), (EIGHT, "1")])
def test_other_gpus_than_jax_expects_are_an_error(visible: str, tasks: str) -> None:
    slurm = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": "0"}
    with pytest.raises(ConfigError, match="all GPUs of the job, with srun --gpu-bind=none"):
        check_visible_gpus({"CUDA_VISIBLE_DEVICES": visible} | slurm)


def test_coordinator_that_listens_is_found() -> None:
    with socket.create_server(("localhost", 0)) as server:
        wait_for_coordinator(f"localhost:{server.getsockname()[1]}", seconds=300)


def test_program_whose_process_0_is_not_there_ends_as_lost(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        address = f"localhost:{unused.getsockname()[1]}"
        code = (
            "import runpy\nfrom t2t.runtime import distributed\n"
            "distributed.COORDINATOR_TIMEOUT = 0\nrunpy.run_module('t2t.train', {}, '__main__')"
        )
        flags = ["--config=configs/quickstart.py", f"--workdir={tmp_path}/run"]
        meeting = [f"--coordinator={address}", "--num_processes=2", "--process_id=1"]
        done = programs.run_python("-c", code, *flags, *meeting)
    assert done.returncode == command_line.LOST
    assert f"--coordinator={address} does not answer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("address", "process_id", "message"),
    [
        ("node1", 0, "--coordinator=node1: write HOST:PORT"),
        (":8476", 0, "write HOST:PORT"),
        ("node1:8476", 2, "--process_id=2 must be from 0 to --num_processes - 1 = 1"),
    ],
)
def test_wrong_address_and_number_are_refused_in_each_process(
    address: str, process_id: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Hosts(coordinator=address, num_processes=2, process_id=process_id)


def test_process_that_fails_alone_ends_with_its_own_status() -> None:
    code = """
from t2t.config.requests import Hosts
from t2t.runtime import distributed, command_line

def main(request: Hosts):
    distributed.join(**request.hosts)
    if distributed.is_first():
        raise OSError(28, "No space left on device", "runs/big")
    distributed.wait_for_all()

command_line.LEAVING = 1
command_line.run(main)
"""
    with programs.start_two(code) as (first, other):
        _, message = first.communicate(timeout=300)  # without the limit JAX waits 300 s and aborts
        assert (first.returncode, message) == (2, "runs/big: No space left on device\n")
        other.communicate(timeout=300)
        assert other.returncode in (-signal.SIGABRT, command_line.LOST)
