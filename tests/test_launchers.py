"""What is in launch/: as far as it can be run without a cluster."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from t2t import cli
from t2t.training.run_directory import list_steps
from tests.tiny_training import change, make_config, read_figures, write_recipe

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))

# As srun does: tasks with SLURM's variables, which get the signals that SLURM sends.
SRUN = """#!/usr/bin/env bash
export SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=1
for task in 0 1; do
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
SCONTROL = '#!/usr/bin/env bash\necho "$@" >>"$STUBS/scontrol.log"\n'


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_is_valid_bash(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_tpu_pod_script_says_how_it_is_called() -> None:
    script = [str(ROOT / "launch" / "tpu_pod.sh")]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_jobset_is_consistent_and_starts_a_program_that_is_there() -> None:
    job: dict[str, Any] = yaml.safe_load((ROOT / "launch" / "gke.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    [replicated] = job["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} <= {
        volume["name"] for volume in pod["volumes"]
    }
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = int(topology[0]) * int(topology[1])
    assert spec["completions"] * resources["limits"]["google.com/tpu"] == chips
    python, flag, module, *flags = container["command"]
    assert (python, flag) == ("python", "-m")
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
    assert "--distributed" in flags
    [config] = [value.split("=")[1] for value in flags if value.startswith("--config=")]
    assert (ROOT / config).exists()


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
    assert job.returncode == cli.INTERRUPTED, messages
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


def test_status_that_requeues_is_the_programs_own() -> None:
    text = (ROOT / "launch" / "slurm.sh").read_text()
    [status] = re.findall(r"readonly interrupted=(\d+)", text)
    assert int(status) == cli.INTERRUPTED
