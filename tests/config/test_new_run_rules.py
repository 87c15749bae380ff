"""Rules that hold for new runs only."""

import dataclasses
import re
from typing import Any

import pytest

from t2t.config.fields import Config, ConfigError, DataConfig, ModelConfig, TrainingConfig
from t2t.config.new_run_rules import check_effect, check_new_run
from t2t.config.rules import validate
from t2t.training.schedule import make_schedule


def test_factor_of_noam_is_no_peak_of_another_schedule() -> None:
    config = Config(training=TrainingConfig(schedule="cosine"))
    with pytest.raises(ConfigError, match=r"learning_rate=1 .*rise to 0.0007;.* to 0.0007$"):
        check_new_run(config)
    assert validate(config) is config  # so that such a run can still be opened


def test_new_language_model_has_all_relative_buckets_for_the_past() -> None:
    model = ModelConfig(kind="decoder_only", position="relative")
    config = Config(model=model, data=DataConfig(objective="lm"))
    with pytest.raises(ConfigError, match=r"model\.prefix=True .*; set model\.prefix=False$"):
        check_new_run(config)
    assert validate(config) is config  # so that such a run can still be opened
    model.prefix = False
    check_new_run(config)
    check_new_run(Config(model=dataclasses.replace(model, prefix=True)))  # pairs have a prefix


@pytest.mark.parametrize(
    "training",
    [
        TrainingConfig(),
        TrainingConfig(learning_rate=20.0),
        TrainingConfig(schedule="constant", learning_rate=0.1),
        TrainingConfig(schedule="a plugin's"),
        TrainingConfig(schedule="constant", optimizer="a plugin's"),
    ],
)
def test_factors_of_noam_and_rates_of_plugins_may_be_high(training: TrainingConfig) -> None:
    check_new_run(Config(training=training))


@pytest.mark.parametrize(
    ("section", "field", "value", "cause", "other"),
    [
        ("model", "max_positions", 9, "model.position", "rotary"),
        ("model", "d_ff", 512, "model.feed_forward", "none"),
        ("model", "num_experts", 4, "model.feed_forward", "relu"),
        ("model", "experts_per_token", 1, "model.feed_forward", "none"),
        ("model", "load_balance", 0.1, "model.feed_forward", "swiglu"),
        ("model", "feed_forward_dropout", 0.1, "model.feed_forward", "moe"),
        ("model", "norm_position", "pre", "model.norm", "none"),
        ("model", "num_layers", 3, "model.encoder_layers", 2),
        ("data", "num_shapes", 6, "data.packed_length", 256),
        ("data", "sampled_sides", "src", "data.subword_sampling", 0.0),
        ("data", "directory", "x", "data.source", "phrasebook"),
        ("data", "tfds_name", "x", "data.source", "text+multi30k"),
        ("data", "noise_density", 0.3, "data.objective", "lm"),
        ("data", "mean_span_length", 2.0, "data.objective", "masked_lm"),
        ("tokenizer", "byte_fallback", False, "tokenizer.kind", "symbols"),
        ("tokenizer", "vocab_size", 8000, "tokenizer.path", "RUN/vocab"),
        ("tokenizer", "shared", False, "tokenizer.path", "RUN/vocab"),
        ("decoding", "alpha", 1.0, "decoding.length_penalty", "none"),
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


def test_registered_source_may_use_any_field() -> None:
    check_effect([Config(data=DataConfig(source="a plugin's", directory="x"))], ["data.directory"])


def test_peak_of_noam_is_that_of_the_schedule() -> None:
    training = TrainingConfig(warmup_steps=40, learning_rate=0.5)
    peak = training.noam_peak(ModelConfig().d_model)
    schedule = make_schedule(training, ModelConfig().d_model)
    assert peak == pytest.approx(max(float(schedule(count)) for count in range(60)))
