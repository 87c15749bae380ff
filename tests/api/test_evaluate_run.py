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

from t2t.api.evaluate_run import evaluate
from t2t.api.tune_decoding import tune
from t2t.api.watch_run import watch
from t2t.config.fields import ConfigError
from t2t.config.requests import make_request
from t2t.evaluation.checkpoint_watcher import Watch
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.requests import EvaluationRequest, SelectionRequest
from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.storage.paths import PathError
from t2t.training import provenance
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import RunError
from t2t.tune_decoding import TuningRequest
from t2t.watch import WatchRequest

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_averages_give_a_table_and_a_plot(run: Path) -> None:
    request = SelectionRequest(run, split="test", decoding={"beam_size": 1}, measure="bleu")
    lines = tune(request, ["last", "avg:3"]).splitlines()
    assert [line.split()[0] for line in lines[3:-2]] == ["300", "avg3-300"]
    assert Path(lines[-1]).name == "test-averages-300-beam1-alpha0.6-max_extra_length4.bleu.svg"
    assert Path(lines[-1]).read_bytes().startswith(b"<?xml")
    saved = load_evaluation(
        run / "evaluations" / "test-avg3-300-beam1-alpha0.6-max_extra_length4.json"
    )
    assert lines[4].split()[3] == f"{saved.result['bleu']:.2f}"
    expected = evaluate(EvaluationRequest((run,), "avg:3", decoding={"beam_size": 1})).result
    assert saved.result["measures"] == json.loads(json.dumps(expected["measures"]))


def test_perplexity_of_the_references_chooses_the_lowest(run: Path) -> None:
    request = SelectionRequest(run, split="test", measures=("chrf",), measure="perplexity")
    text = tune(request, ["last", "best"], beam_sizes=[2, 1])
    best = load_evaluation(Path(text.rpartition("best: ")[2]))
    assert {"chrf", "perplexity"} < best.result["measures"].keys()
    rows = [line.split() for line in text.splitlines()[3:-1]]
    assert [row[:3] for row in rows] == [
        [label, size, "0.6"] for label in ("300", "best-200") for size in "12"
    ]
    lowest = min(float(row[3]) for row in rows)
    [chosen] = [row for row in rows if row[-1] == "best"]
    assert float(chosen[3]) == lowest
    assert chosen[1] == "1", "the perplexity of both sizes is equal"
    assert best.passport.checkpoint == chosen[0]


@pytest.mark.slow
def test_one_search_gives_what_a_search_with_each_alpha_gives(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    request = SelectionRequest(run, split="test")
    lines = tune(request, ["last"], [3], [0.0, 1.5]).splitlines()
    assert [line.split()[:3] for line in lines[3:-1]] == [["300", "3", x] for x in ("0", "1.5")]
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
    request = SelectionRequest(run, split="test", decoding={"beam_size": 1})
    first = tune(request, ["last"], alphas=[0.5])
    assert "used again" not in caplog.text
    monkeypatch.setattr(Evaluator, "_translate", None)
    assert tune(request, ["last"], alphas=[0.5]) == first
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
    monkeypatch.setattr(provenance, "hash_code", lambda *_: "of other code or another plugin")
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
    request = SelectionRequest(run, split="test", decoding={"beam_size": 1}, measure="bleu")
    for checkpoints in (["last"], ["avg:2"], ["avg:2", "last"]):
        assert watch(request, checkpoints)[0]
    assert folders == [
        f"test-watch-{name}-beam1-alpha0.6-max_extra_length4-bleu"
        for name in ("last", "avg2", "last-avg2")
    ]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (WatchRequest, {"measures": ["metricx"]}, "metricx needs measure_model=metricx=RUN, the r"),
        (WatchRequest, {"measure": "metricx"}, "metricx needs measure_model=metricx=RUN, the run"),
        (WatchRequest, {"measure": "default"}, "measure=default stands for several measures; name"),
        (WatchRequest, {"mbr": "metricx"}, "measure metricx needs measure_model=metricx=RUN"),
        (
            WatchRequest,
            {"measures": ["bleu"], "measure_model": {"metricx": "a"}},
            "is for measures=metricx or mbr=metricx",
        ),
        (
            WatchRequest,
            {"measures": ["bleu"], "measure_model": {"bleu": "a"}},
            "no model computes bleu; leave",
        ),
        (WatchRequest, {"measure_model": "metricx"}, "measure_model=metricx: write NAME=RUN"),
        (WatchRequest, {"measure_model": ["=a"]}, "measure_model==a: write NAME=RUN"),
        (
            WatchRequest,
            {"measure_model": ["a=b", "a=c"]},
            "measure_model=a=b,a=c: write NAME=RUN, and each",
        ),
        (WatchRequest, {"checkpoints": "avg:5,best"}, "checkpoint=avg:5,best must be last or avg:"),
        (TuningRequest, {"checkpoints": ()}, "checkpoint= must name one or more"),
        (TuningRequest, {"beam_sizes": [0]}, "beam_sizes=0 must be positive"),
        (TuningRequest, {"beam_size": 1}, "beam_size=1: no such field; perhaps beam_sizes"),
    ],
)
def test_wrong_fields_of_a_selection_are_refused(
    kind: type[SelectionRequest], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_request(kind, {"workdir": "run", **given})


def test_checkpoints_of_a_selection_have_defaults_and_exist(run: Path, tmp_path: Path) -> None:
    one, watching = EvaluationRequest((run,)), WatchRequest(run)
    assert (one.split, one.checkpoint) == ("test", "best")
    assert (watching.split, watching.checkpoints) == ("validation", ("last",))
    request = SelectionRequest(run, split="test", measure="bleu")
    with pytest.raises(RunError, match="has 3 checkpoints in a row at the regular interval"):
        tune(request, ["last", "avg:4"])
    with pytest.raises(ConfigError, match=r"avg:99 needs .* keeps checkpoints\.keep_last="):
        watch(request, ["last", "avg:99"])
    with pytest.raises(PathError, match="programs that take several runs"):
        watch(SelectionRequest(tmp_path / "a,b"), ["last"])
