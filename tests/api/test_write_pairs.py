"""Text of a config as files: which pairs are kept, and where they are from."""

import math
from pathlib import Path

import numpy as np
import pytest

from t2t.api.write_pairs import write_pairs
from t2t.config.fields import Config, ConfigError, DataConfig
from t2t.data.corpus import DataError, TextCorpus
from t2t.data.dual_cross_entropy import score_pairs
from t2t.write_pairs import PairsRequest

PAIRS = [("a dog", "ein Hund"), ("same", "same"), ("two", "zwei"), ("three", "drei")]
# Of the pairs that the filter keeps: log-probability, and that of each sub-word.
FORWARD = ["-4.0\t-1 -2 -1\tx", "-1.0\t-1\tx", "nan\tnan\tx"]
BACKWARD = ["-3.0\t-1 -2\tx", "-3.0\t-3\tx", "-1.0\t-1\tx"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    for name, lines in (("src", [src for src, _ in PAIRS]), ("tgt", [tgt for _, tgt in PAIRS])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    for name, lines in (("forward", FORWARD), ("backward", BACKWARD)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    src, tgt = str(tmp_path / "src"), str(tmp_path / "tgt")
    data = DataConfig(
        "text", train_src=(src,), train_tgt=(tgt,), test_src=tgt, test_tgt=src,
        filters=("identical",), cache_directory=str(tmp_path / "cache"),
    )  # fmt: skip
    return Config(data=data)


def test_pairs_are_kept_by_the_scores_of_both_directions(tmp_path: Path, config: Config) -> None:
    scores = [tmp_path / "forward", tmp_path / "backward"]
    folder = tmp_path / "best"
    assert write_pairs(config, folder, scores=scores, keep=2 / 3, src_tag="<bt>") == (2, 3)
    assert (folder / "train.src").read_text() == "<bt> a dog\n<bt> two\n"
    assert (folder / "train.tgt").read_text() == "ein Hund\nzwei\n"
    assert (folder / "test.src").read_text() == (tmp_path / "tgt").read_text()
    origins = [line.split("\t") for line in (folder / "origin.tsv").read_text().splitlines()]
    assert [int(line) for _, line, _ in origins] == [1, 3]  # with what the filter dropped
    first = abs(4 / 3 - 3 / 2) + (4 / 3 + 3 / 2) / 2  # the paper's equation 2
    second = abs(1 - 3) + (1 + 3) / 2
    expected = [math.exp(-first), math.exp(-second)]
    assert [float(score) for *_, score in origins] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (FORWARD[:2], "has 2 lines for 3 pairs; score the same text"),
        (["-1.0"] * 3, "line 1: '-1.0' has no log-probabilities .* by t2t.score --tokens"),
    ],
)
def test_scores_of_other_text_are_refused(
    tmp_path: Path, config: Config, lines: list[str], message: str
) -> None:
    (tmp_path / "other").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=message):
        write_pairs(config, tmp_path / "best", scores=[tmp_path / "other"] * 2, keep=0.5)
    assert not (tmp_path / "best").exists()


def test_pairs_that_a_model_finds_impossible_are_worst() -> None:
    scores = score_pairs(np.array([np.inf, np.inf, 1]), np.array([1, np.inf, 1]))
    assert scores.tolist() == [0, 0, math.exp(-1)]


def test_arguments_that_would_change_other_pairs_are_refused(
    tmp_path: Path, config: Config
) -> None:
    with pytest.raises(ConfigError, match=r"^keep=0\.5 keeps the pairs with the best scores; add"):
        write_pairs(config, tmp_path / "best", keep=0.5)
    with pytest.raises(ConfigError, match=r"--src_tag='<bt>\\n' has a line break"):
        PairsRequest(config="recipe", output=tmp_path, src_tag="<bt>\n")
    config.data.directions = "en-de", "de-en"
    with pytest.raises(ConfigError, match=r"data.directions=en-de, de-en: .* name the languages"):
        write_pairs(config, tmp_path / "best")


def test_text_that_cannot_be_read_is_not_output_that_cannot_be_written(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: TextCorpus) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(TextCorpus, "__iter__", read)
    with pytest.raises(OSError, match=r"^the disk is gone$"):
        write_pairs(config, tmp_path / "best")
