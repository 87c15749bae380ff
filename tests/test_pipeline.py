"""t2t.pipeline as a program: killed in each step, and continued."""

import json
import re
import signal
from pathlib import Path

import pytest

from tests import programs
from tests.interop.foreign_folders import write_model
from tests.moments import Moment, kill_parent_at
from tests.tiny_training import change, make_config, write_recipe

SIDES = ("src", "en"), ("tgt", "de")
RECIPE = """
from t2t.workshop.steps import Step


def get_steps(config: str) -> list[Step]:
    train = {"config": config}
    pairs = Step("pairs", "write_pairs", train)
    text = read_text(f"{pairs}/train.src", f"{pairs}/train.tgt")
    teacher = Step("teacher", "train", train)
    scores = Step("scores", "score", {
        "src": f"{pairs}/train.src", "tgt": f"{pairs}/train.tgt", "tokens": True,
        "workdir": teacher})
    best = Step("best", "write_pairs", train | text | {"scores": (scores, scores), "keep": 0.5})
    translated = Step(
        "translated", "translate", {"workdir": teacher, "input": f"{best}/train.src"})
    text = read_text(f"{best}/train.src", f"{translated}/train.src")
    student = Step("student", "train", train | text | {"config.model.decoder_layers": 1})
    run = {"workdir": student, "checkpoint": "last"}
    int8 = Step("int8", "export", run | {"quantization": "int8"})
    quality = Step("quality", "evaluate", run | {"split": "test"})
    return [pairs, teacher, scores, best, translated, student, int8, quality]


def read_text(src: str, tgt: str) -> dict[str, object]:
    return {
        "config.data.train_src": (src,), "config.data.train_weights": (),
        "config.data.train_tgt": (tgt,)}
"""


@pytest.mark.slow
def test_a_pipeline_killed_in_each_step_continues(tmp_path: Path) -> None:
    """The programs that a killed pipeline leaves save and end, so the next one need not wait."""
    config = make_config(tmp_path)
    test_set = {"test_src": config.data.validation_src, "test_tgt": config.data.validation_tgt}
    write_recipe(change(config, data=test_set, training={"steps": 20}), tmp_path / "config.py")
    teaching = Moment("os.rename", "teacher/checkpoints/5$")  # it has something to continue
    kill_parent_at(teaching, tmp_path / "config.py")
    (tmp_path / "recipe.py").write_text(RECIPE)
    work = tmp_path / "work"
    command = ["t2t.pipeline", f"--recipe={tmp_path}/recipe.py", f"--workdir={work}"]
    command.append(f"--set=config={tmp_path}/config.py")
    names = "pairs teacher scores best translated student int8 quality".split()
    for name in names:
        killing = ["tests.moments", "SIGKILL", "open", rf"{name}/output\.log$"]
        done = programs.run(*(killing if name != "teacher" else []), *command)
        assert done.returncode == -signal.SIGKILL, name
    done = programs.run(*command)
    assert done.returncode == 0, done.stderr
    records = {
        name: json.loads((work / "steps" / name / "record.json").read_text()) for name in names
    }
    assert all(record["finished"] for record in records.values())
    assert [name for name in names if len(records[name]["starts"]) < 2] == []
    log = (work / "steps" / "teacher" / "output.log").read_text()
    assert re.search("stopped and saved after step .*starting after step [1-9]", log, re.DOTALL)
    report = json.loads((work / "report.json").read_text())
    [corpus] = report["training_text"]["student"]
    assert corpus["corpus"] == "{best}/train.src | {translated}/train.src"
    assert sum(corpus["origin"].values()) == corpus["pairs"] == 140
    assert report["steps"]["teacher"]["starts"] == 2
    assert len((work / "best" / "train.src").read_text().splitlines()) == 140
    assert (work / "quality.svg").exists()
    planned = programs.run(*command, "--plan").stdout.splitlines()[2:]
    assert all(" none " in line for line in planned)


@pytest.mark.slow
def test_an_imported_model_teaches_a_student(tmp_path: Path) -> None:
    """Its weights are random, so this shows that the steps fit together, and no quality."""
    config = make_config(tmp_path)
    for _, language in SIDES:
        (tmp_path / f"train.{language}").write_text((tmp_path / f"b.{language}").read_text())
        (tmp_path / f"test.{language}").write_text(
            (tmp_path / f"validation.{language}").read_text()
        )
    (teacher := tmp_path / "opus").mkdir()
    write_model(teacher)
    files = {f"train_{side}": (f"{tmp_path}/train.{code}",) for side, code in SIDES}
    data = files | {"train_weights": ()}
    training = {"steps": 10}
    write_recipe(change(config, data=data, training=training), tmp_path / "config.py")
    work = tmp_path / "work"
    settings = [f"teacher={teacher}", f"text={tmp_path}", f"config={tmp_path}/config.py"]
    flags = [f"--set={each}" for each in (*settings, "beam_size=1")]
    done = programs.run(
        "t2t.pipeline", "--recipe=configs/pipelines/opus_student.py", f"--workdir={work}", *flags
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((work / "report.json").read_text())
    assert [*report["systems"]] == ["teacher, jax", "alone, jax", "alone, int8", "student, jax",
                                    "student, int8"]  # fmt: skip
    [corpus] = report["training_text"]["student-0"]
    assert corpus["corpus"].endswith("| {translations}/train.en")
    # Three by BLEU, and three by log-probability.
    assert sum(line.startswith("No verdict on ") for line in report["verdicts"]) == 6
    assert all(each["bytes"] > 0 for each in report["systems"].values())
