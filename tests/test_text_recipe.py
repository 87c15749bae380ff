"""The recipe for one's own text: what it chooses, and what it refuses."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import text
from t2t.config.fields import Config, ConfigError, flatten
from t2t.config.files import save_config
from t2t.config.new_run_rules import check_effect
from t2t.config.open_numbers import check_config
from t2t.data.corpus import DataError
from t2t.data.corpus_sources import open_training
from t2t.data.preparation import fill_tokenizer
from t2t.data.tokenizer import train_vocabulary

WORDS = [a + b + c for a in ("ka", "to", "mi", "su") for b in "rnlvt" for c in ("e", "ox", "una")]


def write_text(folder: Path, pairs: int = 400, changes: str = "upper") -> None:
    """Sentences of three to nine words; the target has them in capitals, or as `changes` says."""
    lines = [
        " ".join(WORDS[(n * k * k + n // 7) % len(WORDS)] for k in range(1, 4 + n % 7))
        for n in range(pairs)
    ]
    change: dict[str, Callable[[str], str]]
    change = {"upper": str.upper, "none": str, "moves": to_moves}
    (folder / "train.src").write_text("\n".join(lines) + "\n", "utf-8")
    targets = map(change[changes], lines)
    (folder / "train.tgt").write_text("\n".join(targets) + "\n", "utf-8")


def to_moves(line: str) -> str:
    """Words such as ka5ox4: BPE makes few merges, since letters and digits do not merge."""
    return " ".join(f"{word[:2]}{len(word)}{word[-2:]}4" for word in line.split())


def make_recipe(folder: Path, wishes: str = "", **fields: Any) -> text.TextConfig:
    config = text.get_config(wishes)
    config.data.train_src = (str(folder / "train.src"),)
    config.data.train_tgt = (str(folder / "train.tgt"),)
    config.data.cache_directory = str(folder / "cache")
    for name, value in fields.items():
        section, field = name.split("__")
        setattr(getattr(config, section), field, value)
    return config


def fit(folder: Path, wishes: str = "", **fields: Any) -> Config:
    return check_config(make_recipe(folder, wishes, **fields))


def test_all_numbers_are_chosen_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_text(tmp_path)
    with caplog.at_level(logging.INFO):
        config = fit(tmp_path)
    assert type(config) is Config
    assert config.model.d_model == 128
    assert config.training.steps >= config.training.warmup_steps * 10
    assert config.checkpoints.every == config.training.bleu_every
    assert "training.steps" in caplog.text
    assert "sub-words an epoch" in caplog.text


def test_pairs_that_teach_nothing_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_text(tmp_path)
    fit(tmp_path)
    assert not caplog.records
    for side in ("src", "tgt"):
        path = tmp_path / f"train.{side}"
        path.write_text(path.read_text("utf-8") + "a copy\n" * 8, "utf-8")
    fit(tmp_path)
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "1.7% of the pairs repeat another one",
        "2.0% of the pairs have two equal sides",
    ]
    fit(tmp_path, data__filters=("duplicates",))
    assert len(caplog.messages) == 2


def test_a_flag_has_the_last_word(tmp_path: Path) -> None:
    write_text(tmp_path)
    config = fit(tmp_path, model__d_model=64, model__dropout=0.0, checkpoints__every=40)
    assert (config.model.d_model, config.model.d_ff, config.model.dropout) == (64, 256, 0.0)
    assert (config.checkpoints.every, config.training.bleu_every) == (40, 40)


def test_more_text_gives_a_larger_model_with_less_dropout(tmp_path: Path) -> None:
    write_text(tmp_path)
    configs = [fit(tmp_path, data__train_weights=(weight,)) for weight in (1.0, 3000.0, 100_000.0)]
    assert [config.model.d_model for config in configs] == [128, 256, 512]
    for field in ("data.batch_tokens", "training.steps"):
        values = [flatten(config)[field] for config in configs]
        assert values == sorted(values)
    dropouts = [config.model.dropout for config in configs]
    assert dropouts == sorted(dropouts, reverse=True)
    rates = [config.training.learning_rate for config in configs]
    assert rates == sorted(rates, reverse=True)


def test_minutes_bound_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)

    def count(minutes: int, speed: float) -> int:
        monkeypatch.setattr(text, "measure_speed", lambda: (speed, 0.0))
        recipe = f"minutes={minutes}"
        return fit(tmp_path, recipe, data__train_weights=(300.0,)).training.steps

    slow, fast = count(10, 1e10), count(10, 2e10)
    assert fast == pytest.approx(2 * slow, rel=0.1)
    assert count(20, 1e10) > 2 * slow
    assert count(10**6, 1e12) == count(10**5, 1e12)  # more steps would bring nothing
    assert fit(tmp_path, "steps=70").training.steps == 70


def test_run_goes_on_with_its_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)
    saved = fit(tmp_path, "minutes=10")
    save_config(saved, tmp_path / "config.json")
    monkeypatch.setattr(text, "measure_speed", lambda: (1e20, 0.0))
    assert check_config(make_recipe(tmp_path, "minutes=10"), tmp_path) == saved


@pytest.mark.parametrize(
    ("pairs", "changes", "message"),
    [
        (99, "upper", r"99 sentence pairs are too few to train a model on; bring 100 or more"),
        (200, "none", r"source and target are the same in 100% of the sentence pairs"),
    ],
)
def test_text_without_a_task_is_refused(
    pairs: int, changes: str, message: str, tmp_path: Path
) -> None:
    write_text(tmp_path, pairs, changes)
    with pytest.raises(DataError, match=message):
        fit(tmp_path)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ("minutes=nan", "minutes=nan: it has to be above 0"),
        ("minutes=5,minutes=6", "minutes is given twice"),
        ("hours=1", "hours=1: write minutes=NUMBER"),
        ("size=huge", "size=huge: use small, medium, base"),
        ("minutes=5,steps=20", "choose minutes or steps, not both"),
    ],
)
def test_wrong_wish_is_refused(wishes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        text.get_config(wishes)


@pytest.mark.parametrize(
    "fields",
    [
        {"tokenizer__shared": False, "model__tie_embeddings": "decoder"},
        {"tokenizer__kind": "unigram"},
        {"tokenizer__kind": "symbols"},
        {"model__kind": "decoder_only"},
        {"data__subword_sampling": 0.1},
        {"data__length_multiple": 24},
        {"data__objective": "span_corruption", "data__train_src": ()},
        {"data__objective": "lm", "data__train_src": (), "model__kind": "decoder_only"},
        {"data__objective": "masked_lm", "data__train_src": (), "model__kind": "encoder_only"},
        {"model__d_model": 100},
        {"model__encoder_layers": 3, "model__decoder_layers": 1},
        {"mesh__tensor": 4, "mesh__data": 1},
        {"training__bleu_every": 0},
        {"training__validate_every": 30},
        {"training__schedule": "noam", "training__optimizer": "adam"},
        {"decoding__strategy": "sampling"},
    ],
    ids=str,
)
def test_numbers_fit_other_kinds_of_vocabularies_and_models(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    write_text(tmp_path)
    config = fit(tmp_path, **fields)
    check_effect([config], fields)  # as a notebook does
    own = fill_tokenizer(config).tokenizer
    train_vocabulary(open_training(config.data, own), own, tmp_path / "vocab")
    save_config(config, tmp_path / "config.json")
    assert check_config(make_recipe(tmp_path, **fields), tmp_path) == config  # it goes on


def test_vocabulary_is_one_that_the_text_fills(tmp_path: Path) -> None:
    write_text(tmp_path, changes="moves")
    config = fit(tmp_path, tokenizer__shared=False, model__tie_embeddings="decoder")
    train_vocabulary(open_training(config.data), config.tokenizer, tmp_path / "vocab")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data__batch_tokens": 0}, "data.batch_tokens=0 must be positive"),
        ({"data__max_length": 2}, "all of the text is longer than data.max_length=2 sub-words"),
        ({"tokenizer__kind": "bep"}, "tokenizer.kind='bep' is unknown"),
        ({"data__train_src": ()}, "data.train_src has 0 files"),
    ],
)
def test_wrong_values_are_refused_before_others_are_chosen(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_text(tmp_path)
    with pytest.raises(ConfigError, match=message):
        fit(tmp_path, **fields)
