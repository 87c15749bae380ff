"""Watches and sweeps that are killed lose no finished score."""

import json
import re
import signal
from pathlib import Path

import pytest

from t2t.config.files import load_config
from tests import programs
from tests.data.small_corpus import PAIRS
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
    return [
        Row("base"),
        Row("one_head", {"model.num_heads": 1}),
        Row("narrow", {"model.d_ff": 16}),
    ]
"""
SWEEP_KILLS = [  # where two programs that it starts write, in this order
    Moment("os.rename", "one_head-trialx2/checkpoints/5$"),
    Moment("os.rename", "narrow-seed0/checkpoints/5$"),
]


def test_killed_sweep_of_tuned_rows_loses_no_finished_run(tmp_path: Path) -> None:
    """The training that a killed sweep leaves saves and ends, so the next one need not wait."""
    config = make_config(tmp_path)
    for side, lines in zip(("src", "tgt"), zip(*PAIRS[200:264], strict=True), strict=True):
        Path(getattr(config.data, f"validation_{side}")).write_text("\n".join(lines) + "\n")
    recipe, sweep = tmp_path / "recipe.py", tmp_path / "sweep"
    write_recipe(change(config, training={"steps": 20}), recipe)
    (tmp_path / "rows.py").write_text(SWEEP)
    flags = [f"--sweep={tmp_path}/rows.py", f"--config={recipe}", f"--workdir={sweep}"]
    command = ["t2t.sweep", *flags, "--tune=training.learning_rate=x1,x2"]
    before: dict[Path, int] = {}
    for moment in SWEEP_KILLS:
        kill_parent_at(moment, recipe)
        killed = programs.run(*command)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        after = {path: path.stat().st_mtime_ns for path in sweep.glob("*/evaluations/*.json")}
        assert before.items() <= after.items()  # and not written again
        assert len(after) > len(before)
        before = after
    done = programs.run(*command)
    assert done.returncode == 0, done.stderr
    written = {path: path.stat().st_mtime_ns for path in sweep.glob("*/evaluations/*.json")}
    assert before.items() <= written.items()
    assert len(written) == 9  # two trials and one seed of each row
    for moment in SWEEP_KILLS:
        name = moment.path.partition("/")[0]
        log = (sweep / "steps" / name / "output.log").read_text()
        found = re.search(
            "stopped and saved after step .*starting after step [1-9]", log, re.DOTALL
        )
        assert found, log
    for name in ("base", "one_head", "narrow"):
        assert re.search(f"^{name}  ", done.stdout, re.MULTILINE), done.stdout
        [flag] = (sweep / f"{name}-choice" / "flags.txt").read_text().splitlines()
        rate = load_config(sweep / f"{name}-seed0" / "config.json").training.learning_rate
        assert flag == f"--config.training.learning_rate={rate}"
    report = (sweep / "report.md").read_text()
    for name in ("narrow", "one_head"):
        assert re.search(f"{name} is (better|worse|not dist)|No verdict on .*{name}", report)
    content = json.loads((sweep / "report.json").read_text())
    assert [0 < row["cost"]["start"] < 1 for row in content["table"]] == [True] * 3
    record = json.loads((sweep / "steps" / "narrow-seed0" / "record.json").read_text())
    assert len(record["starts"]) == 2
