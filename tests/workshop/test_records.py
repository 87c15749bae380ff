"""What runs again, and what is kept."""

import json
import shutil
from pathlib import Path

import pytest

from t2t.config.fields import ConfigError
from t2t.workshop.records import RECORD, plan_steps
from t2t.workshop.runner import LOG
from t2t.workshop.steps import STEPS, Step, Workshop
from tests.workshop.short_programs import FAIL, TRAIN, ShortPrograms, make_steps, run


def test_a_changed_step_runs_again_with_what_depends_on_it(tmp_path: Path) -> None:
    (text := tmp_path / "text").write_text("a\n")
    work = tmp_path / "work"
    assert run(make_steps(text), work) == ("teacher translated student other ", {})
    assert run(make_steps(text), work) == ("", {})
    assert run(make_steps(text, beam=1), work) == ("translated student ", {})
    old = work / "old"  # put aside, not deleted
    assert "'beam': 4" in (old / "translated.1" / "flags").read_text()
    assert (old / STEPS / "translated.1" / LOG).exists()
    text.write_text("b\n")
    planned = plan_steps(ShortPrograms(make_steps(text, beam=1), work))
    reasons = [planned[name].reason for name in ("teacher", "translated", "student")]
    assert reasons == ["finished", f"input={text} changed", "step translated changed"]
    assert run(make_steps(text, beam=1), work) == ("translated student ", {})
    (tmp_path / "text.en").touch()
    pattern = {"workdir": "{teacher}", "input": f"{text}*"}
    steps = [Step("teacher", "train", TRAIN), Step("translated", "translate", pattern)]
    run(steps, tmp_path / "pattern")
    (tmp_path / "text.en").unlink()
    planned = plan_steps(ShortPrograms(steps, tmp_path / "pattern"))
    assert planned["translated"].reason == f"input={text}.en is no longer read"
    shutil.rmtree(work / "student")
    planned = plan_steps(ShortPrograms(make_steps(text, beam=1, steps=6), work))
    assert planned["teacher"].reason == "--config.training.steps: 5 -> 6"
    assert run(make_steps(text, beam=1, steps=6), work) == ("teacher translated student ", {})


@pytest.mark.parametrize(
    ("program", "updated", "is_kept"),
    [("evaluate", False, False), ("translate", False, True), ("translate", True, False),
     ("train", True, True)],
)  # fmt: skip
def test_what_was_cut_off_continues_if_its_program_can(
    tmp_path: Path, program: str, updated: bool, is_kept: bool
) -> None:
    """A training decides itself if it continues after an update of t2t."""
    steps, part = [Step("a", program)], tmp_path / "a" / "part"
    run(steps, tmp_path, a=f"os.mkdir({str(part.parent)!r}); open({str(part)!r}, 'w'); {FAIL}")
    if updated:
        path = tmp_path / STEPS / "a" / RECORD
        path.write_text(json.dumps(json.loads(path.read_text()) | {"code": {"code": "older"}}))
    assert run(steps, tmp_path) == ("a ", {})
    assert part.exists() == is_kept
    assert (tmp_path / "old" / "a.1" / "part").exists() == (updated and not is_kept)


@pytest.mark.parametrize(
    ("flags", "later", "is_kept"),
    [({}, (), True), ({"config.training.translate_every": 5}, (), False), ({}, ("c",), False)],
)
def test_a_training_with_another_search_goes_on_and_is_evaluated_again(
    tmp_path: Path, flags: dict[str, int], later: tuple[str, ...], is_kept: bool
) -> None:
    """Not where the best checkpoint depends on the search, or another step goes on with it."""

    def make(beam: int) -> list[Step]:
        own = {**TRAIN, "config.decoding.beam_size": beam, **flags}
        evaluation = Step("b", "evaluate", {"workdir": "{a}"})
        return [*(Step(name, "train", own, "run") for name in ("a", *later)), evaluation]

    run(make(4), tmp_path)
    (tmp_path / "run" / "checkpoint").touch()
    planned = plan_steps(ShortPrograms(make(1), tmp_path))["a"]
    assert planned.reason == "--config.decoding.beam_size: 4 -> 1"
    assert planned.action == ("continue" if is_kept else "run")
    assert run(make(1), tmp_path) == (" ".join(["a", *later, "b "]), {})
    assert (tmp_path / "run" / "checkpoint").exists() == is_kept
    assert len(plan_steps(ShortPrograms(make(1), tmp_path))["a"].record.starts) == 1 + is_kept
    assert run(make(1), tmp_path) == ("", {})


def test_what_is_finished_stays_so_when_the_config_gets_another_field(tmp_path: Path) -> None:
    steps = [Step("a", "train", TRAIN), Step("b", "export", {"workdir": "{a}"})]
    run(steps, tmp_path)
    record = json.loads((path := tmp_path / STEPS / "a" / RECORD).read_text())
    default = record["facts"]["recipe"].pop("data.noise_density")
    path.write_text(json.dumps(record))
    assert run(steps, tmp_path) == ("", {})
    record["facts"]["recipe"]["data.noise_density"] = 0.3  # the default of an earlier version
    path.write_text(json.dumps(record))
    planned = plan_steps(Workshop(steps, tmp_path))
    assert planned["a"].reason == f"data.noise_density: 0.3 -> {default}"


@pytest.mark.parametrize("text", ["", "[]", '{"key": 1}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    steps = [Step("a", "train", TRAIN)]
    run(steps, tmp_path)
    (tmp_path / STEPS / "a" / RECORD).write_text(text)
    with pytest.raises(ConfigError, match=r"steps/a/record\.json is damaged; remove it, and what"):
        plan_steps(Workshop(steps, tmp_path))


def test_choice_that_is_made_anew_among_more_trials_trains_its_row_again(tmp_path: Path) -> None:
    """A trial that failed is not tried again while the choice stands."""
    first, second = (Step(name, "train", TRAIN | {"config.seed": n}) for n, name in enumerate("ab"))
    choice = Step("choice", "choose_trial", {"trials": (f"1={first}", f"2={second}")})
    row = Step("row", "train", TRAIN | {"flagfile": f"{choice}/flags.txt"})
    steps = [first, second, choice, row]
    assert run(steps, tmp_path, b=FAIL) == ("a b choice row ", {"b": "no space"})
    assert run(steps, tmp_path) == ("", {})
    planned = plan_steps(ShortPrograms(steps, tmp_path))["b"]
    reason = "failed: no space; what reads it is finished"
    assert (planned.action, planned.reason) == ("skip", reason)
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    planned = plan_steps(ShortPrograms(steps, tmp_path))["a"]
    reason = f"{tmp_path}/a is missing; what reads it is finished"
    assert (planned.action, planned.reason) == ("skip", reason)
    (tmp_path / "elsewhere").rename(tmp_path / "a")
    for folder in (tmp_path / "choice", tmp_path / "steps/choice"):
        shutil.rmtree(folder)
    assert run(steps, tmp_path) == ("b choice row ", {})
    assert run(steps, tmp_path) == ("", {})
