"""The manifest for GKE: what it does with exit statuses, and the image."""

import math
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from t2t.runtime.command_line import INTERRUPTED
from t2t.training.stop_request import STOPPED_EARLY
from tests.programs import ROOT, write_program

LAUNCH = ROOT / "launch"
MANIFEST = (LAUNCH / "gke-tpu.yaml").read_text()
# The manifest's fields, all of which are in JobSet's published schema (v1alpha2).
FIELDS = set(
    "action annotations apiVersion args backoffLimit completionMode completions containerName "
    "containers cpu failurePolicy image kind limits maxRestarts memory metadata name nodeSelector "
    "onExitCodes onJobFailureMessagePatterns onJobFailureReasons onPodConditions operator "
    "parallelism podFailurePolicy replicas replicatedJobs requests resources restartPolicy rules "
    "serviceAccountName spec status template terminationGracePeriodSeconds type values".split()
)


def test_no_field_is_misspelt() -> None:
    assert {*re.findall(r"^[ -]*(\w+):", MANIFEST, re.MULTILINE)} == FIELDS


def test_interrupted_job_starts_again_and_a_refused_one_does_not() -> None:
    spec = yaml.safe_load(MANIFEST)["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    causes = [
        rule.get("onExitCodes", {}).get("values") for rule in job["podFailurePolicy"]["rules"]
    ]
    assert causes == [[INTERRUPTED], None, [2]]  # None: the pod was evicted
    assert [
        (rule["action"], *rule["onJobFailureReasons"], *rule["onJobFailureMessagePatterns"])
        for rule in spec["failurePolicy"]["rules"]
    ] == [
        (action, "PodFailurePolicy", f"matching FailJob rule at index {index}$")
        for action, index in (("RestartJobSetAndIgnoreMaxRestarts", "[01]"), ("FailJobSet", "2"))
    ]
    assert spec["failurePolicy"]["maxRestarts"] > 0
    assert job["backoffLimit"] == 0  # otherwise Kubernetes starts the pod again before JobSet
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # podFailurePolicy needs it


def test_program_flags_and_chips_are_there() -> None:
    [replicated] = yaml.safe_load(MANIFEST)["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    module, *given = container["args"]
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
    flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in given)
    assert (ROOT / flags["config"]).exists()
    assert flags["workdir"].startswith("gs://BUCKET/")
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = job["completions"] * container["resources"]["limits"]["google.com/tpu"]
    assert chips == math.prod(map(int, topology))
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "distributed" in flags


# A stub of the image's Python: ends with the given status, or with 75 when it is told to stop.
PYTHON = """#!/usr/bin/env bash
trap 'exit 75' TERM
echo "$@" >"$STUBS/called"
[[ $3 == wait ]] || exit "$3"
while true; do sleep 0.05; done
"""


def start_container(folder: Path, argument: str) -> subprocess.Popen[bytes]:
    write_program(folder / "python", PYTHON)
    names = {"PATH": f"{folder}:{os.environ['PATH']}", "STUBS": str(folder)}
    command = [str(LAUNCH / "container.sh"), "t2t.train", argument]
    return subprocess.Popen(command, env=os.environ | names)


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (2, 2), (STOPPED_EARLY, 0), (134, 134)])
def test_image_ends_as_its_program_but_a_requested_stop_is_a_success(
    tmp_path: Path, status: int, expected: int
) -> None:
    assert start_container(tmp_path, str(status)).wait(timeout=600) == expected
    assert (tmp_path / "called").read_text() == f"-m t2t.train {status}\n"


def test_image_passes_sigterm_on_and_waits(tmp_path: Path) -> None:
    container = start_container(tmp_path, "wait")
    while container.poll() is None and not (tmp_path / "called").exists():
        time.sleep(0.02)
    container.send_signal(signal.SIGTERM)
    assert container.wait(timeout=600) == INTERRUPTED


def test_image_copies_what_is_there() -> None:
    text = (LAUNCH / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (\S+/?\S+) \S+$", text, re.MULTILINE):
        assert list(ROOT.glob(line)), line
    assert "$Format" in (ROOT / "REVISION").read_text()  # by which a checkout is refused
    [python] = re.findall(r"FROM python:(\S+)-slim", text)
    assert (ROOT / "scripts" / "constraints" / f"python{python}.txt").exists()
    assert (ROOT / re.findall(r'ENTRYPOINT \["(.*)"\]', text)[0]).exists()
