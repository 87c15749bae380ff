"""t2t.show: the description of a run directory."""

import json
from pathlib import Path

import pytest

from t2t.api.run_summary import describe_run, plot_runs
from t2t.config.fields import Config, ConfigError, ModelConfig
from t2t.config.files import save_config
from tests import programs
from tests.evaluation.saved_evaluations import save, spoil

START = {
    "initial": {
        "run": "/old",
        "checkpoint": "best-3",
        "sha256": "ab" * 32,
        "parameters": [["encoder.0-2", "taken", "1,000"]],
    },
    "date": "2026-01-01T10:00:00Z",
    "step": 0,
    "command": "python -m t2t.train --workdir=run",
    "revision": "0123abcd",
    "changed": [],
    "code": "beef" * 16,
    "config": {"model.num_heads": 1},
    "seed": 7,
    "corpora": {"train": [{"name": "a.en | a.de", "pairs": 1000, "sha256": "feed" * 16}]},
    "vocabulary": "cafe",
    "versions": {"jax": "0.10.2"},
    "environment": {},
    "compute": {"activations": "float32", "products": "exact"},
    "device": "cpu",
    "devices": 8,
    "processes": 1,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was stopped, continued on another machine and evaluated."""
    save_config(Config(model=ModelConfig(num_heads=1), seed=7), tmp_path / "config.json")
    resumed = {
        "date": "2026-01-02T10:00:00Z",
        "step": 50,
        "devices": 2,
        "changed": ["M t2t/runtime/command_line.py"],
        "code": "face" * 16,
    }
    lines = [START, START | resumed, START | resumed | {"step": 55}]
    (tmp_path / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    figures = [
        {"step": 50, "time": 0.0, "train/loss": 4.0},
        {"step": 50, "time": 0.0, "validation/loss": 3.5, "validation/loss/en-de": 3.25},
        {"step": 60, "time": 0.0, "train/loss": None},
    ]
    half = '{"step": 70, "ti'  # a line that is being written
    text = "".join(f"{json.dumps(line)}\n" for line in figures) + half
    (tmp_path / "metrics.jsonl").write_text(text)
    for step in (40, 50):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    save(tmp_path, spoil(3))
    return tmp_path


def read_lines(run: Path) -> list[str]:
    """Returns the description with single spaces between words."""
    return [" ".join(line.split()) for line in describe_run(run).splitlines()]


def test_run_says_what_made_it_how_far_it_is_and_how_good(run: Path) -> None:
    lines = read_lines(run)
    assert {
        "model.num_heads 1",
        "initial /old, checkpoint best-3, sha256 abababababababab",
        "encoder.0-2 taken 1,000",
        "revision 0123abcd",
        "changed nothing: the working tree was clean",
        "train 1000 pairs, feedfeedfeedfeed, a.en | a.de",
        "versions jax 0.10.2",
        "compute activations float32, products exact",
        "step 60 of 100000",
        "train/loss nan at step 60",
        "validation/loss/en-de 3.25 at step 50",
        "checkpoints 40, 50",
    } <= {*lines}
    assert not any(line.startswith("environment") for line in lines)
    assert sum(line.startswith("initial") for line in lines) == 1  # of three starts
    [evaluation] = [line for line in lines if line.startswith("test-100: ")]
    assert evaluation.endswith("checkpoint 100, test, 48 sentences, beam 4, alpha 0.6, "
                               "2026-01-01T00:00:00Z")  # fmt: skip
    [score] = [line for line in lines if line.startswith("exact_match ")]
    assert score.split()[-1].startswith("nrefs:1|case:mixed|space:one")


def test_later_start_says_what_differs_from_the_one_before(run: Path) -> None:
    lines = read_lines(run)
    start = lines.index("2026-01-02T10:00:00Z after step 50")
    assert lines[start + 1 : start + 5] == [
        "changed M t2t/runtime/command_line.py",
        "code facefacefaceface, sha256 of the programs and recipes",
        "devices 2",
        "2026-01-02T10:00:00Z after step 55",
    ]
    assert lines[start + 5] == "unchanged"


def test_run_without_ledger_metrics_and_scores_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is this a run directory"):
        describe_run(tmp_path)
    save_config(Config(), tmp_path / "config.json")
    text = describe_run(tmp_path)
    assert "none recorded: the run has no ledger.jsonl" in text
    assert "step 0 of 100000" in text
    assert "checkpoints  none" in text
    assert "none yet" in text


def test_program_shows_runs(run: Path) -> None:
    assert programs.run("t2t.show", str(run)).stdout == describe_run(run) + "\n"


def test_curves_of_runs_are_plotted_by_step(run: Path, tmp_path: Path) -> None:
    plot = tmp_path / "loss.svg"
    plot_runs([run], "train/loss", plot)
    assert plot.read_text().startswith("<?xml")
    with pytest.raises(ConfigError, match=r"no validation/bleu so far; --figure is one of: train/"):
        plot_runs([run], "validation/bleu", plot)
    with pytest.raises(ConfigError, match=r"--plot=loss\.txt must end in one of"):
        plot_runs([run], "train/loss", Path("loss.txt"))
    (run / "metrics.jsonl").unlink()
    assert "step 50 of 100000" in read_lines(run)  # that of its checkpoint
    with pytest.raises(ConfigError, match="has no figures so far; plot it after its first steps"):
        plot_runs([run], "train/loss", plot)
