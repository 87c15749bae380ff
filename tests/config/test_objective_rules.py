"""Rules of `data.objective`: each is refused with its remedy, which is accepted."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from t2t.config import variants
from t2t.config.fields import Config, ConfigError
from t2t.config.objective_rules import KINDS, check_scores, count_noise
from t2t.config.rules import validate
from t2t.config.unused_fields import list_unused
from t2t.config.variants import CHOICES
from t2t.decoding.translator import Translator
from t2t.sweeps.sweep_directory import EvaluationProtocol, check_protocol
from t2t.sweeps.sweep_rows import Row, Run

SPANS: dict[str, Any] = {
    "data.objective": "span_corruption",
    "tokenizer.sentinels": 14,
    "training.bleu_every": 0,
}
TEXT: dict[str, Any] = {"data.source": "text", "data.train_tgt": ("a.txt",)}


def make(changes: dict[str, Any]) -> Config:
    config = Config()
    for name, value in changes.items():
        section, field = name.split(".")
        part = dataclasses.replace(getattr(config, section), **{field: value})
        setattr(config, section, part)
    return config


@pytest.mark.parametrize(
    "changes",
    [{}, TEXT, TEXT | {"data.validation_tgt": "b.txt", "data.test_tgt": "c.txt"},
     {"data.subword_sampling": 0.1, "data.packed_length": 256},
     {"data.source": "hf", "data.hf_files": ("train=a.tsv",), "data.tgt_column": "text"},
     {"data.filters": ("duplicates", "overlap", "script")}, {"tokenizer.kind": "symbols"}],
    ids=str,
)  # fmt: skip
def test_text_alone_is_accepted(changes: dict[str, Any]) -> None:
    validate(make(SPANS | changes))


PROBLEMS = {
    "masked_lm is for encoders alone": (
        {"data.objective": "masked_lm", "tokenizer.sentinels": 1},
        "data.objective='masked_lm' cannot train model.kind='transformer'; set model.kind to "
        "encoder_only, or data.objective to one of translation, span_corruption",
    ),
    "lm has no encoder": (
        {"data.objective": "lm"},
        "data.objective='lm' cannot train model.kind='transformer'; set model.kind to decoder_only,"
        " or data.objective to one of translation, span_corruption",
    ),
    "spans have a length": (
        {"data.mean_span_length": 0.5},
        "data.mean_span_length=0.5 must be at least 1, the length of the shortest span",
    ),
    "no ratio of lengths": (
        {"data.max_length_ratio": 3.0},
        "data.max_length_ratio=3.0: data.objective='span_corruption' reads text alone, which has "
        "no other side; leave it at 0.0",
    ),
    "no directions": (
        {"data.directions": ("en-de",)},
        "data.directions=('en-de',): data.objective='span_corruption' reads text alone, which has "
        "no direction; leave it at ()",
    ),
    "no BLEU": (
        {"training.bleu_every": 1000},
        "training.bleu_every=1000: data.objective='span_corruption' reads text alone, which has no "
        "translations; leave it at 0",
    ),
    "no best BLEU": (
        {"checkpoints.best_metric": "bleu", "checkpoints.keep_best": 0},
        "checkpoints.best_metric='bleu': data.objective='span_corruption' reads text alone, which "
        "has no translations; leave it at 'loss'",
    ),
    "no equal sides": (
        {"data.filters": ("identical",)},
        "data.filters=('identical',): data.objective='span_corruption' reads text alone, which has "
        "no sides to compare; leave out identical",
    ),
    "one vocabulary": (
        {"tokenizer.shared": False, "model.tie_embeddings": "decoder"},
        "tokenizer.shared=False: data.objective='span_corruption' reads text alone, which has no "
        "second language; set tokenizer.shared=True",
    ),
    "no source to sample": (
        {"data.subword_sampling": 0.1, "data.packed_length": 256, "data.sampled_sides": "src"},
        "data.sampled_sides='src': data.objective='span_corruption' reads text alone, which has no "
        "sources; leave it at 'both'",
    ),
    "no source files": (
        TEXT | {"data.train_src": ("a.en",)},
        "data.train_src=('a.en',) is not used by data.objective='span_corruption', which reads "
        "text alone; name the files in data.train_tgt",
    ),
    "a file at least": (
        {"data.source": "text"},
        "data.train_tgt has no file; data.source='text' needs at least one",
    ),
    "a column": (
        {"data.source": "hf", "data.hf_files": ("train=a.tsv",)},
        "data.tgt_column='': data.source='hf' finds the text by it; set it to the name of the "
        "column, or data.tgt_language",
    ),
    "weights are of the files": (
        TEXT | {"data.train_weights": (1.0, 2.0)},
        "data.train_weights has 2 values for 1 corpora; give one for each, or none",
    ),
    "symbols are not segmented": (
        {"tokenizer.kind": "symbols", "data.subword_sampling": 0.1, "data.packed_length": 256},
        "data.subword_sampling=0.1: with tokenizer.kind='symbols' a sentence has one segmentation; "
        "set it to 0",
    ),
    "symbols are no words": (
        {"tokenizer.kind": "symbols", "training.bleu_every": 1000, "data.objective": "translation"},
        "training.bleu_every=1000: BLEU counts words, and tokenizer.kind='symbols' has none; set "
        "it to 0",
    ),
}


@pytest.mark.parametrize(("changes", "message"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_makes_no_sense_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(make(SPANS | changes))
    assert str(caught.value) == message


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_some_of_a_text_is_noise_and_some_is_not(density: float) -> None:
    with pytest.raises(ConfigError, match=rf"data\.noise_density={density} must "):
        validate(make(SPANS | {"data.noise_density": density}))


def test_table_has_every_objective_and_every_kind() -> None:
    assert KINDS.keys() == {*CHOICES["data.objective"]}
    assert {kind for kinds in KINDS.values() for kind in kinds} == {*CHOICES["model.kind"]}
    for objective, kinds in KINDS.items():
        for kind in kinds:
            changes = {"data.objective": objective, "model.kind": kind, "tokenizer.sentinels": 14}
            validate(make(changes))


def test_registered_kind_may_have_any_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "_registered", {("model.kind", "mine"): object})
    validate(make({"data.objective": "lm", "model.kind": "mine"}))


def test_registered_objective_trains_the_kinds_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mine:
        kinds = ("encoder_only",)

    registered = {("data.objective", "mine"): Mine, ("data.objective", "plain"): lambda: None}
    monkeypatch.setattr(variants, "_registered", registered)
    validate(make({"data.objective": "plain", "model.kind": "decoder_only"}))
    mine = make({"data.objective": "mine", "model.kind": "encoder_only"})
    validate(mine)
    with pytest.raises(ConfigError, match=r"data\.objective='mine' .* has no probability"):
        check_scores(mine)
    with pytest.raises(
        ConfigError, match=r"'mine' cannot train .* set model\.kind to encoder_only"
    ):
        validate(make({"data.objective": "mine"}))
    noise = {"data.objective": "mine", "data.noise_density": 0.3, "data.mean_span_length": 2.0}
    assert not {"data.noise_density", "data.mean_span_length"} & list_unused(make(noise)).keys()


def test_what_searches_refuses_a_run_on_text_alone() -> None:
    vocabulary: Any = None  # refused before anything is read
    with pytest.raises(ConfigError, match=r"data\.objective='span_corruption' trains no model to"):
        Translator(make(SPANS), vocabulary)


def test_sweep_of_text_alone_is_compared_by_what_its_runs_predict() -> None:
    base, other = (Run(Row(name), 0, make(SPANS), Path("sweep")) for name in ("base", "other"))
    check_protocol(EvaluationProtocol("test", "last", "accuracy"), [base, other])
    with pytest.raises(ConfigError, match=r"--measure=bleu .*; use perplexity or accuracy$"):
        check_protocol(EvaluationProtocol("test", "last", "bleu"), [base])
    with pytest.raises(ConfigError, match=r"'last,best' is an ensemble, .*; name one checkpoint$"):
        check_protocol(EvaluationProtocol("test", "last,best", "perplexity"), [base])
    pairs = Run(Row("pairs"), 0, Config(), Path("sweep"))
    with pytest.raises(ConfigError, match=r"pairs.*='translation' .* a sweep of its own"):
        check_protocol(EvaluationProtocol("test", "last", "perplexity"), [base, pairs])
    with pytest.raises(ConfigError, match="--measure=perplexity means nothing for"):
        check_protocol(EvaluationProtocol("test", "last", "perplexity"), [pairs])


def test_masked_sub_words_give_a_pair_no_probability() -> None:
    check_scores(make(SPANS))
    with pytest.raises(ConfigError, match=r"data\.objective='masked_lm' .* has no probability"):
        check_scores(make({"data.objective": "masked_lm"}))


def test_counts_are_those_of_t5() -> None:
    """512 sub-words: 15% are 77, in 26 spans."""
    data = make(SPANS).data
    assert count_noise(512, data) == (77, 26)
    assert [count_noise(n, data) for n in (0, 1, 2, 10, 20)] == [
        (0, 0),
        *[(1, 1)] * 2,
        *[(2, 1), (3, 1)],
    ]
