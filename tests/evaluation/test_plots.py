"""Differences by measure and scores by length, as text, numbers and pictures."""

import re
from pathlib import Path

import numpy as np
import pytest

from t2t.api.compare_runs import compare
from t2t.config.fields import ConfigError
from t2t.evaluation.plots import draw_by_step
from t2t.evaluation.significance import score_by_length
from t2t.evaluation.text_measures import make_measure
from tests.evaluation.saved_evaluations import collect, pair, save, spoil


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    texts = {"good": spoil(8), "bad": spoil(2), "fair": spoil(5)}
    return [
        str(save(folder / name, lines, nats=0.7 + 0.1 * number).path)
        for number, (name, lines) in enumerate(texts.items())
    ]


def test_each_measure_has_a_row_for_each_system_and_better_is_right(places: list[str]) -> None:
    lines = compare(places, "ter", "test", "", None).splitlines()
    assert "own; intervals with Holm's correction" in " ".join(lines)
    start = next(n for n, line in enumerate(lines) if line.startswith("measure ")) - 1
    rows = [re.split("  +", line) for line in lines[start + 3 : start + 11]]
    names = ["ter", "bleu", "exact_match", "nats per sub-word"]
    assert [row[0] for row in rows] == [name for name in names for _ in range(2)]
    assert lines[start + 11] == "Less is better: ter, nats per sub-word"
    for name, system, difference, bar in rows:
        is_error = name in ("ter", "nats per sub-word")
        assert difference.startswith("+") == is_error, "both are worse than the first"
        assert bar[:14].count("o") == 1, "worse is left"
        if name == "ter":
            reaches_the_edge = not bar.startswith(".")
            assert reaches_the_edge == ("bad" in system), "one scale for a measure"


def test_plot_is_drawn_and_needs_two_systems(places: list[str], tmp_path: Path) -> None:
    path = tmp_path / "forest.png"
    compare(places, "bleu", "test", "", None, forest=path)
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"--forest=f\.png shows differences; name two systems"):
        compare(places[:1], "bleu", "test", "", None, forest=Path("f.png"))
    with pytest.raises(ConfigError, match=re.escape("--forest=f.txt must end in one of .svg")):
        compare(places, "bleu", "test", "", None, forest=Path("f.txt"))


def test_run_with_one_validation_is_visible_beside_longer_ones() -> None:
    figure = draw_by_step({"long": [(1, 3.0), (2, 2.0), (3, 1.0)], "short": [(3, 1.5)]}, "loss")
    long, short = figure.axes[0].get_lines()
    assert (long.get_marker(), short.get_marker()) == ("None", "o")
    assert np.asarray(short.get_xydata()).tolist() == [[3, 1.5]]


LENGTHS = [0, 1, 10, 11, 20, 41, 50, 51, 400]
SOURCES = [" ".join(["w"] * length) for length in LENGTHS]
REFERENCES = [f"Der Hund {length} läuft am Strand ." for length in LENGTHS]
EXPECTED = {"1-10": [0, 1, 2], "11-20": [3, 4], "41-50": [5, 6], "51+": [7, 8]}


def test_sentences_are_grouped_by_the_words_of_their_source() -> None:
    systems = {"good": [REFERENCES], "bad": [spoil(2, REFERENCES), REFERENCES]}
    measure = make_measure("exact_match", "de")
    counted = {name: collect(measure, own, pair(REFERENCES)) for name, own in systems.items()}
    buckets = score_by_length(measure, counted, SOURCES)
    assert {bucket.words: bucket.indices for bucket in buckets} == EXPECTED
    for bucket in buckets:
        wrong = sum(index % 2 == 0 for index in bucket.indices)
        assert bucket.scores["good"].value == 100
        assert bucket.scores["good"].over_sentences is None, "too few for an interval"
        assert bucket.scores["bad"].value == pytest.approx(
            100 - 100 * wrong / len(bucket.indices) / 2
        )
