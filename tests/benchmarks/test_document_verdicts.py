"""The simulation of verdicts on documents and skewed scores, with tiny sizes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import document_verdicts as benchmark
from t2t.evaluation import measures


def test_raw_file_has_the_rate_of_each_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rates.json"
    monkeypatch.setattr(measures, "RESAMPLES", 10)
    measures.draw_sentences.cache_clear()
    monkeypatch.setattr(sys, "argv", ["program", "--pairs=1", "--units=30", f"--output={path}"])
    benchmark.main()
    measures.draw_sentences.cache_clear()
    cells = json.loads(path.read_text("utf-8"))["cells"]
    found = {(each["values"], each["resampled"], each["scatter"]) for each in cells}
    assert len(found) == len(benchmark.VALUES) * len(benchmark.RESAMPLED) * 2
    assert all(each["rate"] in (0, 1) for each in cells)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3 * len(benchmark.VALUES)


def test_documents_hold_sentences_that_belong_together() -> None:
    random = np.random.default_rng(0)
    texts = benchmark.draw_texts(random, 40, in_documents=True)
    assert len(set(texts.documents.tolist())) == 40 < len(texts.difficulty)
    values = benchmark.draw_system(random, texts, "ratio", 2, 0.0)
    assert values.shape == (2, len(texts.difficulty), 2)
    assert (values[..., 0] < values[..., 1]).all()
