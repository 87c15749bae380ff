"""Rules of `data.objective`: each is refused with its remedy, which is accepted."""

from pathlib import Path
from typing import Any

import pytest

from t2t.config import variants
from t2t.config.fields import Config, ConfigError
from t2t.config.files import override
from t2t.config.objective_rules import KINDS, check_scores, count_noise
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
SAMPLED: dict[str, Any] = {"data.subword_sampling": 0.1, "data.packed_length": 256}


def make(values: dict[str, Any]) -> Config:
    return override(Config(), values)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        TEXT | {"data.validation_tgt": "b.txt", "data.test_tgt": "c.txt"},
        SAMPLED,
        {"data.source": "hf", "data.hf_files": ("train=a.tsv",), "data.tgt_column": "text"},
        {"data.filters": ("duplicates", "overlap", "script")},
        {"tokenizer.kind": "symbols"},
    ],
    ids=str,
)
def test_text_alone_is_accepted(changes: dict[str, Any]) -> None:
    make(SPANS | changes)


# The field that does not go with others, which come behind it; and the remedy.
PROBLEMS: list[tuple[dict[str, Any], str]] = [
    (
        {"data.objective": "masked_lm"},
        "set model.kind to encoder_only, or data.objective to one of translation, span_corruption",
    ),
    (
        {"data.objective": "lm"},
        "set model.kind to decoder_only, or data.objective to one of translation, span_corruption",
    ),
    ({"data.noise_density": 0.0}, "must lie in (0, 1)"),
    ({"data.noise_density": 1.0}, "must lie in (0, 1)"),
    ({"data.mean_span_length": 0.5}, "must be at least 1, the length of the shortest span"),
    ({"data.max_length_ratio": 3.0}, "leave it at 0.0"),
    ({"data.directions": ("en-de",)}, "leave it at ()"),
    ({"training.bleu_every": 1000}, "leave it at 0"),
    ({"checkpoints.best_metric": "bleu", "checkpoints.keep_best": 0}, "leave it at 'loss'"),
    ({"data.filters": ("identical",)}, "leave out identical"),
    ({"tokenizer.shared": False, "model.tie_embeddings": "decoder"}, "set tokenizer.shared=True"),
    ({"data.sampled_sides": "src"} | SAMPLED, "leave it at 'both'"),
    ({"data.train_src": ("a.en",)} | TEXT, "name the files in data.train_tgt"),
    ({"data.train_tgt": (), "data.source": "text"}, "data.source='text' needs at least one"),
    (
        {"data.tgt_column": "", "data.source": "hf", "data.hf_files": ("train=a.tsv",)},
        "set it to the name of the column, or data.tgt_language",
    ),
    ({"data.train_weights": (1.0, 2.0)} | TEXT, "give one for each, or none"),
    ({"data.subword_sampling": 0.1, "tokenizer.kind": "symbols"} | SAMPLED, "set it to 0"),
    (
        {"training.bleu_every": 1000, "tokenizer.kind": "symbols", "data.objective": "translation"},
        "set it to 0",
    ),
]


@pytest.mark.parametrize(("changes", "remedy"), PROBLEMS, ids=str)
def test_what_makes_no_sense_together_is_refused(changes: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(SPANS | changes)
    name, *_ = changes
    assert str(caught.value).startswith((f"{name}={changes[name]!r}", f"{name} has "))
    assert str(caught.value).endswith(remedy)


def test_table_has_every_objective_and_every_kind() -> None:
    assert KINDS.keys() == {*CHOICES["data.objective"]}
    assert {kind for kinds in KINDS.values() for kind in kinds} == {*CHOICES["model.kind"]}
    for objective, kinds in KINDS.items():
        for kind in kinds:
            changes = {"data.objective": objective, "model.kind": kind, "tokenizer.sentinels": 14}
            make(changes)


def test_registered_kind_may_have_any_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "_registered", {("model.kind", "mine"): object})
    make({"data.objective": "lm", "model.kind": "mine"})


def test_registered_objective_trains_the_kinds_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mine:
        kinds = ("encoder_only",)

    registered = {("data.objective", "mine"): Mine, ("data.objective", "plain"): lambda: None}
    monkeypatch.setattr(variants, "_registered", registered)
    make({"data.objective": "plain", "model.kind": "decoder_only"})
    noise = {"data.noise_density": 0.3, "data.mean_span_length": 2.0}
    mine = make({"data.objective": "mine", "model.kind": "encoder_only"} | noise)
    assert not noise.keys() & list_unused(mine).keys()
    with pytest.raises(ConfigError, match=r"data\.objective='mine' .* has no probability"):
        check_scores(mine)
    with pytest.raises(ConfigError, match=r"'mine' .* set model\.kind to encoder_only"):
        make({"data.objective": "mine"})


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
    masked = {"data.objective": "masked_lm", "model.kind": "encoder_only", "tokenizer.sentinels": 1}
    with pytest.raises(ConfigError, match=r"data\.objective='masked_lm' .* has no probability"):
        check_scores(make(masked))


def test_counts_are_those_of_t5() -> None:
    """512 sub-words: 15% are 77, in 26 spans."""
    data = make(SPANS).data
    assert count_noise(512, data) == (77, 26)
    assert [count_noise(n, data) for n in (0, 1, 2, 10, 20)] == [
        (0, 0),
        *[(1, 1)] * 2,
        *[(2, 1), (3, 1)],
    ]
