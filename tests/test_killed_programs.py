"""Watches and sweeps that are killed lose no finished score."""

import json
import re
import signal
from pathlib import Path

import pytest

from tests import programs
from tests.moments import Moment, kill_parent_at
from tests.programs import Program
from tests.tiny_training import STEPS, change, make_config, write_recipe

pytestmark = pytest.mark.slow


def read_scores(workdir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (workdir / "evaluations").glob("*.json")}


# In the order in which they occur in a watch, at the first checkpoint or later ones.
KILLS = [
    ("os.rename", r"evaluations/[^/]*\.json$"),
    ("os.rename", r"watch-[^/]*/scores\.jsonl$"),
    ("os.rename", r"watch-[^/]*/[a-z0-9-]*[0-9]$"),  # the best parameters are complete
    ("os.rename", r"watch-[^/]*/best$"),
]


def test_kills_lose_no_finished_score(tmp_path: Path) -> None:
    """Kills both where they write. All checkpoints are kept, so the table must be complete."""
    config = change(make_config(tmp_path), checkpoints={"keep_last": STEPS})
    workdir = tmp_path / "run"
    write_recipe(config, tmp_path / "recipe.py")
    training = ["t2t.train", f"--config={tmp_path}/recipe.py", f"--workdir={workdir}"]
    flags = ["--beam_size=1", "--checkpoint=last,avg:2"]
    watching = ["t2t.watch", *flags, f"--workdir={workdir}"]
    before: dict[str, bytes] = {}
    for number, moment in enumerate(KILLS, start=1):
        killed = "tests.moments", "SIGKILL"
        checkpoint = "os.rename", rf"checkpoints/{10 * number}$"
        with (
            Program(*killed, *checkpoint, *training) as trainer,
            Program(*killed, *moment, *watching) as watch,
        ):
            assert watch.wait() == -signal.SIGKILL, watch.messages
            assert trainer.wait() == -signal.SIGKILL
        after = read_scores(workdir)
        assert before.items() <= after.items()  # complete, and not written again
        assert all(json.loads(text)["measures"] for text in after.values())
        before = after
    with Program(*training), Program(*watching) as watch:
        assert watch.wait() == 0, watch.messages
    assert before.items() <= read_scores(workdir).items()
    labels = [str(step) for step in range(5, STEPS + 1, 5)]
    labels += [f"avg2-{step}" for step in range(10, STEPS + 1, 5)]
    [table] = (workdir / "evaluations").glob("validation-watch-last-avg2-beam1-*/scores.jsonl")
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    assert sorted(row["checkpoint"] for row in rows) == sorted(labels)
    assert (table.parent / "best" / "config.json").is_file()


SWEEP = """
from t2t.sweeps.sweep_rows import Row


def get_rows(base):
    return [Row("base"), Row("one_head", {"model.num_heads": 1})]
"""


def test_killed_sweep_loses_no_finished_row(tmp_path: Path) -> None:
    """The training that a killed sweep leaves saves and ends, so the next one need not wait."""
    config = make_config(tmp_path)
    test_set = {"test_src": config.data.validation_src, "test_tgt": config.data.validation_tgt}
    write_recipe(change(config, data=test_set, training={"steps": 20}), tmp_path / "recipe.py")
    (tmp_path / "rows.py").write_text(SWEEP)
    flags = [f"--sweep={tmp_path}/rows.py", f"--config={tmp_path}/recipe.py"]
    command = ["t2t.sweep", *flags, f"--workdir={tmp_path}/sweep"]
    score = tmp_path / "sweep" / "base-seed0" / "evaluations" / "sweep.json"
    kill_parent_at(Moment("os.rename", "one_head-seed0/checkpoints/5$"), tmp_path / "recipe.py")
    assert programs.run(*command).returncode == -signal.SIGKILL
    written = score.stat().st_mtime_ns
    done = programs.run(*command)
    assert done.returncode == 0, done.stderr
    assert score.stat().st_mtime_ns == written
    log = (tmp_path / "sweep" / "steps" / "one_head-seed0" / "output.log").read_text()
    assert re.search("stopped and saved after step .*starting after step [1-9]", log, re.DOTALL)
    assert re.findall("^(base|one_head)  ", done.stdout, re.MULTILINE) == ["base", "one_head"]
    report = (tmp_path / "sweep" / "report.md").read_text()
    assert re.search(
        "one_head is (better|worse|not distinguishable)|No verdict on one_head", report
    )
    content = json.loads((tmp_path / "sweep" / "report.json").read_text())
    assert [0 < row["cost"]["start"] < 1 for row in content["table"]] == [True, True]
    record = json.loads(
        (tmp_path / "sweep" / "steps" / "one_head-seed0" / "record.json").read_text()
    )
    assert len(record["starts"]) == 2
