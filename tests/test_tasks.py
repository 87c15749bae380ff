"""The recipes of published tasks train from files of the published form; the lines are made up."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import programs

pytestmark = pytest.mark.slow

TINY = [
    "--config.model.num_layers=1", "--config.model.d_model=32", "--config.model.d_ff=32",
    "--config.training.steps=4", "--config.training.warmup_steps=2",
    "--config.training.log_every=2", "--config.checkpoints.every=4",
    "--config.decoding.max_extra_length=5",
]  # fmt: skip
VALIDATED = ["--config.training.validate_every=4", "--config.training.translate_every=4"]


def write_cogs(folder: Path) -> list[str]:
    names = [f"name{number}" for number in range(20)]
    lines = [
        f"The {name} {verb} .\t{verb} ( agent = * {name} )\t{kind}"
        for name in names
        for verb, kind in (("slept", "seen"), ("ran", "seen"), ("sang", "new"), ("left", "new"))
    ]
    for split in ("train", "dev", "test", "gen"):
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return VALIDATED


def write_scan(folder: Path) -> list[str]:
    verbs = [f"verb{number}" for number in range(25)]
    lines = [
        f"IN: {verb} {times} OUT: {' '.join([verb.upper()] * count)}"
        for verb in verbs
        for times, count in (("once", 1), ("twice", 2), ("thrice", 3), ("often", 4))
    ]
    for split in ("train", "test"):
        (folder / f"tasks_{split}_simple.txt").write_text("\n".join(lines) + "\n")
    return []


def write_inflection(folder: Path) -> list[str]:
    draw = random.Random(0)
    stems = ["".join(draw.choices("abcdefgh", k=5)) for _ in range(100)]
    lines = [f"{stem}\t{stem}ed\tV;PST" for stem in stems]
    for name in ("toy_100.train", "toy_50.train", "toy.dev", "toy.gold"):
        (folder / name).write_text("\n".join(lines) + "\n")
    return [*VALIDATED, "--config.data.subset=toy_100"]


@pytest.mark.parametrize(
    ("task", "write"),
    [("cogs", write_cogs), ("scan", write_scan), ("inflection", write_inflection)],
)
def test_recipe_trains_from_a_folder_of_published_files(
    tmp_path: Path, task: str, write: Callable[[Path], list[str]]
) -> None:
    folder, run = tmp_path / "files", tmp_path / "run"
    folder.mkdir()
    own = write(folder)
    train = [f"--config=configs/tasks/{task}.py:{folder}", f"--workdir={run}", *TINY, *own]
    done = programs.run("t2t.train", *train, f"--config.data.cache_directory={tmp_path}/cache")
    assert done.returncode == 0, done.stderr
    split = "gen" if task == "cogs" else "test"
    checkpoint = "last" if task == "scan" else "best"  # SCAN has no validation set
    chosen = f"--workdir={run}", f"--split={split}", f"--checkpoint={checkpoint}"
    done = programs.run("t2t.evaluate", *chosen)
    assert done.returncode == 0, done.stderr
    assert "\nexact_match " in done.stdout
    [path] = (run / "evaluations").glob(f"{split}-*.json")
    saved = json.loads(path.read_text())
    if task == "cogs":
        assert {kind: own["num_sentences"] for kind, own in saved["kinds"].items()} == {
            "new": 40, "seen": 40, "mean of kinds": 80,
        }  # fmt: skip
        assert "\nmean of kinds " in done.stdout
    else:
        assert "kinds" not in saved
