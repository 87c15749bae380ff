"""launch/tpu.py with a stub of gcloud whose hosts are folders, on which it really runs programs."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from t2t.runtime import program
from t2t.training import provenance
from t2t.training.early_stopping import STOPPED_EARLY
from tests.launch.gcloud_stub import PYTHON, Cloud, finish

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    cloud = Cloud(tmp_path)
    yield cloud
    for launcher in cloud.launchers:
        launcher.kill()
        launcher.communicate()
    cloud.kill()


def test_program_runs_on_all_hosts_until_it_has_ended(cloud: Cloud) -> None:
    launcher = cloud.watch("--spot")
    cloud.wait_for("started", 1)
    log = (cloud.tpu / "host-1" / "t2t-run" / "log").read_text()
    assert log == "started --workdir=gs://bucket/a b --distributed\n"
    cloud.end(0)
    status, output = finish(launcher)
    assert status == 0, output
    assert "hosts: 2 exited 0\n" in output
    created = (cloud.folder / "gcloud.log").read_text().splitlines()[1]
    assert created == (
        "compute tpus queued-resources create pod --accelerator-type=v5litepod-8 --spot "
        "--runtime-version=v2-alpha-tpuv5-lite --node-id=pod --async --zone=here --quiet"
    )


def test_hosts_know_the_revision_and_the_changes(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cloud.checkout / "t2t" / "new.py").write_text("NEW = 1\n")
    (cloud.checkout / "requirements.txt").unlink()
    (cloud.checkout / "runs").mkdir()
    (cloud.checkout / "runs" / "large").write_text("ignored by git")
    monkeypatch.setattr(provenance, "SOURCE_ROOT", cloud.checkout)
    expected = provenance.find_revision()
    assert expected["changed"] == ["?? t2t/new.py"]
    (cloud.checkout / "requirements.txt").touch()
    assert cloud.call("create", "--type=v6e-8")[0] == 0
    status, output = cloud.call("start", "--", "t2t.train")
    assert status == 0, output
    host = cloud.tpu / "host-0" / "t2t"
    assert not (host / "runs").exists()
    monkeypatch.setattr(provenance, "SOURCE_ROOT", host)
    assert provenance.find_revision() == expected
    assert expected["revision"] == cloud.git("rev-parse", "HEAD")


@pytest.mark.slow
def test_preempted_tpu_is_requested_again_and_the_program_starts_again(cloud: Cloud) -> None:
    launcher = cloud.watch("--spot", "--slices=2")
    cloud.wait_for("started", 1, hosts=4)
    (cloud.tpu / "mark").touch()
    (cloud.tpu / "state").write_text("SUSPENDED\n")
    while launcher.poll() is None and (cloud.tpu / "mark").exists():
        time.sleep(0.05)
    cloud.wait_for("started", 1, hosts=4)
    cloud.end(0)
    status, output = finish(launcher)
    assert status == 0, output
    assert "pod is gone, since it was preempted" in output
    log = (cloud.folder / "gcloud.log").read_text()
    assert log.count(" create pod ") == 2
    assert log.count(" delete pod --force ") == 1
    assert " --node-count=2 " in log
    assert " ssh pod --worker=all --node=all --command=" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "status"), [([75, 0], 0), ([134, 0], 0), ([2], 2), ([STOPPED_EARLY], 76), ([1, 1], 1)]
)
def test_exit_status_decides_whether_the_program_starts_again(
    cloud: Cloud, ends: list[int], status: int
) -> None:
    launcher = cloud.watch("--vm", "--max-restarts=1")
    for number, end in enumerate(ends, start=1):
        cloud.wait_for("started", number)
        cloud.end(end)
    found, output = finish(launcher)
    assert found == status, output


@pytest.mark.slow
def test_stopped_program_is_not_started_again(cloud: Cloud) -> None:
    launcher = cloud.watch()
    cloud.wait_for("started", 1)
    assert cloud.call("stop") == (0, "2 stopped\n")
    assert finish(launcher)[0] == program.INTERRUPTED
    assert cloud.call("status") == (0, "ACTIVE\nhost-0 stopped\nhost-1 stopped\n")


@pytest.mark.slow
def test_watcher_may_go_away_and_come_back(cloud: Cloud) -> None:
    launcher = cloud.watch()
    cloud.wait_for("started", 1)
    launcher.send_signal(signal.SIGINT)
    status, output = finish(launcher)
    assert status == program.INTERRUPTED
    assert "the program goes on" in output
    launcher = cloud.watch()
    cloud.end(0)
    assert finish(launcher)[0] == 0
    cloud.wait_for("started", 1)


def reboot_host(cloud: Cloud) -> None:
    """Kills what runs on host 1; as in a reboot, nothing writes the exit status."""
    state = cloud.tpu / "host-1" / "t2t-run"
    runner = int((state / "pid").read_text())
    parent = int(Path(f"/proc/{runner}/stat").read_text().split()[3])
    os.kill(parent, signal.SIGKILL)
    os.kill(runner, signal.SIGKILL)


@pytest.mark.slow
def test_host_that_lost_its_program_restarts_it_on_all(cloud: Cloud) -> None:
    launcher = cloud.watch()
    cloud.wait_for("started", 1)
    reboot_host(cloud)
    cloud.wait_for("started", 2)
    cloud.end(0)
    status, output = finish(launcher)
    assert status == 0, output
    assert "hosts: 1 lost, 1 running" in output


@pytest.mark.slow
def test_program_that_the_launcher_halted_is_started_again(cloud: Cloud) -> None:
    """Its own halt is no stop of the user's, although the start behind it fails at first."""
    launcher = cloud.watch()
    cloud.wait_for("started", 1)
    (cloud.folder / "broken").touch()
    reboot_host(cloud)
    cloud.wait_for("started", 2)
    cloud.end(0)
    status, output = finish(launcher)
    assert status == 0, output
    assert "connection lost\ntrying again" in output


@pytest.mark.slow
def test_watch_does_not_take_another_programs_end_for_its_own(cloud: Cloud) -> None:
    assert cloud.call("create", "--type=v5litepod-8")[0] == 0
    assert cloud.call("start", "--", "t2t.train", "--other")[0] == 0
    cloud.wait_for("started --other", 1)
    cloud.end(0)
    launcher = cloud.watch()
    cloud.wait_for("started --workdir", 1)
    cloud.end(2)
    assert finish(launcher)[0] == 2


@pytest.mark.slow
def test_second_program_waits_for_the_first_and_finds_its_runs(cloud: Cloud) -> None:
    assert cloud.call("create", "--type=v5litepod-8")[0] == 0
    assert cloud.call("start", "--", "t2t.train")[0] == 0
    status, output = cloud.call("start", "--", "t2t.train")
    assert status == 2
    assert "a program is running on pod; stop it first" in output
    run = cloud.tpu / "host-0" / "t2t" / "runs" / "base"
    run.mkdir(parents=True)
    assert cloud.call("stop")[0] == 0
    assert cloud.call("start", "--", "t2t.train")[0] == 0
    assert run.exists()
    assert cloud.call("stop")[0] == 0


@pytest.mark.slow
def test_file_that_was_deleted_is_deleted_on_the_hosts(cloud: Cloud) -> None:
    own, there = cloud.checkout / "t2t" / "old file.py", cloud.tpu / "host-0" / "t2t"
    own.touch()
    assert cloud.call("create", "--type=v5litepod-8")[0] == 0
    for number in range(2):
        assert cloud.call("start", "--", "t2t.train")[0] == 0
        assert (there / "t2t" / "old file.py").exists() == own.exists() == (number == 0)
        (there / "out").mkdir(exist_ok=True)
        assert cloud.call("stop")[0] == 0
        own.unlink(missing_ok=True)
    assert (there / "out").exists()


@pytest.mark.slow
def test_repository_within_the_checkout_is_left_out(cloud: Cloud) -> None:
    subprocess.run(["git", "init", "-q", cloud.checkout / "their repo"], check=True)
    (cloud.checkout / "their repo" / "file").touch()
    assert cloud.call("create", "--type=v5litepod-8")[0] == 0
    for _ in range(2):
        status, output = cloud.call("start", "--", "t2t.train")
        assert (status, "their repo/ is a git repository of its own: left out" in output) == (
            0,
            True,
        )
        assert cloud.call("stop")[0] == 0


def test_folder_of_the_user_on_a_host_is_kept(cloud: Cloud) -> None:
    assert cloud.call("create", "--type=v5litepod-8")[0] == 0
    own = cloud.tpu / "host-1" / "t2t" / ".git"
    own.mkdir(parents=True)
    status, output = cloud.call("start", "--", "t2t.train")
    assert status == 2
    assert "host-1/t2t was not made by launch/tpu.py" in output
    assert [*own.parent.iterdir()] == [own]


def test_nothing_starts_while_a_host_does_not_answer(cloud: Cloud) -> None:
    assert cloud.call("create", "--type=v5litepod-8")[0] == 0
    (cloud.folder / "unreachable").write_text("host-1\n")
    status, output = cloud.call("start", "--", "t2t.train")
    assert status == 2
    assert "answered: host-0\n" in output
    assert "Connection timed out" in output
    assert not (cloud.tpu / "host-0" / "t2t-run").exists()


@pytest.mark.slow
def test_host_that_answers_late_is_waited_for(cloud: Cloud) -> None:
    (cloud.folder / "unreachable").write_text("host-1\n")
    launcher = cloud.watch()
    log = cloud.folder / "gcloud.log"
    while launcher.poll() is None and (not log.exists() or log.read_text().count(" ssh ") < 2):
        time.sleep(0.05)
    (cloud.folder / "unreachable").unlink()
    cloud.wait_for("started", 1)
    cloud.end(0)
    status, output = finish(launcher)
    assert status == 0, output
    assert "trying again" in output


def test_quota_error_ends_the_first_request(cloud: Cloud) -> None:
    (cloud.folder / "quota").touch()
    status, output = finish(cloud.watch())
    assert status == 2
    assert "gcloud create: ERROR: RESOURCE_EXHAUSTED: Quota limit" in output


def test_failed_request_says_where_to_look(cloud: Cloud) -> None:
    assert cloud.call("create", "--type=v5litepod-8")[0] == 0
    (cloud.tpu / "state").write_text("FAILED\n")
    status, output = finish(cloud.watch())
    assert status == 2
    assert "describe` says why; delete it, then try again" in output


def test_request_that_fails_later_is_not_repeated_for_ever(cloud: Cloud) -> None:
    (cloud.folder / "later").write_text("FAILED\n")
    status, output = finish(cloud.watch())
    assert status == 2
    assert "describe` says why" in output
    log = (cloud.folder / "gcloud.log").read_text()
    assert (log.count(" create pod "), log.count(" delete pod ")) == (1, 0)


def test_stopped_vm_is_not_deleted(cloud: Cloud) -> None:
    assert cloud.call("create", "--type=v5litepod-8")[0] == 0
    (cloud.tpu / "state").write_text("STOPPED\n")
    status, output = finish(cloud.watch("--vm"))
    assert status == 2
    assert "pod was stopped; `gcloud compute tpus tpu-vm start` starts it again" in output
    assert cloud.tpu.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["start"], "take a program: -- t2t.train --config=..."),
        (["status", "--", "t2t.train"], "take a program"),
        (["start", "--", "python"], "python is no module of t2t"),
        (["create", "--vm", "--slices=2"], "several slices need a queued resource"),
        (["create"], "--type is missing"),
    ],
)
def test_wrong_command_is_one_message(cloud: Cloud, flags: list[str], message: str) -> None:
    status, output = cloud.call(flags[0], *flags[1:])
    assert status == 2
    assert message in output
    assert not (cloud.folder / "gcloud.log").exists()


def test_checkout_without_git_is_refused(cloud: Cloud) -> None:
    assert cloud.call("create", "--type=v5litepod-8")[0] == 0
    shutil.rmtree(cloud.checkout / ".git")
    status, output = cloud.call("start", "--", "t2t.train")
    assert status == 2
    assert "is no git checkout" in output


# A system's Python 3.10, whose pip installs uv, which makes a newer one.
OLD_PYTHON = """#!/usr/bin/env bash
echo "$@" >>"$STUBS/python.log"
case "$*" in
*"uv python find"*) echo "$STUBS/new-python" ;;
*"-m pip"* | *"-m uv"*) ;;
*) exit 1 ;;
esac
"""
# The newer one: its environment gets the Python that the other tests have.
NEW_PYTHON = """#!/usr/bin/env bash
[[ "$*" == *"-m venv"* ]] || exec "$STUBS/made" "$@"
mkdir -p "${*: -1}/bin"
cp "$STUBS/made" "${*: -1}/bin/python"
"""


def test_old_python_of_the_standard_image_is_replaced_with_uv(cloud: Cloud) -> None:
    shutil.rmtree(cloud.folder / "environment")
    for name in ("python3.13", "python3.14", "python3.12", "python3.11", "python3", "python"):
        (cloud.folder / name).write_text(OLD_PYTHON)
        (cloud.folder / name).chmod(0o755)
    (cloud.folder / "made").write_text(PYTHON)
    (cloud.folder / "new-python").write_text(NEW_PYTHON)
    for name in ("made", "new-python"):
        (cloud.folder / name).chmod(0o755)
    script = cloud.checkout / "launch" / "tpu_host.sh"
    done = subprocess.run(
        [script, "install"], env=cloud.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Python 3.11 or newer is missing" in done.stdout
    assert "Creating" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" ready")
    asked = (cloud.folder / "python.log").read_text()
    assert "-m pip install --user --quiet uv==" in asked
    assert "-m uv python install --quiet 3.13" in asked
    assert "--requirement" in (cloud.folder / "pip.log").read_text()


def test_statuses_are_the_programs_own() -> None:
    text = (ROOT / "launch" / "tpu.py").read_text()
    assert f"INTERRUPTED = {program.INTERRUPTED} " in text
    assert f"FINAL = (0, 2, {STOPPED_EARLY})" in text


def test_packed_tree_is_reported(cloud: Cloud) -> None:
    done = subprocess.run(
        [cloud.checkout / "launch" / "pack.py"], capture_output=True, env=cloud.environment
    )
    assert json.loads(done.stderr)["changed"] == []
