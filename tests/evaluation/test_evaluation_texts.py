"""The texts of an evaluation: several references, documents and standard test sets."""

import re
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.plain_text import PlainTextDataset
from sacrebleu.dataset.wmt_xml import WMTXMLDataset

from t2t.config.fields import ConfigError, DataConfig
from t2t.data.corpus import DataError, TextCorpus
from t2t.evaluation import evaluation_texts
from t2t.evaluation.evaluation_texts import find_test_set, open_texts, read_documents
from tests.evaluation.saved_evaluations import write

DATA = DataConfig(source="text", src_language="en", tgt_language="de")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    return {
        "src": write(tmp_path / "news.en", "a", "b"),
        "ref": (write(tmp_path / "1.de", "x", "y"), write(tmp_path / "2.de", "X", "Y")),
    }


def test_each_further_reference_is_part_of_the_test_set(files: dict[str, Any]) -> None:
    both, one = (
        open_texts(DATA, "test", src=files["src"], ref=files["ref"][:count]) for count in (2, 1)
    )
    assert both.test_set == (["a", "b"], [["x", "y"], ["X", "Y"]], None)
    assert re.fullmatch(r"news-[0-9a-f]{8}", both.name)
    assert one.fingerprint == TextCorpus(files["src"], files["ref"][0]).fingerprint()
    assert one.fingerprint != both.fingerprint
    assert one.test_set.references == [["x", "y"]]


def test_reference_of_another_length_is_refused(files: dict[str, Any], tmp_path: Path) -> None:
    short = write(tmp_path / "3.de", "x")
    with pytest.raises(DataError, match=r"news\.en has 2 lines, but .*3\.de has 1"):
        open_texts(DATA, "test", src=files["src"], ref=(*files["ref"], short))


TEXTS = ["One.", "Two.", "Three.", "Yes."], ["Eins.", "Zwei.", "Drei.", "Ja."]


@pytest.mark.parametrize(
    ("lines", "documents"),
    [
        (["x", "x", "y", "x"], [0, 0, 1, 0]),
        (["x", "x", "y", "y", "", " "], [0, 0, 1, 1]),
        (["One.", "Two.", "", "", "Three. ", "Yes.", ""], [0, 0, 1, 1]),
        (["", "Eins.", "", "Zwei.", "Drei.", "Ja."], [0, 1, 1, 1]),
    ],
)
def test_documents_are_ids_or_blocks(
    tmp_path: Path, lines: list[str], documents: list[int]
) -> None:
    found = read_documents(write(tmp_path / "documents", *lines), TEXTS)
    assert found is not None
    assert found.tolist() == documents
    assert read_documents("", TEXTS) is None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["a", "", "b", "b"],
            "has 4 lines, 3 of them not blank, but .* 4 sentences, and the lines",
        ),
        (["a", "b", "", "c", "d"], "has 5 lines, 4 of them not blank, .* not its sources or ref"),
        (["a", "b", "c", "d"], "the 4 sentences are each a document of its own; leave it out"),
        (["One.", "Two.", "Three.", "Yes."], "the 4 sentences are one document; leave it out"),
        ([*"abcdd"], "3 of 5 lines are there once, as in a text that is not this test set; write"),
    ],
)
def test_documents_that_do_not_fit_are_refused(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    texts = [[*TEXTS[0], "Yes."]] if len(lines) == 5 and "" not in lines else TEXTS
    with pytest.raises(ConfigError, match=message):
        read_documents(write(tmp_path / "documents", *lines), texts)
    with pytest.raises(ConfigError, match="--segments=testset is for --testset; name a file"):
        open_texts(DATA, "test", segments="testset")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sacreBLEU's list with a test set `tiny`, which its cache does not hold yet."""
    dataset = PlainTextDataset(
        "tiny", ["file:///no/such/file"], langpairs={"en-de": ["a", "b"], "en-cs": ["a", "c"]}
    )
    folder = tmp_path / "cache" / "tiny"
    dataset._outdir, dataset._rawdir = str(folder), str(folder / "raw")
    monkeypatch.setitem(DATASETS, "tiny", dataset)
    monkeypatch.setattr(evaluation_texts, "SACREBLEU_DIR", str(tmp_path / "cache"))
    return folder


def test_standard_test_set_is_read_from_sacrebleus_cache(cache: Path) -> None:
    cache.mkdir(parents=True)
    write(cache / "tiny.en-de.src", "a", "b")
    write(cache / "tiny.en-de.ref", "x", "y")
    texts = open_texts(DataConfig(source="text"), "test", testset="tiny:en-de")
    assert texts.test_set == (["a", "b"], [["x", "y"]], None)
    assert re.fullmatch(r"tiny-en-de-[0-9a-f]{8}", texts.name)
    assert texts.tgt_language == "de"
    with pytest.raises(ConfigError, match="tiny:en-de names no documents; leave it out"):
        open_texts(DATA, "test", testset="tiny:en-de", segments="testset")
    with pytest.raises(ConfigError, match="has its own texts; leave out --src and --ref"):
        open_texts(DATA, "test", testset="tiny:en-de", src="a.en")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("testset", "message"),
    [
        ("tiny:en-de", r"tiny:en-de is not in .*; run `sacrebleu -t tiny -l en-de --echo src` .*"
         r"copy its ~/\.sacrebleu/tiny to .*/cache/tiny"),
        ("tinny:en-de", "no test set 'tinny'; .* near names: tiny"),
        ("qqqqq:en-de", "`sacrebleu --list` lists them"),
        ("tiny", "write the test set and its languages, such as wmt24:en-de"),
        ("tiny:en-fr", "tiny has no 'en-fr'; use one of en-cs, en-de"),
        ("tiny:en-cs", "the run has data.tgt_language=de, not cs"),
    ],
)  # fmt: skip
def test_test_set_that_cannot_be_opened_is_refused(testset: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_test_set(testset, DATA)


def test_documents_and_chosen_references_of_a_standard_test_set_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the format of WMT since 2021, of which sacreBLEU's list names the references to use."""
    dataset = WMTXMLDataset(
        "tiny24", ["file:///no/tiny.tgz"], langpairs={"en-de": ["tiny.xml"]}, refs=["B", "A"]
    )
    dataset._outdir, dataset._rawdir = str(tmp_path), str(tmp_path / "raw")
    monkeypatch.setitem(DATASETS, "tiny24", dataset)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "tiny24.tiny.tgz").write_text("unpacked already")

    def write_texts(kind: str, *lines: str) -> str:
        segments = (f'<seg id="{number}">{line}</seg>' for number, line in enumerate(lines, 1))
        return (
            f'<{kind} lang="xx"'.replace("xx", "en" if kind == "src" else "de")
            + (f' translator="{lines[0][0]}"' * (kind == "ref"))
            + f"><p>{''.join(segments)}</p></{kind}>"
        )

    documents = (
        f'<doc id="d{number}" origlang="en">{write_texts("src", "one", "two")}'
        f"{write_texts('ref', 'A eins', 'A zwei')}{write_texts('ref', 'B eins', 'B zwei')}"
        f"{write_texts('ref', 'C eins', 'C zwei')}</doc>"
        for number in range(2)
    )
    (tmp_path / "raw" / "tiny.xml").write_text(f"<dataset>{''.join(documents)}</dataset>")
    texts = open_texts(DATA, "test", testset="tiny24:en-de", segments="testset")
    assert [line[0] for line, *_ in texts.test_set.references] == ["A", "B"]
    assert texts.test_set.documents is not None
    assert texts.test_set.documents.tolist() == [0, 0, 1, 1]
    assert texts.test_set.sources == ["one", "two"] * 2
