import dataclasses
from pathlib import Path

import pytest

from t2t.config.fields import DataConfig
from t2t.data import corpus_sources
from t2t.data.corpus import DataError
from tests import programs
from tests.data import tiny_tfds


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    directory = str(tmp_path_factory.mktemp("tfds"))
    data = DataConfig(
        "tfds", "de", "en", directory, "tiny_translation", cache_directory=f"{directory}/cache"
    )
    corpus_sources.prepare(data)
    return data


def test_tfds_is_read_on_another_host_from_the_cache(prepared: DataConfig, tmp_path: Path) -> None:
    here = corpus_sources.open_split(prepared, "train")
    elsewhere = dataclasses.replace(prepared, directory=str(tmp_path))
    assert corpus_sources.list_splits(elsewhere) == corpus_sources.list_splits(prepared)
    there = corpus_sources.open_split(elsewhere, "train")
    assert (there.name, [*there]) == (here.name, [*here])
    assert there.fingerprint() == here.fingerprint()
    with pytest.raises(DataError, match=r"not prepared in .*, nor in data\.cache_directory="):
        corpus_sources.open_split(dataclasses.replace(elsewhere, src_language="en"), "train")
    with pytest.raises(DataError, match=r"data\.tgt_language='fr'.* two of de, en"):
        corpus_sources.open_split(dataclasses.replace(prepared, tgt_language="fr"), "train")


def test_held_out_splits_come_from_another_tfds_dataset(
    prepared: DataConfig, tmp_path: Path
) -> None:
    data = dataclasses.replace(prepared, tfds_held_out_name="other_translation")
    corpus_sources.prepare(data)
    for here in (data, dataclasses.replace(data, directory=str(tmp_path))):  # known elsewhere, too
        assert corpus_sources.list_splits(here) == corpus_sources.list_splits(prepared)
        names = {split: corpus_sources.open_split(here, split).name for split in tiny_tfds.SIZES}
        assert names == {
            "train": "tiny_translation/1.0.0, train",
            "validation": "other_translation/1.0.0, validation",
            "test": "other_translation/1.0.0, test",
        }
    assert tiny_tfds.pair("train", 0) in list(corpus_sources.open_split(data, "train"))
    assert tiny_tfds.pair("other test", 0) in list(corpus_sources.open_split(data, "test"))
    wrong = dataclasses.replace(data, tfds_held_out_name="no_such_dataset")
    with pytest.raises(DataError, match=r"data\.tfds_held_out_name='no_such_dataset': "):
        corpus_sources.open_split(wrong, "validation")


def test_tfds_is_read_elsewhere_without_tensorflow(prepared: DataConfig) -> None:
    program = (
        "import sys; from t2t.config import DataConfig;"
        "from t2t.data.corpus_sources import open_split;"
        f"corpus = open_split(DataConfig('tfds', 'en', 'de', {prepared.directory!r},"
        "'tiny_translation'), 'train');"
        "assert 'tensorflow' not in sys.modules;"
        "print(*sorted(corpus)[0], corpus.fingerprint(), sep='|', end='')"
    )
    result = programs.run_python("-c", program)
    german, english = tiny_tfds.pair("train", 0)
    prepared_backwards = DataConfig("tfds", "en", "de", prepared.directory, prepared.tfds_name)
    fingerprint = corpus_sources.open_split(prepared_backwards, "train").fingerprint()
    assert result.stdout == f"{english}|{german}|{fingerprint}"
    assert fingerprint != corpus_sources.open_split(prepared, "train").fingerprint()
