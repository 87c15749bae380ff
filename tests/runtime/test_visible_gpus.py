"""How processes find their GPUs."""

import pytest

from t2t.config.fields import ConfigError
from t2t.runtime.distributed import check_visible_gpus, count_tasks

EIGHT = "0,1,2,3,4,5,6,7"


@pytest.mark.parametrize(
    ("text", "node", "tasks"), [("8", "0", 8), ("8(x2),4", "1", 8), ("8(x2),4", "2", 4)]
)
def test_tasks_of_a_node_are_read(text: str, node: str, tasks: int) -> None:
    assert count_tasks({"SLURM_STEP_TASKS_PER_NODE": text, "SLURM_NODEID": node}) == tasks
    assert count_tasks({}) is None


@pytest.mark.parametrize(
    ("visible", "tasks", "more"),
    [
        (EIGHT, "8(x2)", {}),
        ("0", "1", {}),
        ("0", "8", {"JAX_LOCAL_DEVICE_IDS": "0"}),
        ("", "8", {}),  # no GPUs
    ],
)
def test_one_gpu_per_task_is_what_jax_expects(
    visible: str, tasks: str, more: dict[str, str]
) -> None:
    slurm = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": "0"}
    check_visible_gpus({"CUDA_VISIBLE_DEVICES": visible} | slurm | more)
    check_visible_gpus({"CUDA_VISIBLE_DEVICES": EIGHT})  # not under SLURM


@pytest.mark.parametrize(("visible", "tasks"), [("0", "8"), (EIGHT, "1")])
def test_other_gpus_than_jax_expects_are_an_error(visible: str, tasks: str) -> None:
    slurm = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": "0"}
    with pytest.raises(ConfigError, match=r"one task per GPU with srun --gpu-bind=none"):
        check_visible_gpus({"CUDA_VISIBLE_DEVICES": visible} | slurm)
