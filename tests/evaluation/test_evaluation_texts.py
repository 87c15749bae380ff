"""The texts of an evaluation: several references, documents and standard test sets."""

import re
from pathlib import Path

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


def test_each_further_reference_is_part_of_the_test_set(tmp_path: Path) -> None:
    src = write(tmp_path / "news.en", "a", "b")
    refs = write(tmp_path / "1.de", "x", "y"), write(tmp_path / "2.de", "X", "Y")
    one, both = (open_texts(DATA, "test", src=src, ref=given) for given in (refs[:1], refs))
    assert both[:3] == (["a", "b"], [["x", "y"], ["X", "Y"]], None)
    assert re.fullmatch(r"news-[0-9a-f]{8}", both.name)
    assert one.fingerprint == TextCorpus(src, refs[0]).fingerprint()
    assert one.fingerprint != both.fingerprint
    with pytest.raises(DataError, match=r"news\.en has 2 lines, but .*3\.de has 1"):
        open_texts(DATA, "test", src=src, ref=(*refs, write(tmp_path / "3.de", "x")))


TEXTS = (
    ["One.", "Two.", "Three.", "Yes.", "Good."],
    ["Eins.", "Zwei.", "Drei.", "Ja.", "Gut."],
)


def test_documents_are_ids_or_blocks(tmp_path: Path) -> None:
    for lines, documents in (
        (["x", "x", "y", "y", "x", "", " "], [0, 0, 1, 1, 0]),
        (["One.", "Two.", "", "", "Three. ", "Yes.", "Good.", ""], [0, 0, 1, 1, 1]),
        (["", "Eins.", "", "Zwei.", "Drei.", "Ja.", "Gut."], [0, 1, 1, 1, 1]),
    ):
        found = read_documents(write(tmp_path / "documents", *lines), TEXTS)
        assert found.tolist() == documents


def test_documents_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for lines, message in (
        (["a", "", "b"], "has 3 lines, 2 of them not blank, but .* 5 sentences, and the lines"),
        (["a", "b", "", *"cde"], "has 6 lines, 5 of them not blank, .* not its sources or ref"),
        ([*"abcde"], "the 5 sentences are each a document of its own; leave it out"),
        (TEXTS[0], "the 5 sentences are one document; leave it out"),
        ([*"abcdd"], "3 of 5 lines are there once, as in a text that is not this test set; write"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_documents(write(tmp_path / "documents", *lines), TEXTS)


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
    assert texts[:3] == (["a", "b"], [["x", "y"]], None)
    assert re.fullmatch(r"tiny-en-de-[0-9a-f]{8}", texts.name)
    assert texts.tgt_language == "de"
    with pytest.raises(ConfigError, match="--segments=testset is for --testset; name a file"):
        open_texts(DATA, "test", segments="testset")
    with pytest.raises(ConfigError, match="tiny:en-de names no documents; leave it out"):
        open_texts(DATA, "test", testset="tiny:en-de", segments="testset")
    with pytest.raises(ConfigError, match="has its own texts; leave out --src and --ref"):
        open_texts(DATA, "test", testset="tiny:en-de", src="a.en")


@pytest.mark.usefixtures("cache")
def test_test_set_that_cannot_be_opened_is_refused() -> None:
    for testset, message in (
        ("tiny:en-de", r"tiny:en-de is not in .*; run `sacrebleu -t tiny -l en-de --echo src` .*"
         r"copy its ~/\.sacrebleu/tiny to .*/cache/tiny"),
        ("tinny:en-de", "no test set 'tinny'; .* near names: tiny"),
        ("tiny", "write the test set and its languages, such as wmt24:en-de"),
        ("tiny:en-fr", "tiny has no 'en-fr'; use one of en-cs, en-de"),
        ("tiny:en-cs", "the run has data.tgt_language=de, not cs"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            find_test_set(testset, DATA)


DOCUMENT = """<doc id="{}" origlang="en">
<src lang="en"><p><seg id="1">one</seg><seg id="2">two</seg></p></src>
<ref lang="de" translator="A"><p><seg id="1">A eins</seg><seg id="2">A zwei</seg></p></ref>
<ref lang="de" translator="B"><p><seg id="1">B eins</seg><seg id="2">B zwei</seg></p></ref>
<ref lang="de" translator="C"><p><seg id="1">C eins</seg><seg id="2">C zwei</seg></p></ref>
</doc>"""


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
    documents = DOCUMENT.format("d0") + DOCUMENT.format("d1")
    (tmp_path / "raw" / "tiny.xml").write_text(f"<dataset>{documents}</dataset>")
    texts = open_texts(DATA, "test", testset="tiny24:en-de", segments="testset")
    assert [line[0] for line, *_ in texts.references] == ["A", "B"]
    assert texts.documents is not None
    assert texts.documents.tolist() == [0, 0, 1, 1]
    assert texts.sources == ["one", "two"] * 2
