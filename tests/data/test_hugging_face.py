import gc
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from t2t.config.fields import Config, ConfigError, DataConfig
from t2t.config.rules import validate
from t2t.data import corpus_sources, hugging_face, row_files
from t2t.data.corpus import Corpus, DataError
from t2t.data.parts import resolve
from t2t.data.preparation import LARGE_TEXT
from t2t.data.row_files import TableRow
from tests.data.pair_files import PAIRS, make_config, open_train, to_json, to_tsv, write_bytes
from tests.full_disk import full_disk

# `importorskip` would import it, which takes a second, in each process that collects the tests.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="the extra hf is not installed"
)


def test_splits_are_those_of_the_files(tmp_path: Path) -> None:
    paths = [write_bytes(tmp_path / f"{n}.tsv", to_tsv([(f"e{n}", f"d{n}")])) for n in range(3)]
    data = make_config(tmp_path, paths[0], paths[1], f"dev={paths[2]}")
    assert corpus_sources.list_splits(data) == ("train", "dev")
    assert [*corpus_sources.open_split(data, "train")] == [("e0", "d0"), ("e1", "d1")]
    assert [*corpus_sources.open_split(data, "dev")] == [("e2", "d2")]
    with pytest.raises(DataError, match=r"'validation' is unknown; .*'hf' has train, dev here"):
        corpus_sources.open_split(data, "validation")


def test_rows_are_copied_once_and_again_when_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_bytes(tmp_path / "a.tsv", to_tsv([("a", "b")]))
    assert [*open_train(tmp_path, path)] == [("a", "b")]
    with monkeypatch.context() as patch:
        patch.setattr("t2t.data.hugging_face._read_pairs", None)
        assert [*open_train(tmp_path, path)] == [("a", "b")]
    write_bytes(path, to_tsv([("a", "b"), ("c", "d")]))
    assert [*open_train(tmp_path, path)] == [("a", "b"), ("c", "d")]


@pytest.mark.filterwarnings(
    "ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_full_disk_leaves_no_part_of_a_copy(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS * 1000))
    message = "cannot be written: File too large; free some .*; data.cache_directory sets the"
    with full_disk(size=5000), pytest.raises(DataError, match=message):
        open_train(tmp_path, path)
    gc.collect()  # `datasets` leaves the file open
    assert [*(tmp_path / "cache" / "hf").iterdir()] == []
    assert [*open_train(tmp_path, path)] == PAIRS * 1000


def test_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS))
    second = write_bytes(tmp_path / "b.tsv", to_tsv(PAIRS))
    read = row_files.read_rows

    def read_and_change(path: Path, names: Sequence[str]) -> Iterator[TableRow]:
        yield from read(path, names)
        write_bytes(first, to_tsv([*PAIRS, ("more", "mehr")]))

    monkeypatch.setattr("t2t.data.hugging_face.read_rows", read_and_change)
    with pytest.raises(DataError, match=r"a\.tsv, .*b\.tsv changed while .* read; start again"):
        open_train(tmp_path, first, second)
    assert not [*(tmp_path / "cache").rglob("*.txt")]


def test_of_two_processes_that_copy_a_split_the_first_to_finish_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_config(tmp_path, write_bytes(tmp_path / "a.tsv", to_tsv(PAIRS)))
    read, first = row_files.read_rows, list[Corpus]()

    def read_beside_another(path: Path, names: Sequence[str]) -> Iterator[TableRow]:
        monkeypatch.undo()
        first.append(corpus_sources.open_split(data, "train"))
        yield from read(path, names)

    monkeypatch.setattr("t2t.data.hugging_face.read_rows", read_beside_another)
    second = corpus_sources.open_split(data, "train")
    assert [*first[0]] == [*second] == PAIRS
    assert not [*(tmp_path / "cache").rglob(".*")]
    hugging_face.find_hf_text(resolve(data)[0].parts[0])[1].unlink()  # then the copy is made again
    assert [*corpus_sources.open_split(data, "train")] == PAIRS


@pytest.fixture
def hub(tmp_path: Path) -> DataConfig:
    """A data set in a folder, which `datasets` treats like a repository of the Hub."""
    folder = tmp_path / "owner" / "corpus"
    folder.mkdir(parents=True)
    for split, count in (("train", 3), ("test", 2)):
        rows = [{"translation": {"en": f"{split} {n}", "de": f"d {n}"}} for n in range(count)]
        write_bytes(folder / f"{split}.jsonl", to_json(rows))
    return make_config(tmp_path, hf_name=str(folder))


@pytest.mark.parametrize("streaming", [True, False])
def test_data_set_of_the_hub_is_prepared_once(
    hub: DataConfig, streaming: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    hub.hf_streaming = streaming
    for use in (corpus_sources.list_splits, corpus_sources.open_training):
        with pytest.raises(DataError, match=r"was not copied to .*; run `python -m t2t\.prepare"):
            use(hub)
    corpus_sources.prepare(hub)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # as on another machine
    corpus_sources.prepare(hub)
    assert set(corpus_sources.list_splits(hub)) == {"train", "test"}
    assert [*corpus_sources.open_split(hub, "test")] == [("test 0", "d 0"), ("test 1", "d 1")]
    assert corpus_sources.measure_training_text(resolve(hub)) < LARGE_TEXT


def test_data_sets_that_were_saved_to_disk_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"translation": {"en": src, "de": tgt}} for src, tgt in PAIRS]
    saved = {name: datasets.Dataset.from_list(rows[:n]) for name, n in (("train", 4), ("test", 2))}
    single, several = make_config(tmp_path, hf_name=f"{tmp_path}/one set"), tmp_path / "several"
    for count in (4, 3):  # the folder is written anew
        datasets.Dataset.from_list(rows[:count]).save_to_disk(single.hf_name)
        corpus_sources.prepare(single)
        assert corpus_sources.list_splits(single) == ("train",)
        assert [*corpus_sources.open_split(single, "train")] == PAIRS[:count]
    datasets.DatasetDict(saved).save_to_disk(several)
    data = make_config(tmp_path, hf_name=str(several))
    with pytest.raises(DataError, match=r"was not copied to .*; run `python -m t2t\.prepare"):
        corpus_sources.open_training(data)  # it may be large
    corpus_sources.prepare(data)
    assert corpus_sources.list_splits(data) == ("train", "test")
    assert [*corpus_sources.open_split(data, "test")] == PAIRS[:2]
    [arrow] = (several / "train").glob("*.arrow")
    assert [*open_train(tmp_path, arrow)] == PAIRS
    with pytest.raises(DataError, match=r"several is a folder; .* set data\.hf_name to a folder"):
        open_train(tmp_path, several)
    (several / "train" / "state.json").unlink()
    with pytest.raises(DataError, match=r"state\.json cannot be read: No such file.*save the data"):
        corpus_sources.open_split(data, "train")


def test_hub_out_of_reach_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    data = DataConfig(
        "hf", hf_name="owner/no-such-corpus:de-en@main", cache_directory=str(tmp_path)
    )
    with pytest.raises(DataError, match=r"owner/no-such-corpus.* cannot be read: .*network") as e:
        corpus_sources.prepare(data)
    assert "\n" not in str(e.value)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"need the package datasets; .*'\.\[hf\]'"):
        corpus_sources.prepare(data)


def test_config_names_a_data_set_or_files() -> None:
    wrong: dict[str, dict[str, Any]] = {
        "needs one of them": {"hf_name": "a/b", "hf_files": ("train=a.tsv",)},
        r"data\.hf_files has 'a\.tsv'; write SPLIT=FILE, such as": {"hf_files": ("a.tsv",)},
    }
    for message, fields in wrong.items():
        data = DataConfig("hf", src_language="en", tgt_language="de", **fields)
        with pytest.raises(ConfigError, match=message):
            validate(Config(data=data))
