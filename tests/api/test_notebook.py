"""`t2t.train`, `t2t.evaluate` and their like: what they pass on, and what a notebook shows."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t2t.api import evaluate_run, notebook, train_run
from t2t.config import Config, ConfigError, DataConfig
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.storage.paths import PathError
from tests.evaluation.saved_evaluations import save, spoil
from tests.tiny_run import PAIRS, make_run

untyped: Any = notebook  # as notebooks call it


def test_training_has_the_writers_and_paths_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--writers=wandb is unknown; "):
        notebook.train(Config(), tmp_path / "run", writers="wandb")
    with pytest.raises(PathError, match=r"--workdir=.*a,b: programs that take several runs"):
        notebook.train(Config(), tmp_path / "a,b")
    assert not [*tmp_path.iterdir()]


def test_trained_run_is_loaded_with_its_best_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(train_run, "train", lambda *arguments: called.append(arguments))
    monkeypatch.setattr(notebook, "load", lambda *arguments: called.append(arguments))
    config = Config(data=DataConfig(source="phrasebook"))
    for scores, best in (({"loss"}, "best"), (set(), "last")):
        monkeypatch.setattr("t2t.training.checkpoint.list_scored_measures", lambda _, x=scores: x)
        notebook.train(config, str(tmp_path))
        assert called[-2:] == [(config, tmp_path, ()), (tmp_path, best)]


def test_evaluation_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[EvaluationRequest] = []
    monkeypatch.setattr(evaluate_run, "evaluate", lambda request, held: requests.append(request))
    untyped.evaluate("runs/a", "validation", checkpoint=np.int64(100), measures="chrf")
    notebook.evaluate([Path("runs/a"), "runs/b"], src=Path("a.en"), ref="a.de")
    assert requests == [
        EvaluationRequest((Path("runs/a"),), "100", split="validation", measures=("chrf",)),
        EvaluationRequest((Path("runs/a"), Path("runs/b")), src="a.en", ref=("a.de",)),
    ]
    notebook.evaluate("runs/a", beam_size=1, decoding={"alpha": 1})  # as the flags
    assert requests[-1].decoding == {"alpha": 1, "beam_size": 1}


def test_loaded_run_is_evaluated_and_compared_with_the_parameters_that_it_holds(
    tmp_path: Path,
) -> None:
    workdir = make_run(tmp_path / "run")
    run, pair = notebook.load(workdir, "best"), notebook.load(workdir, "100,300", weights=(3, 1))
    shutil.rmtree(workdir / "checkpoints" / "200")  # as training does meanwhile
    own = notebook.evaluate(run, measures="chrf")
    assert own.passport.checkpoint == "best-200"
    [score] = run.score([PAIRS[0]])
    assert float(own.read_lines("log_probs")[0].split()[0]) == pytest.approx(score, abs=1e-5)
    both = notebook.evaluate(pair, measures="chrf")
    newest = notebook.evaluate(workdir, checkpoint=300, measures="chrf")
    for system, expected in ((run, own), (pair, both), (workdir, newest)):
        text = " ".join(notebook.compare(system, measure="chrf").split())
        assert f", evaluation {expected.name}" in text
    with pytest.raises(EvaluationError, match="holds no evaluation of validation with the param"):
        notebook.compare(run, split="validation")
    other = notebook.load(workdir, "100,300")  # with other weights
    with pytest.raises(EvaluationError, match="holds no evaluation of test with the parameters of"):
        notebook.compare(run, other)


def test_notebook_shows_a_comparison_with_a_picture_and_the_scores_of_an_evaluation(
    tmp_path: Path,
) -> None:
    base, other = save(tmp_path / "base", spoil(8)), save(tmp_path / "one_head", spoil(2))
    found = notebook.compare(tmp_path / "base", other)
    assert found.startswith("one_head is worse than base: ")
    assert repr(found) == found
    shown = found._repr_html_()
    assert shown.startswith("<pre>one_head is worse than base: ")
    assert '<img alt="differences" src="data:image/png;base64,' in shown
    assert "<img" not in notebook.compare(str(tmp_path / "base"))._repr_html_()
    shown = base._repr_html_()
    assert shown.startswith("<p><code>test-100: 48 sentences</code></p><table>")
    assert "bleu_lowercase" in shown


def test_contradictions_and_wrong_types_are_refused(run: Path) -> None:
    evaluate = functools.partial(untyped.evaluate, notebook.load(run))
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: evaluate(checkpoint=10), "checkpoint=10 chooses parameters, but Run"),
        (
            lambda: evaluate(src="a", ref="b", split="test"),
            "src replaces the split: leave out split",
        ),
        (
            lambda: evaluate(testset="wmt14", split="test"),
            "testset replaces the split: leave out split",
        ),
        # Of errors behind the checks of the arguments, too.
        (lambda: notebook.load([run, run], weights=[0, 1]), r"^weights=0\.0,1\.0 must be positive"),
        (lambda: notebook.load(run, mean="log_probs"), "^weights and mean are for an ensemble"),
        (lambda: evaluate(src="a"), "^src='a' and ref='' go together; give both"),
        (lambda: evaluate(output="a.txt"), r"^output=a\.txt must end in \.json"),
        (
            lambda: notebook.evaluate_output("a", "b.json"),
            "hypotheses=a needs the texts that were translated: src and ref, or testset",
        ),
        (lambda: untyped.evaluate(3), r"run=3 is not of type tuple\[str, ...\]"),
        (lambda: evaluate(measures=3), r"measures=3 is not of type tuple\[str, ...\]"),
        (lambda: evaluate(decoding="beam_size=1"), "decoding='beam_size=1' is not of type .*Map"),
        (lambda: evaluate(decoding={"beams": 1}), "decoding.beams=1: no such field; perhaps dec"),
        (lambda: evaluate(beams=3), "beams=3: no such field; perhaps beam_size"),
        (lambda: evaluate(workdir="a"), "workdir: the run directory is the first argument; leave"),
        (lambda: untyped.load([]), "workdir is empty; name a run directory, or several"),
        (lambda: untyped.load("a", ["last", "10"]), r"checkpoint=\['last', '10'\] is not of type"),
        (lambda: untyped.load("a", mean="median"), "mean='median' is unknown; use one of prob"),
        (lambda: untyped.train({}, "a"), r"config={} is not of type t2t\.config\.Config"),
        (lambda: untyped.compare(), "systems is empty; name run directories, runs or evaluations"),
        (lambda: untyped.compare(["a", "b"]), r"systems\[0\]=\['a', 'b'\] is no run directory, "),
    ]
    for call, message in calls:
        with pytest.raises(ConfigError, match=f"^{message}"):
            call()
