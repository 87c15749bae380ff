"""Published tasks are read from the files of their authors; the lines here are made up."""

from pathlib import Path

import pytest

from t2t.config.fields import ConfigError, DataConfig
from t2t.data.corpus import DataError
from t2t.data.corpus_sources import list_splits, open_split


def write(folder: Path, **files: str) -> DataConfig:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, "utf-8")
    return DataConfig(directory=str(folder), cache_directory=str(folder / "cache"))


def test_a_table_of_sentence_meaning_and_kind(tmp_path: Path) -> None:
    lines = "A cat slept .\tsleep ( agent = cat )\tseen\nA dog ran .\trun ( agent = dog )\tnew\n"
    data = write(tmp_path, train__tsv=lines, dev__tsv=lines, test__tsv=lines, gen__tsv=lines)
    data.source = "cogs"
    assert set(list_splits(data)) == {"train", "validation", "test", "gen"}
    corpus = open_split(data, "gen")
    assert corpus[1] == ("A dog ran .", "run ( agent = dog )")
    assert corpus.read_kinds() == ["seen", "new"]


def test_commands_of_which_a_folder_has_several_sets(tmp_path: Path) -> None:
    line = "IN: walk twice OUT: WALK WALK\n"
    data = write(
        tmp_path, tasks_train_jump__txt=line, tasks_test_jump__txt=line + "\n",
        tasks_train_left__txt=line, tasks_test_left__txt=line,
    )  # fmt: skip
    data.source, data.subset = "scan", "jump"
    assert list_splits(data) == ("train", "test")
    corpus = open_split(data, "test")
    assert [*corpus] == [("walk twice", "WALK WALK")]
    assert corpus.read_kinds() is None
    data.subset = ""
    with pytest.raises(DataError, match=r"data.subset='' fits tasks_train_jump.txt, tasks_train_l"):
        open_split(data, "train")


def test_letters_and_features_of_words(tmp_path: Path) -> None:
    data = write(
        tmp_path, deu_100__train="gut\tbesser\tADJ;CMPR\n", deu_500__train="so\tso\tADV\n",
        deu__dev="ab sein\tab war\tV;PST\n", deu__gold="gut\tbesser\tADJ;CMPR\n",
    )  # fmt: skip
    data.source, data.subset = "inflection", "deu_100"
    assert list_splits(data) == ("train", "validation", "test")
    assert [*open_split(data, "validation")] == [("a b ␣ s e i n [V] [PST]", "a b ␣ w a r")]
    data.subset = "deu"
    with pytest.raises(
        DataError, match=r"names no training set in .*; use one of deu_100, deu_500"
    ):
        open_split(data, "train")


@pytest.mark.parametrize(
    ("source", "files", "message"),
    [
        (
            "cogs",
            {"train__tsv": "a\tb\tc\nd\te\n"},
            r"train.tsv, line 2 is not three filled",
        ),
        ("cogs", {"train__tsv": "a\tb\tc\nd\te\t \n"}, r"train.tsv, line 2 is not three filled"),
        ("cogs", {"dev__tsv": "a\tb\tc\n"}, r"has no train.tsv; name the folder with the files of"),
        ("scan", {"train__txt": "IN: a\n"}, r'train.txt, line 1 is not "IN: source OUT: target"'),
        ("scan", {}, r"has no .txt file with train in its name"),
        ("inflection", {"deu__train": "gut\tbesser\n"}, r"deu.train, line 1 is not three"),
        (
            "inflection",
            {"deu__train": "gut\tbesser\t;\n"},
            r"deu.train, line 1 is not three",
        ),
        ("inflection", {}, r"has no file NAME.train"),
    ],
)
def test_files_of_another_form_are_refused(
    tmp_path: Path, source: str, files: dict[str, str], message: str
) -> None:
    data = write(tmp_path, **files)
    data.source = source
    with pytest.raises((DataError, ConfigError), match=message):
        open_split(data, "train")
    data.directory = ""
    with pytest.raises(DataError, match=r"data.directory='' is no folder; name the one with"):
        open_split(data, "train")
