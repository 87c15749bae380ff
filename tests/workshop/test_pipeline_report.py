"""The report of a workshop."""

import json
import re
from pathlib import Path

import pytest

from t2t.workshop.pipeline_report import write_report
from t2t.workshop.records import Record, StepPlan, plan_steps
from t2t.workshop.steps import Step
from tests.evaluation.saved_evaluations import (
    REFERENCES,
    pair,
    save,
    score_corpus,
    spoil,
)
from tests.workshop.short_programs import FAIL, STARTED, TRAIN, ShortPrograms, run


@pytest.mark.parametrize(
    ("program", "flag"), [("evaluate", "workdir"), ("evaluate_output", "hypotheses")]
)
def test_a_report_needs_no_undamaged_files(tmp_path: Path, program: str, flag: str) -> None:
    steps = [Step("a", "train", TRAIN), Step("b", program, {flag: "{a}"})]
    run(steps, tmp_path)
    stages = [{"corpora": [{"name": "my corpus", "weight": weight}]} for weight in (2.0, 0.5)]
    start = json.dumps(STARTED | {"stages": stages})
    (tmp_path / "a" / "ledger.jsonl").write_text(f"{start}\n{{")
    workshop = ShortPrograms(steps, tmp_path)
    report = write_report(workshop, plan_steps(workshop))
    assert f"- No scores of b: {tmp_path}/b/scores.json" in " ".join(report.split())
    assert re.search(r"\| my corpus \| +3 \| +2, 0\.5 \|", (tmp_path / "report.md").read_text())


def test_a_report_shows_scores_of_lower_cased_text_by_measures_of_it(tmp_path: Path) -> None:
    steps = [Step("a", "train", TRAIN), Step("b", "evaluate", {"workdir": "{a}"})]
    run(steps, tmp_path)
    names = "bleu_lowercase", "chrf_lowercase"
    scores = score_corpus(spoil(7), pair(REFERENCES), "de", names)
    config = {"tokenizer.lowercase": True}
    saved = save(tmp_path / "run", spoil(7), name="scores", scores=scores, config=config)
    for path in saved.path.parent.iterdir():
        path.replace(tmp_path / "b" / path.name)
    workshop = ShortPrograms(steps, tmp_path)
    report = write_report(workshop, plan_steps(workshop))
    bleu, chrf = (f"{score.value:.2f}" for score in scores.values())
    assert report.startswith(f"b has {bleu} bleu_lowercase [")
    text = (tmp_path / "report.md").read_text()
    assert re.search(rf"\| system +\| +chrf_lowercase \|\n\S+\n\| b +\| +{chrf} \|", text)


def test_seeds_of_a_system_may_differ_in_what_they_read_of_other_steps(tmp_path: Path) -> None:
    steps = [Step("t", "train", TRAIN)]
    for seed in (0, 1):
        own = {"config.plugin.mine.teacher": "{t}"}
        steps.append(Step(f"a{seed}", "train", TRAIN | own))
        steps.append(Step(f"b{seed}", "evaluate", {"workdir": f"{{a{seed}}}"}, system="mine"))
    workshop = ShortPrograms(steps, tmp_path)
    works = {step.name: StepPlan(step, "none", "", Record("", {})) for step in steps}
    for field, found in (("plugin.mine.teacher", "mine has "), ("model.d_ff", "No scores of mine")):
        for seed in (0, 1):
            config = {"seed": seed, field: seed}
            saved = save(tmp_path / f"a{seed}", spoil(7 + seed), name="scores", config=config)
            (tmp_path / f"b{seed}").mkdir(exist_ok=True)
            for path in saved.path.parent.iterdir():
                path.replace(tmp_path / f"b{seed}" / path.name)
        assert found in write_report(workshop, works)


def test_a_system_without_scores_has_its_reason_in_the_table(tmp_path: Path) -> None:
    steps = [
        Step("t", "train", TRAIN),
        Step("text", "translate", {"workdir": "{t}", "input": "{t}"}),
        Step("a", "train", TRAIN | {"config.data.train_tgt": ("{text}/flags",)}),
        *[Step(name, "evaluate", {"workdir": f"{{{run}}}"}, against=against)
          for name, run, against in (("b", "a", ()), ("other", "t", ("b",)))],
        Step("int8", "export", {"workdir": "{a}"}),
    ]  # fmt: skip
    run(steps, tmp_path, text=FAIL)
    workshop = ShortPrograms(steps, tmp_path)
    saved = save(tmp_path / "run", spoil(7), name="scores")
    for path in saved.path.parent.iterdir():
        path.replace(tmp_path / "other" / path.name)
    report = write_report(workshop, plan_steps(workshop))
    assert report.startswith("No verdicts: b has no score yet.")
    assert "- Not finished: int8 (not begun)\n" in report
    text = (tmp_path / "report.md").read_text()
    assert re.search(r"\| b +\| +\| text failed: no space +\|", text)
    assert re.search(r"\| text +\| translate +\| failed: no space +\|", text)
