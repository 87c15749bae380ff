"""Measures of the benchmarks, and the simulation of verdicts with tiny sizes."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import tuned_verdicts, verdicts
from benchmarks.alignments import alignment_error_rate
from t2t.evaluation.measure import LEVEL


def test_raw_file_has_the_rate_of_each_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "verdicts.json"
    flags = ["--pairs=1", "--sentences=10"]
    monkeypatch.setattr(sys, "argv", ["benchmarks/verdicts.py", *flags, f"--output={path}"])
    verdicts.main()
    found = json.loads(path.read_text("utf-8"))
    assert found["command"].startswith("python -m benchmarks.verdicts --pairs=1 --sentences=10")
    assert {"revision", "date", "versions"} <= found.keys()
    assert found["parameters"]["level"] == LEVEL
    cells = [(tuple(cell["seeds"]), cell["scatter"]) for cell in found["cells"]]
    assert cells == [(seeds, scatter) for seeds in verdicts.SEEDS for scatter in verdicts.SCATTER]
    assert all(cell["rate"] in (0, 1) for cell in found["cells"])
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(verdicts.SEEDS)


def test_raw_file_of_tuned_systems_says_how_often_the_tuned_one_is_called_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tuned-verdicts.json"
    flags = ["--pairs=1", "--sentences=30", f"--output={path}"]
    monkeypatch.setattr(sys, "argv", ["benchmarks/tuned_verdicts.py", *flags])
    tuned_verdicts.main()
    cells = json.loads(path.read_text("utf-8"))["cells"]
    ways, seeds, scatter = tuned_verdicts.WAYS, tuned_verdicts.SEEDS, tuned_verdicts.SCATTER
    assert len(cells) == len(ways) * len(seeds) * len(scatter)
    assert all(cell["rate_better"] <= cell["rate"] <= 1 for cell in cells)


def test_alignment_error_rate_is_that_of_och_and_ney() -> None:
    found, sure = {(0, 0), (1, 1), (2, 3)}, {(0, 0), (2, 2)}
    assert alignment_error_rate([found], [sure]) == pytest.approx(1 - 2 / 5)
    assert alignment_error_rate([sure], [sure]) == 0
