"""`python -m t2t.evaluate --watch` while training runs, with either process killed."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from t2t.config.fields import Config
from t2t.runtime import command_line
from t2t.training.early_stopping import STOPPED_EARLY
from tests import programs
from tests.programs import Program
from tests.tiny_training import STEPS, change, make_config, write_recipe

WATCH = ["t2t.evaluate", "--watch", "--beam_size=1", "--checkpoint=last,avg:2"]

pytestmark = pytest.mark.slow


def train(config: Config, folder: Path, workdir: Path) -> list[str]:
    """Returns the arguments of the training program."""
    write_recipe(config, folder / "recipe.py")
    return ["t2t.train", f"--config={folder}/recipe.py", f"--workdir={workdir}"]


def read_scores(workdir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (workdir / "evaluations").glob("*.json")}


def wait_for_scores(workdir: Path, count: int, process: Program) -> None:
    while len(read_scores(workdir)) < count and process.poll() is None:
        time.sleep(0.01)


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
    training = train(config, tmp_path, workdir)
    watching = [*WATCH, f"--workdir={workdir}"]
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


def test_watch_stops_training_early_while_old_checkpoints_are_removed(tmp_path: Path) -> None:
    config = change(make_config(tmp_path), training={"steps": 100_000}, checkpoints={"every": 20})
    workdir = tmp_path / "run"
    watching = [*WATCH, "--measure=chrf", "--patience=2", f"--workdir={workdir}"]
    with (
        Program(*train(config, tmp_path, workdir)) as trainer,
        Program(*watching) as watch,
    ):
        assert watch.wait(timeout=500) == 0, watch.messages
        assert trainer.wait(timeout=60) == STOPPED_EARLY, trainer.messages
    out = watch.messages
    assert re.search("asking training to stop: [0-9]+ checkpoints without a better chrf than", out)
    assert re.search("  best$", out, re.MULTILINE)
    assert trainer.messages.splitlines()[-1].startswith("stopped early after step ")


def test_interrupted_watch_ends_cleanly(tmp_path: Path) -> None:
    config = change(make_config(tmp_path), training={"steps": 5})
    workdir = tmp_path / "run"
    assert programs.run(*train(config, tmp_path, workdir)).returncode == 0
    text = (workdir / "config.json").read_text()
    (workdir / "config.json").write_text(text.replace('"steps": 5', '"steps": 10'))
    with Program(*WATCH, f"--workdir={workdir}") as watch:
        wait_for_scores(workdir, 1, watch)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(timeout=60) == command_line.INTERRUPTED
    assert watch.messages.splitlines()[-1] == "interrupted"
