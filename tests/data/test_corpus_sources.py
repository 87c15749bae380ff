from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t2t.config import variants
from t2t.config.fields import DataConfig
from t2t.data import corpus_sources
from t2t.data.corpus import Corpus, DataError, ListCorpus


def write_pair(folder: Path, stem: str, count: int) -> tuple[str, str]:
    paths = folder / f"{stem}.en", folder / f"{stem}.de"
    for path in paths:
        path.write_text("".join(f"{path.name} {i}\n" for i in range(count)))
    return str(paths[0]), str(paths[1])


@pytest.fixture
def _toy_source(own_variants: None) -> None:  # noqa: ARG001
    """Registers a source "toy" with two pairs in each of three splits."""

    def open_toy(data: DataConfig, split: str) -> Corpus | None:  # noqa: ARG001
        pairs = [("toy", split), ("spiel", split)]
        return ListCorpus(f"toy, {split}", pairs) if split in ("train", "test", "extra") else None

    variants.register("data.source", "toy")(open_toy)


@pytest.mark.usefixtures("_toy_source")
def test_sources_are_joined_in_their_order(tmp_path: Path) -> None:
    (src1, tgt1), (src2, tgt2) = write_pair(tmp_path, "a", 3), write_pair(tmp_path, "b", 4)
    held_out: dict[str, Any] = {"validation_src": src1, "validation_tgt": tgt1}
    held_out |= {"test_src": src1, "test_tgt": tgt1}
    data = DataConfig("toy+text", train_src=(src1, src2), train_tgt=(tgt1, tgt2), **held_out)
    opened = corpus_sources.open_training(data)
    assert [(len(corpus), corpus.weight) for corpus in opened] == [(2, 1), (3, 1), (4, 1)]
    whole = corpus_sources.open_split(data, "train")
    assert [src for src, _ in whole][1:4] == ["spiel", "a.en 0", "a.en 1"]
    assert corpus_sources.list_splits(data) == ("train", "test", "validation")
    assert corpus_sources.open_split(data, "test")[0] == ("a.en 0", "a.de 0")
    assert corpus_sources.open_split(data, "validation")[0] == ("a.en 0", "a.de 0")
    assert corpus_sources.open_split(data, "extra")[0] == ("toy", "extra")
    data.test_src = data.test_tgt = ""
    assert corpus_sources.open_split(data, "test")[0] == ("toy", "test")
    data.source = "text+toy"
    assert [len(corpus) for corpus in corpus_sources.open_training(data)] == [3, 4, 2]
    data.train_weights = (1.0, 0.5, 3.0)
    assert [corpus.weight for corpus in corpus_sources.open_training(data)] == [1, 0.5, 3]


def test_shares_of_corpora_follow_their_sizes_to_the_power_of_one_over_t(tmp_path: Path) -> None:
    sizes = [32, 4, 1]
    for temperature in (1.0, 2.0, 5.0, 1e9):
        weights = corpus_sources.find_weights(sizes, temperature)
        wanted = [(size / 32) ** (1 / temperature) for size in sizes]
        assert np.multiply(weights, sizes) == pytest.approx(32 * np.array(wanted))
    assert corpus_sources.find_weights([8000, 1000], temperature=3) == [1, 4]  # without a fraction
    assert corpus_sources.find_weights([1000, 1_000_000], temperature=0.2) == [1e-9, 1]
    (src, tgt), (src2, tgt2) = write_pair(tmp_path, "a", 32), write_pair(tmp_path, "b", 1)
    data = DataConfig("text", train_src=(src, src2), train_tgt=(tgt, tgt2), temperature=5.0)
    assert [corpus.weight for corpus in corpus_sources.open_training(data)] == [1, 16]


@pytest.mark.usefixtures("_toy_source")
def test_source_without_training_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("en\tde\na\tb\n")
    data = DataConfig("toy+hf", hf_files=(f"validation={path}",), cache_directory=str(tmp_path))
    with pytest.raises(DataError, match=r"'train' is unknown; .*'hf' has validation here"):
        corpus_sources.open_training(data)
