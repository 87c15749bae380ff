"""Each rule of a config and its remedy: of every config, of text alone, of new runs."""

import dataclasses
import math
import re
from typing import Any

import pytest

from t2t.config import variants
from t2t.config.data_rules import KINDS
from t2t.config.fields import (
    FIELD_TYPES,
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    TrainingConfig,
    flatten,
)
from t2t.config.files import override
from t2t.config.rules import check_effect, list_unused, validate
from t2t.config.variants import CHOICES
from t2t.data.objectives import count_noise
from t2t.evaluation.likelihood import check_scores
from t2t.training.schedule import make_schedule


def rejection(values: dict[str, Any]) -> str:
    """The message about the defaults with these values."""
    with pytest.raises(ConfigError) as caught:
        override(Config(), values)
    return str(caught.value)


@pytest.mark.parametrize("name", [name for name, kind in FIELD_TYPES.items() if kind.names])
def test_unknown_choice_is_rejected_with_the_known_ones(name: str) -> None:
    message = rejection({name: "sine"})
    assert message.startswith(f"{name}='sine' is unknown; use one of ")
    assert flatten(Config())[name] in message.split("use one of ")[1].split(", ")


def test_numbers_without_meaning_are_rejected() -> None:
    """Negative numbers in each field, NaN, probabilities of 1 or more, and 0 of what is counted."""
    probabilities = "dropout", "smoothing", "adam_b", "ema_decay"  # parts of their names
    for name, default in flatten(Config()).items():
        if isinstance(default, str | bool | tuple) or name.startswith("mesh."):
            continue
        of_floats = [math.nan] if isinstance(default, float) else []
        of_shares = [1.5] if any(part in name for part in probabilities) else []
        for value in (-1, *of_floats, *of_shares):
            assert f"{name}={float(value) if of_floats else value} must " in rejection(
                {name: value}
            )
    for name in ("model.d_model", "model.d_k", "training.steps", "data.num_shapes"):
        assert f"{name}=0 must be positive" in rejection({name: 0})


TEXT = {"data.source": "text", "data.train_src": ("a.en",), "data.train_tgt": ("a.de",)}
TWO = TEXT | {"data.source": "phrasebook+text"}
LEARNED = {"model.position": "learned", "model.max_positions": 512}
SAMPLING = {"decoding.strategy": "sampling"}
PACKED = {"data.packed_length": 512}
SAMPLED = {"data.packed_length": 256, "data.subword_sampling": 0.1}
SPANS: dict[str, Any] = {"data.objective": "span_corruption", "tokenizer.sentinels": 14}
SPANS |= {"training.translate_every": 0}
BEST = {"training.translate_every": 1000}
ALONE: dict[str, Any] = {"data.source": "text", "data.train_tgt": ("a.txt",)}
MUP: dict[str, Any] = {"model.parametrization": "mup", "model.base_width": 64}
TABLE: dict[str, Any] = {"data.source": "hf", "data.hf_files": ("train=a.tsv",)}

# Fields that do not go together, one of which is named; and the remedy.
PROBLEMS: list[tuple[dict[str, Any], str]] = [
    (
        {"training.scheduled_sampling": 0.5, "model.kind": "encoder_only"}
        | {"data.objective": "masked_lm", "tokenizer.sentinels": 1},
        "leave it at 0.0",
    ),
    ({"training.scheduled_sampling": 0.5, "training.r_drop": 5.0}, "set one of them to 0"),
    ({"model.experts_per_token": 9, "model.feed_forward": "moe"}, "use 8 or less"),
    ({"model.num_heads": 5}, "use one of 1, 2, 4, 8, or set model.d_k and model.d_v"),
    ({"model.num_kv_heads": 3}, "use one of 1, 2, 4, 8"),
    ({"model.d_model": 9, "model.num_heads": 3}, "use an even width or another model.position"),
    (
        {"model.d_model": 2, "model.num_heads": 1, "model.position": "sinusoidal_fairseq"},
        "use a wider model, or 'sinusoidal'",
    ),
    ({"model.d_k": 5, "model.position": "rotary"}, "even model.d_k or another model.position"),
    ({"model.d_model": 9, "model.kind": "rnn"}, "use an even width"),
    ({"data.direction_tags": "both"}, "leave it at 'target'"),
    ({"tokenizer.character_coverage": 0.95}, "that SentencePiece can cover"),
    ({"training.rate_factors": ("encoder.*=0",)}, "training.frozen for parameters without updates"),
    ({"training.rate_factors": ("a=1", "a=2")}, "name each once"),
    ({"data.train_src": (), "data.source": "text"}, "needs equally many, at least one"),
    (TEXT | {"data.train_src": ("a.en", "b.en")}, "needs equally many, at least one"),
    ({"data.train_src": ("a.en",)}, "choose data.source='text', or leave it empty"),
    (TEXT | {"data.train_weights": (math.nan,)}, "to skip a corpus, remove it"),
    (TEXT | {"data.validation_src": "v.en"}, "give both"),
    (TEXT | {"data.train_weights": (2.0,), "data.temperature": 5.0}, "give one of them"),
    (TWO | {"data.train_weights": (2.0,), "data.stages": ("1,2",)}, "give one of them"),
    (TWO | {"data.stages": ("20: text=1", "1,1")}, "the last one as WEIGHTS alone"),
    (TWO | {"data.stages": ("20: 1,1", "20: 1,0", "1,1")}, "end later than the one before"),
    (TWO | {"data.stages": ("20: 0,0", "1,1")}, "0 leaves a corpus out"),
    (TWO | {"data.stages": ("inf,1",)}, "0 leaves a corpus out"),
    (TWO | {"data.stages": ("20: 1,1", "1,1,1")}, "0 to leave it out"),
    (TEXT | {"data.source": "text+text"}, "name each once"),
    (TWO | {"data.train_weights": (1.0,)}, "give one for each, or none"),
    (TABLE | {"data.src_language": "en"}, "set both, or data.src_column and data.tgt_column"),
    (
        {"data.hf_files": ("trian=a.tsv",), "data.source": "hf"}
        | {"data.src_column": "0", "data.tgt_column": "1"},
        "name the training files as train=FILE",
    ),
    ({"data.max_length": 100, "data.length_multiple": 8}, "raise it to 104"),
    ({"data.batch_tokens": 2000}, "raise it to 2048, or lower one of the others"),
    ({"data.batch_tokens": 2500} | PACKED, "raise it to 4096, or lower one of the others"),
    ({"data.packed_length": 128}, "raise it to that value, or lower data.max_length"),
    ({"data.packed_length": 256, "model.kind": "rnn"}, "set data.packed_length=0"),
    ({"model.tie_embeddings": "all", "tokenizer.shared": False}, "model.tie_embeddings='decoder'"),
    (LEARNED | {"model.max_positions": 100}, "raise it to 256 or more"),
    (LEARNED | {"decoding.max_source_length": 513}, "raise it to 513 or more"),
    (
        LEARNED | {"decoding.min_length": 512, "decoding.max_extra_length": 600},
        "raise it to 513 or more",
    ),
    ({"training.optimizer": "muon", "model.kind": "rnn"}, "use 'adam'"),
    ({"model.norm": "rms", "model.kind": "rnn"}, "leave it at 'layer'"),
    (
        {"training.weight_decay": 0.1},
        "leave it at 0, or use 'nadamw', 'schedule_free_adamw' or 'muon'",
    ),
    ({"training.adam_b1": 0.0, "training.optimizer": "schedule_free_adamw"}, "such as 0.9"),
    ({"training.accumulation_steps": 3}, "raise data.rows_multiple to 24"),
    (
        {"training.translate_every": 1500},
        "must be a multiple of training.validate_every=1000, or 0",
    ),
    ({"checkpoints.every": 500}, "change one of them, or set checkpoints.keep_best=0"),
    ({"checkpoints.every": 1000, "checkpoints.best_metric": "bleu"}, "checkpoints.keep_best=0"),
    (
        {
            "training.cooldown_steps": 10,
            "training.schedule": "cosine",
            "training.learning_rate": 0.01,
        },
        "inverse_sqrt, constant",
    ),
    (
        {"training.cooldown_steps": 1001, "training.schedule_start": 95_000},
        "lower it to 1000 or less",
    ),
    ({"training.schedule_start": 10, "training.steps": 10}, "of t2t.train, which sets both"),
    ({"training.r_drop": 5.0, "model.dropout": 0.0}, "set model.dropout, or training.r_drop=0"),
    ({"seed": 2**31}, "must be below 2**31"),
    ({"model.d_model": 2**40}, "must be at most 2**20: no machine holds more"),
    ({"model.num_layers": 10**6}, "at most 4096: no machine trains a deeper model"),
    ({"training.warmup_steps": 2**40}, "must be below 2**31"),
    ({"data.batch_tokens": 2**40}, "must be below 2**31"),
    ({"data.cache_directory": ""}, "must not be empty; '.' is the current folder"),
    ({"decoding.max_source_length": 2}, "raise it to 3 or more, or set 0 for data.max_length"),
    ({"decoding.min_length": 60}, "raise decoding.max_extra_length to 60 or more"),
    ({"decoding.mbr": "chrf", "decoding.beam_size": 1}, "decoding.beam_size is 1; raise it"),
    ({"decoding.mbr": "chrf"} | SAMPLING, "decoding.num_samples is 1; raise it"),
    ({"decoding.top_p": 0.0} | SAMPLING, "with 0 no sub-word could be drawn, and 1 draws from all"),
    ({"decoding.top_p": 1.5} | SAMPLING, "with 0 no sub-word could be drawn, and 1 draws from all"),
    ({"decoding.num_samples": 2}, "leave it at 1, or set decoding.strategy='sampling'"),
    # Widths that share a rate.
    ({"model.parametrization": "mup"}, "for example to the smallest width of a ladder"),
    ({"model.parametrization": "mup", "model.kind": "rnn"}, "leave it at 'standard'"),
    (MUP | {"training.optimizer": "schedule_free_adamw"}, "use 'adam', 'nadamw' or 'muon'"),
    (MUP | {"model.base_layers": 2}, "with a norm and residuals, or leave it None"),
    (
        MUP | {"model.base_layers": 2, "model.norm_position": "pre", "model.decoder_layers": 1},
        "use equal numbers, or leave it None",
    ),
    # Text alone.
    (
        SPANS | {"data.objective": "lm"},
        "one of translation, prefix_lm, span_corruption, denoising",
    ),
    (SPANS | {"data.noise_density": 0.0}, "must lie in (0, 1)"),
    (SPANS | {"data.noise_density": 1.0}, "must lie in (0, 1)"),
    (SPANS | {"data.mean_span_length": 0.5}, "at least 1, the length of the shortest span"),
    (SPANS | {"data.directions": ("en-de",)}, "leave it at ()"),
    (SPANS | {"data.filters": ("identical",)}, "leave out identical"),
    (SPANS | {"tokenizer.shared": False, "model.tie_embeddings": "decoder"}, "shared=True"),
    (SPANS | SAMPLED | {"data.sampled_sides": "src"}, "leave it at 'both'"),
    (SPANS | ALONE | {"data.train_src": ("a.en",)}, "name the files in data.train_tgt"),
    (SPANS | ALONE | {"data.train_tgt": ()}, "data.source='text' needs at least one"),
    (SPANS | TABLE | {"data.tgt_column": ""}, "the name of the column, or data.tgt_language"),
    (SAMPLED | {"tokenizer.kind": "symbols"}, "set it to 0"),
    (SAMPLED | {"tokenizer.kind": "bytes"}, "set it to 0"),
    ({"checkpoints.best_metric": "bleu", "tokenizer.kind": "symbols"} | BEST, "use exact_match"),
    ({"checkpoints.best_metric": "symbol_error_rate"} | BEST, "use exact_match"),
    (
        {"checkpoints.patience": 3, "checkpoints.best_metric": "chrf", "checkpoints.keep_best": 0},
        "but training.translate_every=0; set it",
    ),
]


@pytest.mark.parametrize(("values", "remedy"), PROBLEMS, ids=str)
def test_bad_combination_is_rejected_with_field_value_and_remedy(
    values: dict[str, Any], remedy: str
) -> None:
    message = rejection(values)
    own = [name for name in values if message.startswith((f"{name}={values[name]!r}", f"{name} "))]
    assert own[:1] != [], message
    assert message.endswith(remedy)


@pytest.mark.parametrize("sizes", [(-1, -1, 1), (-1, 1, 0)])
def test_one_axis_of_the_mesh_takes_the_rest_and_the_others_are_positive(
    sizes: tuple[int, ...],
) -> None:
    values = dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), sizes, strict=True))
    assert rejection(values) == f"mesh={sizes} must hold positive sizes, and -1 at most once"


@pytest.mark.parametrize(
    "values",
    [
        {"model.num_heads": 5, "model.d_k": 64, "model.d_v": 64},
        {"model.d_model": 9, "model.num_heads": 3, "model.position": "learned"},
        TEXT | {"data.train_weights": (0.5,), "data.test_src": "t.en", "data.test_tgt": "t.de"},
        {"data.rows_multiple": 24, "training.accumulation_steps": 3},
        {"training.translate_every": 1000, "checkpoints.best_metric": "bleu"},
        BEST | {"checkpoints.best_metric": "exact_match", "tokenizer.kind": "symbols"},
        {"training.steps": 5000, "training.cooldown_steps": 1000},
        {"training.r_drop": 5.0, "model.dropout": 0.0, "model.attention_dropout": 0.1},
        {"checkpoints.every": 500, "checkpoints.keep_best": 0},
        {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": -1},
        SPANS | ALONE | {"data.validation_tgt": "b.txt", "data.test_tgt": "c.txt"},
        SPANS | TABLE | {"data.tgt_column": "text"},
        SPANS | {"data.filters": ("duplicates", "overlap", "script")},
        SAMPLING | {"decoding.num_samples": 2, "decoding.temperature": 0.5, "decoding.top_k": 3},
    ],
    ids=str,
)
def test_followed_remedy_is_accepted(values: dict[str, Any]) -> None:
    override(Config(), values)


def test_all_problems_are_named_at_once() -> None:
    message = rejection({"model.d_model": 0, "model.norm": "batch", "seed": -1})
    names = [line.split("=")[0] for line in message.splitlines()]
    assert names == ["model.d_model", "model.norm", "seed"]


def test_table_has_every_objective_and_every_kind() -> None:
    assert KINDS.keys() == {*CHOICES["data.objective"]}
    assert {kind for kinds in KINDS.values() for kind in kinds} == {*CHOICES["model.kind"]}
    for objective, kinds in KINDS.items():
        for kind in kinds:
            changes = {"data.objective": objective, "model.kind": kind, "tokenizer.sentinels": 14}
            override(Config(), changes)


def test_registered_objective_trains_the_kinds_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mine:
        kinds = ("encoder_only",)

    registered: dict[tuple[str, str], Any] = {("data.objective", "mine"): Mine}
    registered |= {("data.objective", "plain"): lambda: None, ("model.kind", "own"): object}
    monkeypatch.setattr(variants, "_registered", registered)
    override(Config(), {"data.objective": "lm", "model.kind": "own"})
    override(Config(), {"data.objective": "plain", "model.kind": "decoder_only"})
    noise = {"data.noise_density": 0.3, "data.mean_span_length": 2.0}
    mine = override(Config(), {"data.objective": "mine", "model.kind": "encoder_only"} | noise)
    assert not noise.keys() & list_unused(mine).keys()
    with pytest.raises(ConfigError, match=r"data\.objective='mine' .* has no probability"):
        check_scores(mine)
    with pytest.raises(ConfigError, match=r"'mine' .* set model\.kind to encoder_only"):
        override(Config(), {"data.objective": "mine"})


def test_counts_are_those_of_t5() -> None:
    data = override(Config(), SPANS).data
    found = [count_noise(length, data) for length in (0, 1, 2, 20, 512)]
    assert found == [(0, 0), (1, 1), (1, 1), (3, 1), (77, 26)]


def test_language_model_has_all_relative_buckets_for_the_past() -> None:
    model = ModelConfig(kind="decoder_only", position="relative")
    config = Config(model=model, data=DataConfig(objective="lm"))
    with pytest.raises(ConfigError, match=r"model\.prefix=True .*; set model\.prefix=False$"):
        validate(config)
    model.prefix = False
    validate(config)
    validate(Config(model=dataclasses.replace(model, prefix=True)))  # pairs have a prefix


def test_factors_of_noam_and_rates_of_plugins_may_be_high(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = "training.schedule", "training.optimizer"
    monkeypatch.setattr(variants, "_registered", {(field, "own"): object for field in fields})
    override(Config(), {"training.learning_rate": 20.0})
    override(Config(), {"training.schedule": "constant", "training.learning_rate": 0.1})
    override(Config(), {"training.schedule": "own"})
    override(Config(), {"training.schedule": "constant", "training.optimizer": "own"})


@pytest.mark.parametrize(
    ("section", "field", "value", "cause", "other"),
    [
        ("model", "max_positions", 9, "model.position", "rotary"),
        ("model", "d_ff", 512, "model.feed_forward", "none"),
        ("model", "load_balance", 0.1, "model.feed_forward", "swiglu"),
        ("model", "feed_forward_dropout", 0.1, "model.feed_forward", "moe"),
        ("model", "num_layers", 3, "model.encoder_layers", 2),
        ("data", "sampled_sides", "src", "data.subword_sampling", 0.0),
        ("data", "tfds_name", "x", "data.source", "text+multi30k"),
        ("data", "noise_density", 0.3, "data.objective", "lm"),
        ("tokenizer", "shared", False, "tokenizer.path", "RUN/vocab"),
        ("decoding", "beam_size", 5, "decoding.strategy", "sampling"),
    ],
)
def test_changed_field_without_effect_is_refused(
    section: str, field: str, value: Any, cause: str, other: Any
) -> None:
    name, owner = f"{section}.{field}", cause.split(".")
    config = Config()
    config.model.decoder_layers = 2
    setattr(getattr(config, owner[0]), owner[1], other)
    check_effect([config], [name])  # at its default
    setattr(getattr(config, section), field, value)
    message = f"{name}={value!r} has no effect with {cause}={other!r}; leave it at "
    for given in ([], [name], [name, cause]):
        with pytest.raises(ConfigError, match=re.escape(message)):
            check_effect([config], given)
    check_effect([config], [cause])  # a flag that takes away the effect of a recipe's field
    # A registered source may use any field.
    data = DataConfig(source="a plugin's", directory="x", objective="lm", train_src=("x",))
    check_effect([Config(data=data)], ["data.directory", "data.train_src"])
    assert "data.train_src" not in list_unused(Config(data=data), refused=True)


def test_peak_of_noam_is_that_of_the_schedule() -> None:
    training = TrainingConfig(warmup_steps=40, learning_rate=0.5)
    peak = training.noam_peak(ModelConfig().d_model)
    schedule = make_schedule(training, ModelConfig().d_model)
    assert peak == pytest.approx(max(float(schedule(count)) for count in range(60)))
