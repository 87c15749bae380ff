"""The share of start in the cost of a step, from its record, its ledger and its metrics."""

import json
from pathlib import Path
from typing import Any

import pytest

from t2t.evaluation.verdict_table import SystemCost
from t2t.workshop.costs import sum_costs
from t2t.workshop.records import Record, StepPlan
from t2t.workshop.steps import Step, Workshop
from tests.evaluation.saved_evaluations import save, spoil
from tests.workshop.short_programs import STARTED, TRAIN

KILLED = {"begun": "2017-06-12T17:00:00.000Z", "seconds": 60.0, "core_seconds": 90.0, "gpus": 2,
          "status": None}  # fmt: skip
ENDED = KILLED | {"begun": "2017-06-12T18:00:00.000Z", "status": 0}
COMPILED = {"step": 15, "train/compile_seconds": 5.0}


def measure(
    workdir: Path,
    program: str,
    starts: list[dict[str, Any]],
    ledger: tuple[tuple[int, str], ...] = (),
    metrics: tuple[dict[str, Any], ...] = (),
) -> SystemCost:
    step = Step("a", program, TRAIN if program == "train" else {"workdir": "run"})
    for name, lines in (
        ("ledger", [STARTED | {"step": step, "date": date} for step, date in ledger]),
        ("metrics", metrics),
    ):
        (workdir / "a").mkdir(exist_ok=True)
        (workdir / "a" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    record = Record("", {}, starts=starts)
    return sum_costs(Workshop([step], workdir), [StepPlan(step, "none", "", record)])


@pytest.mark.parametrize(
    ("starts", "ledger", "metrics", "seconds"),
    [
        ([ENDED], [(0, "2017-06-12T18:00:20.000Z")], [COMPILED], 25.0),
        ([ENDED], [(0, "2017-06-12T18:00:20.000Z")], [], None),
        ([ENDED], [], [], None),
        ([KILLED], [], [], 60.0),  # killed before it could write to its ledger
        ([KILLED], [(0, "2017-06-12T17:00:20.000Z")], [], 20.0),
        ([KILLED], [(0, "2017-06-12T17:01:20.000Z")], [], 60.0),  # its record is 20 seconds old
        ([KILLED, ENDED], [(0, "2017-06-12T17:00:20.000Z"), (10, "2017-06-12T18:00:30.000Z")],
         [COMPILED], 55.0),
    ],
)  # fmt: skip
def test_a_start_lasts_until_the_first_batch(
    tmp_path: Path, starts: Any, ledger: Any, metrics: Any, seconds: float | None
) -> None:
    """A killed start counts as far as it is known; another unknown one makes the share unknown."""
    cost = measure(tmp_path, "train", starts, ledger, metrics)
    total = 60 * len(starts)
    assert cost[:3] == (total / 60, 1.5 * total / 60, 2 * total / 60)
    assert cost.start == (None if seconds is None else pytest.approx(seconds / total))


def test_an_evaluation_starts_until_its_search_begins_and_while_that_compiles(
    tmp_path: Path,
) -> None:
    saved = save(tmp_path / "run", spoil(7), name="scores")
    (tmp_path / "a").mkdir()
    for path in saved.path.parent.iterdir():
        path.replace(tmp_path / "a" / path.name)
    assert measure(tmp_path, "evaluate", [ENDED]).start is None
    scores = tmp_path / "a" / "scores.json"
    facts = {"begun": "2017-06-12T18:00:12.000Z", "compile_seconds": 3.0}
    scores.write_text(json.dumps(json.loads(scores.read_text()) | facts))
    assert measure(tmp_path, "evaluate", [KILLED, ENDED]).start == pytest.approx(15 / 120)


def test_other_programs_have_no_start(tmp_path: Path) -> None:
    cost = measure(tmp_path, "export", [ENDED])
    assert (cost.minutes, cost.start) == (1.0, None)
    assert measure(tmp_path, "train", []) == (0, 0, 0, None)
