"""One run scored in several ways."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import pytest

from t2t.api.evaluate_run import evaluate, scan_averages, scan_search, watch
from t2t.config.fields import ConfigError
from t2t.config.requests import make_request
from t2t.evaluate import SelectionRequest
from t2t.evaluation import load_models
from t2t.evaluation.checkpoint_watcher import Watch
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import RunError

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_averages_give_a_table_and_a_plot(run: Path) -> None:
    request = EvaluationRequest((run,), decoding={"beam_size": 1})
    lines = scan_averages(request, [3, 1], "bleu").splitlines()
    assert [line.split()[0] for line in lines[3:-1]] == ["1", "3"]
    assert Path(lines[-1]).read_bytes().startswith(b"<?xml")
    saved = load_evaluation(
        run / "evaluations" / "test-avg3-300-beam1-alpha0.6-max_extra_length4.json"
    )
    assert lines[4].split()[1] == f"{saved.result['bleu']:.2f}"
    expected = evaluate(EvaluationRequest((run,), "avg:3", decoding={"beam_size": 1})).result
    assert saved.result["measures"] == json.loads(json.dumps(expected["measures"]))


def test_perplexity_of_the_references_chooses_the_lowest(run: Path) -> None:
    request = EvaluationRequest((run,), "last", measures=("chrf",))
    text = scan_search(request, [1, 2], [], "perplexity")
    best = load_evaluation(Path(text.rpartition("best: ")[2]))
    assert {"chrf", "perplexity"} < best.result["measures"].keys()
    assert best.passport.decoding["beam_size"] == 1, "all are equal"


@pytest.mark.slow
def test_one_search_gives_what_a_search_with_each_alpha_gives(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    lines = scan_search(EvaluationRequest((run,), "last"), [3], [0.0, 1.5], "bleu").splitlines()
    assert lines[1].split() == ["beam", "alpha", "0", "alpha", "1.5"]
    assert lines[3].split()[0] == "3"
    for alpha in (0.0, 1.5):
        decoding = {"beam_size": 3, "alpha": alpha}
        path = evaluate(EvaluationRequest((other,), "last", decoding=decoding)).path
        found, alone = (
            load_evaluation(place / "evaluations" / path.name) for place in (run, other)
        )
        assert found.passport.decoding["alpha"] == alpha
        assert "seconds" not in found.result  # the time is that of both alphas together
        assert found.result["joint_search"]["alphas"] == [0.0, 1.5]
        assert alone.result["seconds"] > 0
        assert found.result["measures"] == alone.result["measures"]
        assert found.read_lines("hypotheses") == alone.read_lines("hypotheses")


def test_what_is_there_is_not_done_again_and_said_with_its_date(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    request = EvaluationRequest((run,), "last", decoding={"beam_size": 1})
    first = scan_search(request, [], [0.5], "bleu")
    assert "used again" not in caplog.text
    monkeypatch.setattr(Evaluator, "_translate", None)
    assert scan_search(request, [], [0.5], "bleu") == first
    assert re.search(r"alpha0\.5\S*\.json: used again, as scored on 20\d\d-", caplog.text)


def test_only_evaluations_of_the_same_thing_count_as_done(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir = shutil.copytree(run, tmp_path / "run")
    request = EvaluationRequest((workdir,), decoding={"beam_size": 1})
    evaluator = Evaluator(request)
    params, _ = restore_params(workdir, "last")
    evaluator.evaluate(params, "300")
    assert "300" in evaluator.list_saved()
    assert "300" not in evaluator.list_saved(alpha=0.3)
    longer = EvaluationRequest((workdir,), decoding={"beam_size": 1, "max_extra_length": 7})
    assert "300" not in Evaluator(longer).list_saved()
    batches = dataclasses.replace(request, decoding={"beam_size": 1, "batch_size": 7})
    assert "300" not in Evaluator(batches).list_saved()  # which round otherwise, as devices do
    monkeypatch.setattr(jax, "devices", lambda: [mock.Mock(device_kind="another")])
    assert "300" not in evaluator.list_saved()
    monkeypatch.undo()
    with_ter = dataclasses.replace(request, measures=("default", "ter"))
    assert "300" not in Evaluator(with_ter).list_saved()
    monkeypatch.setattr(load_models, "hash_code", lambda *_: "of other code or another plugin")
    assert "300" not in evaluator.list_saved()
    monkeypatch.undo()
    assert "300" in evaluator.list_saved()
    start = '{"step": 200, "date": "9999-01-01T00:00:00Z"}\n'
    (workdir / "ledger.jsonl").write_text(start)  # checkpoint 300 was made again after that
    assert "300" not in evaluator.list_saved()


def test_watches_of_other_checkpoints_have_folders_of_their_own(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one folder the second would remove the best parameters of the first."""
    folders = []

    def follow(self: Watch, scorer: Evaluator, timeout: float) -> bool:
        del scorer, timeout
        folders.append(self._folder.name)
        return True

    monkeypatch.setattr(Watch, "follow", follow)
    for counts in ([1], [2], [1, 2]):
        request = EvaluationRequest((run,), split="test", decoding={"beam_size": 1})
        assert watch(request, counts, "bleu", patience=0, timeout=0.0)[0]
    assert folders == [
        f"test-watch-{name}-beam1-alpha0.6-max_extra_length4-bleu"
        for name in ("last", "avg2", "last-avg2")
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"watch": True, "alphas": [1]}, "watch and alphas: give one of them"),
        ({"average": [1], "output": "a.json"}, "output is for one evaluation"),
        ({"average": [1], "checkpoint": "last"}, "average chooses: leave out checkpoint"),
        ({"alphas": [1], "checkpoint": "last,best"}, "an ensemble is one evaluation; leave out al"),
        ({"patience": 3}, "patience is for watch; add it"),
        ({"measure": "ter"}, "measure is for a selection: leave it out"),
        ({"measures": ["metricx"]}, "metricx needs measure_model=metricx=RUN, the run of"),
        ({"mbr": "metricx"}, "measure metricx needs measure_model=metricx=RUN"),
        ({"measures": ["bleu"], "measure_model": {"metricx": "a"}}, "for measures=metricx or mbr"),
        ({"measures": ["bleu"], "measure_model": {"bleu": "a"}}, "no model computes bleu; leave"),
        ({"measure_model": "metricx"}, "measure_model=metricx: write NAME=RUN"),
        ({"measure_model": ["a=b", "a=c"]}, "measure_model=a=b,a=c: write NAME=RUN, and each"),
        ({"hypotheses": "a", "beam_size": 1}, "without a run; leave out .*workdir"),
        ({"segment_scores": ["a=b"], "watch": True}, "segment_scores adds to a saved evaluation"),
        ({"segment_scores": ["a=b"], "segments": "c", "beam_size": 1}, "out beam_size, segments"),
        ({"average": [0]}, "average=0 must be positive"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_request(SelectionRequest, {"workdirs": Path("run"), **given})


def test_checkpoints_of_a_selection_have_defaults_and_exist(run: Path) -> None:
    one, watching = SelectionRequest((run,)), SelectionRequest((run,), watch=True)
    assert (one.split, one.checkpoint) == ("test", "best")
    assert (watching.split, watching.checkpoint) == ("validation", "last")
    assert SelectionRequest((run,), segment_scores=("a=b",)).checkpoint == ""  # of any
    assert SelectionRequest((run,), "avg:5,last", watch=True).read_counts() == [1, 5]
    with pytest.raises(ConfigError, match="--checkpoint=best cannot be used with --watch"):
        SelectionRequest((run,), "best", watch=True).read_counts()
    with pytest.raises(RunError, match="has 3 checkpoints in a row at the regular interval"):
        scan_averages(EvaluationRequest((run,)), [1, 4], "bleu")
    with pytest.raises(ConfigError, match=r"avg:99 needs .* keeps checkpoints\.keep_last="):
        watch(EvaluationRequest((run,), split="test"), [1, 99], "bleu", patience=0, timeout=0.0)
