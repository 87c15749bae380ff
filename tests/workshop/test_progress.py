"""What a terminal shows of steps at work."""

import io
import re
import sys
from pathlib import Path

import pytest

from t2t.config.fields import Config
from t2t.config.files import save_config
from t2t.workshop.progress import StepProgress
from t2t.workshop.steps import Step, Workshop


def test_a_terminal_shows_the_steps_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    step, other = Step("a", "train"), Step("b", "export")
    progress = StepProgress(Workshop([step, other], tmp_path), workers=2)
    with progress.show(1):
        progress.begin(1, step, "not begun")
        (tmp_path / "a").mkdir()
        save_config(Config(), tmp_path / "a" / "config.json")
        (tmp_path / "a" / "metrics.jsonl").write_text('{"step": 1000, "train/loss": 2}\n')
        progress.update(1)
        progress.end(1, "a: finished")
        progress.begin(1, other, "not begun")
    shown = terminal.getvalue()
    assert re.search(r"a, train: +1%.* 1000/100000 .*, loss 2\.000\]", shown)
    assert re.search(r"steps: 100%.* 1/1 ", shown)
    # An event has a line of its own, and the bars are drawn again, in any order.
    assert re.search(r"(\x1b\[A|\r)a: t2t.train \(not begun\)\n(?s:.)*steps: +0%", shown)
    assert not re.search(r"b, export:[^\x1b]*loss", shown)  # which is that of a
    assert re.search(r"b, export: 0it", shown)
