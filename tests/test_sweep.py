"""t2t.sweep as a program: trained, killed and continued."""

import re
import signal
import time
from pathlib import Path

import pytest

from tests import programs
from tests.programs import Program
from tests.tiny_training import change, make_config, write_recipe

SWEEP = """
from t2t.sweeps.sweep_rows import Row


def get_rows(base):
    return [Row("base"), Row("one_head", {"model.num_heads": 1})]
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The command of a sweep with two rows on the tiny recipe."""
    config = make_config(tmp_path)
    test_set = {"test_src": config.data.validation_src, "test_tgt": config.data.validation_tgt}
    write_recipe(change(config, data=test_set, training={"steps": 20}), tmp_path / "recipe.py")
    (tmp_path / "rows.py").write_text(SWEEP)
    flags = [f"--sweep={tmp_path}/rows.py", f"--config={tmp_path}/recipe.py"]
    return ["t2t.sweep", *flags, f"--workdir={tmp_path}/sweep"]


@pytest.mark.slow
def test_killed_sweep_loses_no_finished_row(command: list[str], tmp_path: Path) -> None:
    """Training that outlives a killed sweep blocks other sweeps until it ends."""
    score = tmp_path / "sweep" / "base-seed0" / "evaluations" / "sweep.json"
    with Program(*command) as process:
        while not score.exists():
            assert process.poll() is None, process.messages
            time.sleep(0.05)
        while not (tmp_path / "sweep" / "one_head-seed0" / "checkpoints" / "5").exists():
            assert process.poll() is None, process.messages
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    written = score.stat().st_mtime_ns
    while True:
        done = programs.run(*command)
        if "another sweep is running" not in done.stderr:
            break
        assert done.returncode == 2
        time.sleep(1)
    assert done.returncode == 0, done.stderr
    assert "\nbase-seed0: finished, bleu " in done.stderr  # it may have waited before
    assert score.stat().st_mtime_ns == written
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:4]]
    assert rows == ["base", "one_head"]
    report = (tmp_path / "sweep" / "report.md").read_text()
    assert re.search(
        "one_head is (better|worse|not distinguishable)|No verdict on one_head", report
    )
