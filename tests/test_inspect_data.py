"""t2t.inspect_data: its counts, its report and its output file."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from t2t.api.inspect_corpus import inspect_data
from t2t.config import Config, DataConfig, TokenizerConfig
from t2t.data.corpus_report import format_report, report_data
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.inspect_data import print_report
from tests import programs
from tests.data.small_corpus import CORPUS
from tests.tiny_training import write_recipe

TRAINING = [
    ("the girl sees tea.", "das Mädchen sieht Tee."),
    ("the girl sees tea.", "das Mädchen sieht Tee."),  # the same pair again
    ("the girl sees tea.", "das Mädchen sieht den Tee."),  # the same source again
    ("a girl sees tea.", "das Mädchen sieht Tee."),  # the same target again
    ("", "Tee."),  # empty
    ("tea " * 40, "Tee " * 40),  # too long
    ("tea", "Tee am Montag im großen Garten"),  # of uneven lengths
    ("日本 tea", "日本 Tee"),  # spelt as bytes
]
TEST = [
    ("the girl sees tea.", "das Mädchen sieht Tee."),  # a training pair
    ("the girl sees tea.", "ein Mädchen sieht Tee."),  # a training source
    ("no girl sees tea.", " das Mädchen  sieht den Tee."),  # a training target
    ("two houses", "zwei Häuser"),
]


def make_config(folder: Path, **splits: list[tuple[str, str]]) -> Config:
    """Writes the pairs of the splits train and test."""
    for stem, pairs in splits.items():
        for side, language in enumerate(("en", "de")):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{stem}.{language}").write_bytes(lines.encode())
    data = DataConfig(
        "text",
        train_src=(str(folder / "train.en"),),
        train_tgt=(str(folder / "train.de"),),
        test_src=str(folder / "test.en"),
        test_tgt=str(folder / "test.de"),
        cache_directory=str(folder / "cache"),
        max_length=30,
        max_length_ratio=3.0,
    )
    return Config(data=data, tokenizer=TokenizerConfig(vocab_size=290))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return make_config(tmp_path_factory.mktemp("text"), train=TRAINING, test=TEST)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a vocabulary."""
    folder = tmp_path_factory.mktemp("vocab")
    train_vocabulary([CORPUS], TokenizerConfig(vocab_size=500), folder)
    return folder


def test_pairs_words_and_byte_pieces_are_counted(config: Config, folder: Path) -> None:
    report = report_data(config, Vocabulary.load(folder))
    train, test = report.splits["train"], report.splits["test"]
    assert report.vocab_size == {"src": 500, "tgt": 500}
    assert (train.pairs, test.pairs) == (8, 4)
    assert train.repeated == {"src": 2, "tgt": 2, "pair": 1}
    assert test.repeated == {"src": 1, "tgt": 0, "pair": 0}
    assert train.in_training == test.dropped == {}
    assert test.in_training == {"src": 2, "tgt": 2, "pair": 1}
    assert train.dropped == {"empty": 1, "longer than 30": 1, "of uneven lengths": 1}
    assert train.unknown == test.unknown == test.bytes == {"src": 0, "tgt": 0}
    subwords = train.subwords["src"].mean * train.pairs
    assert train.bytes["src"] == pytest.approx(6 / subwords)  # two characters of three bytes
    words, lengths = train.words["src"], [len(src.split()) for src, _ in TRAINING]
    assert words.mean == pytest.approx(np.mean(lengths))
    assert (words.median, words.largest) == (np.median(lengths), 40)
    assert dict(zip(words.edges, words.counts, strict=True))[1] == 6  # from 1 to 5 words
    assert sum(words.counts) == 8


def test_forms_of_text_and_missing_characters_are_counted(tmp_path: Path, folder: Path) -> None:
    pairs = [
        ("der Ba\u0308r", "der Bär"),  # not in NFC
        ("12", "12"),
        ("a\rb", "a\u2028b\x1cc\tc"),
        ("a\tb", "ein Teil\x00"),
    ]
    report = report_data(make_config(tmp_path, train=pairs, test=TEST), Vocabulary.load(folder))
    split = report.splits["train"]
    assert split.not_nfc == {"src": 1, "tgt": 0}
    assert split.equal_sides == 1
    assert split.control == {"src": 1, "tgt": 2}
    assert split.lacking["src"] == {"\u0308": 1, "1": 1, "2": 1, "\t": 1}
    *_, last = format_report(report).splitlines()
    assert "pairs of train with equal sides: 1; " in last
    assert "sentences of train that are not in Unicode's NFC: 1; " in last
    assert "sentences of train with control characters or line separators: 3; " in last
    assert " U+2028 (1)" in last


def test_blank_pairs_are_no_repeated_nor_equal_ones(tmp_path: Path, folder: Path) -> None:
    """They stand between documents; the vocabulary sees no text in the last one, either."""
    pairs = [("a", "b"), ("", ""), ("c", "d"), (" ", "\t"), ("", "e"), ("\u200b", "")]
    config = make_config(tmp_path, train=pairs, test=[("x", "y"), ("", "")])
    config.data.filters = "duplicates", "identical", "overlap"
    report = report_data(config, Vocabulary.load(folder))
    train, test = report.splits["train"], report.splits["test"]
    assert (train.blank, test.blank) == (3, 1)
    assert train.repeated == {"src": 0, "tgt": 0, "pair": 0}
    assert (train.equal_sides, test.in_training["pair"]) == (0, 0)
    assert {name: count for name, count in train.dropped.items() if count} == {"empty": 4}
    assert "blank pairs of train, as between documents: 3; " in format_report(report)


def test_markup_and_quotes_of_tables_are_counted(tmp_path: Path, folder: Path) -> None:
    pairs = [
        ('<seg id="1">Tea</seg>', "Tee &amp; mehr"),
        ("it&#39;s tea", '"Sie sagte: ""Tee""."'),
        ("a < b and c > d; AT&T", '"Tee", "Tee"'),
        ("</doc>", '"Tee, bitte."'),  # as it may stand in a book
    ]
    config = make_config(tmp_path, train=pairs, test=[('"tea"', "Tee"), ('"two"', "zwei")])
    report = report_data(config, Vocabulary.load(folder))
    assert report.splits["train"].markup == {"src": 3, "tgt": 1}
    assert report.splits["train"].quoted == {"src": 0, "tgt": 1}
    assert report.splits["test"].quoted == {"src": 2, "tgt": 0}  # each cell, as QUOTE_ALL does it
    *_, last = format_report(report).splitlines()
    assert "sentences of train with tags such as <b>, or entities such as &amp;: 4; " in last
    assert "put them: 1 (write it as .csv: csv.writer(new).writerows(csv.reader(old" in last


def test_report_is_printed_and_written(
    config: Config, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(config, folder, tmp_path / "report.json")
    text, _ = capsys.readouterr()
    assert "== test: 4 pairs" in text
    assert "also in train: src 2 (50.00%), tgt 2 (50.00%), pair 1 (25.00%)" in text
    assert "left out of training: empty 1 (12.50%), longer than 30 1 (12.50%)" in text
    assert f"from 1 4 100.00% {'#' * 40}" in [" ".join(line.split()) for line in text.splitlines()]
    assert text.splitlines()[-1] == (
        "to look at: pairs of train repeated: 1; pairs of train left out of training: 3; "
        "train has characters that the vocabulary lacks: 日 U+65E5 (2), 本 U+672C (2); "
        "pairs of test also in train: 1"
    )
    figures = json.loads((tmp_path / "report.json").read_text())
    assert figures["splits"]["test"]["in_training"]["pair"] == 1


def test_program_trains_a_vocabulary_if_none_is_named(config: Config, tmp_path: Path) -> None:
    write_recipe(config, tmp_path / "recipe.py")
    arguments = f"--config={tmp_path}/recipe.py", f"--output={tmp_path}/a.json"
    result = programs.run("t2t.inspect_data", *arguments, "--config.data.batch_tokens=1000")
    assert result.stdout.startswith("vocabulary: 290 for both sides")
    assert json.loads((tmp_path / "a.json").read_text())["vocab_size"]["tgt"] == 290


def test_report_is_of_the_vocabulary_that_the_config_names(config: Config, tmp_path: Path) -> None:
    """Its size is too large for this text, as that of the old run is in fine-tuning."""
    train_vocabulary([CORPUS], TokenizerConfig(vocab_size=500, lowercase=True), tmp_path)
    tokenizer = TokenizerConfig(path=f"{tmp_path}/joint.model", vocab_size=37_000)
    data = dataclasses.replace(config.data, filters=("duplicates",))
    report = inspect_data(dataclasses.replace(config, data=data, tokenizer=tokenizer))
    assert report.vocab_size["src"] == 500
    given = inspect_data(dataclasses.replace(config, data=data), tmp_path)
    assert report == given


def test_filters_by_text_are_counted_with_examples(config: Config, folder: Path) -> None:
    data = dataclasses.replace(config.data, filters=("duplicates", "overlap"))
    filtered = report_data(dataclasses.replace(config, data=data), Vocabulary.load(folder))
    train, test = filtered.splits["train"], filtered.splits["test"]
    assert train.pairs == 4
    assert (train.dropped["duplicates"], train.dropped["overlap"]) == (1, 3)
    assert train.examples["overlap"] == [TRAINING[0], *TRAINING[2:4]]
    assert test.in_training == {"src": 0, "tgt": 0, "pair": 0}
    shown = format_report(filtered)
    assert "left out of training: duplicates 1 (12.50%), overlap 3 (37.50%), empty 1" in shown
    assert "  overlap: a girl sees tea. | das Mädchen sieht Tee." in shown
