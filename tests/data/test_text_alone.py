"""Objectives that read text alone: the text of each source, filters, the report, and the loader."""

from pathlib import Path
from typing import Any

import jax
import pytest

from t2t.api.inspect_corpus import inspect_data
from t2t.api.train_run import plan_batches
from t2t.config import variants
from t2t.config.fields import Config, DataConfig, MeshConfig, TokenizerConfig
from t2t.data import corpus_sources
from t2t.data.corpus import Corpus, ListCorpus, TextCorpus
from t2t.data.corpus_report import format_report
from t2t.data.parts import resolve
from t2t.data.tokenizer import train_vocabulary
from tests.data.small_corpus import PAIRS
from tests.tiny_training import make_small_mesh

TEXT = [german for _, german in PAIRS[:40]]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def make_data(folder: Path, *files: str, **fields: Any) -> DataConfig:
    given: dict[str, Any] = {"source": "text", "objective": "span_corruption", "train_tgt": files}
    return DataConfig(**given | {"cache_directory": str(folder / "cache")} | fields)


def test_files_of_text_need_no_other_side(tmp_path: Path) -> None:
    files = [write(tmp_path / name, TEXT[i:]) for i, name in enumerate(("a", "b", "dev"))]
    data = make_data(
        tmp_path, *files[:2], validation_tgt=files[2], train_weights=(1.0, 2.0), objective="lm"
    )
    opened = corpus_sources.open_training(data)
    assert [corpus.weight for corpus in opened] == [1, 2]
    assert [[*corpus] for corpus in opened] == [[("", t) for t in TEXT[i:]] for i in range(2)]
    assert [corpus.name for corpus in opened] == files[:2]
    assert corpus_sources.list_splits(data) == ("train", "validation")
    directions = resolve(data)
    [(_, validation)] = corpus_sources.open_data(directions).validation.items()
    assert validation[0] == ("", TEXT[2])
    assert corpus_sources.measure_training_text(directions) == sum(
        Path(file).stat().st_size for file in files[:2]
    )
    pairs = TextCorpus(files[0], files[0]).fingerprint()
    assert opened[0].fingerprint() not in (pairs, opened[1].fingerprint())


@pytest.mark.usefixtures("own_variants")
def test_sources_of_pairs_give_their_targets(tmp_path: Path) -> None:
    """Files of rows need no column of sources."""

    def open_toy(_: DataConfig, split: str) -> Corpus | None:
        return ListCorpus("toy", [("a", "b")]) if split == "train" else None

    variants.register("data.source", "toy")(open_toy)
    rows = write(tmp_path / "rows.tsv", ["text\tyear", "ein Haus\t1999"])
    data = make_data(tmp_path, source="toy+hf", hf_files=(f"train={rows}",), tgt_column="text")
    toy, hf = corpus_sources.open_training(data)
    assert [*toy] == [("", "b")]
    assert [*hf] == [("", "ein Haus")]


def test_filters_look_at_the_text(tmp_path: Path) -> None:
    train = [*TEXT[:5], TEXT[0], "Это другой алфавит", TEXT[9]]
    files = write(tmp_path / "a", train), write(tmp_path / "dev", [TEXT[9]])
    data = make_data(
        tmp_path, files[0], validation_tgt=files[1], filters=("duplicates", "script", "overlap")
    )
    [corpus] = corpus_sources.open_training(data)
    assert [text for _, text in corpus] == TEXT[:5]
    assert corpus.dropped == {"duplicates": 1, "script": 1, "overlap": 1}


def test_report_has_the_text_alone(tmp_path: Path) -> None:
    files = write(tmp_path / "a", [*TEXT, ""]), write(tmp_path / "dev", TEXT[:1])
    data = make_data(tmp_path, files[0], validation_tgt=files[1], max_length=12)
    report = inspect_data(Config(data=data, tokenizer=TokenizerConfig(vocab_size=330, sentinels=1)))
    train = report.splits["train"]
    assert [*train.words] == [*train.subwords] == [*train.not_nfc] == ["tgt"]
    assert train.ratio is None
    assert train.dropped["empty"] == 1
    assert 0 < train.dropped["longer than 12"] < len(TEXT)
    text = format_report(report)
    assert "src" not in text
    assert "pairs of validation also in train: 1" in text


def test_report_names_the_symbols_that_the_vocabulary_lacks(tmp_path: Path) -> None:
    files = write(tmp_path / "a", ["C4 e#5 rest", "C4 rest"]), write(tmp_path / "dev", ["C4 new"])
    data = make_data(tmp_path, files[0], validation_tgt=files[1], max_length=12)
    tokenizer = TokenizerConfig(kind="symbols", vocab_size=8, sentinels=1)
    text = format_report(inspect_data(Config(data=data, tokenizer=tokenizer)))
    assert "symbols that the vocabulary lacks, tgt: new (1)" in text
    assert "validation has symbols that the vocabulary lacks: new (1)" in text
    assert "train has" not in text


@pytest.mark.parametrize("kind", ["train", "sampled"])
def test_training_reads_the_pairs_of_the_objective(tmp_path: Path, kind: str) -> None:
    file = write(tmp_path / "a", TEXT)
    data = make_data(
        tmp_path, file, max_length=40, batch_tokens=640, packed_length=40,
        subword_sampling=0.3 if kind == "sampled" else 0.0,
    )  # fmt: skip
    config = Config(data=data, tokenizer=TokenizerConfig(vocab_size=330, sentinels=3))
    config.training.steps = 1
    [corpus] = corpus_sources.open_training(data)
    vocabulary = train_vocabulary([corpus], config.tokenizer, tmp_path / "vocab")
    mesh = make_small_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        batches, _ = plan_batches(config, tmp_path, vocabulary, mesh, [corpus], start=0)
        batch = next(batches)
    first, *_ = vocabulary.tgt.sentinel_ids
    assert (batch.src == first).sum() == (batch.tgt_out == first).sum() > 5
    assert vocabulary.several_sentences == 0
