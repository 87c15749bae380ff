"""The fields that have no effect beside some value of another field.

`rules.py` refuses some of them in every config, and `new_run_rules.py` all of them in a new run.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from t2t.config.fields import Config, flatten
from t2t.config.variants import CHOICES


class _Rule(NamedTuple):
    """Fields that have no effect if another field has a value."""

    cause: str  # the other field
    is_cause: Callable[[Any], bool]  # of its value
    fields: str  # with their section, if it is not that of the other field
    # The end of the message if every config that sets them is refused; "": only a new run.
    remedy: str = ""


def list_unused(config: Config) -> dict[str, str]:
    """Returns the fields that have no effect, each with the field that is the cause."""
    unused = {name: rule.cause for name, rule in _find_unused(flatten(config), _UNUSED)}
    if None not in (config.model.encoder_layers, config.model.decoder_layers):
        unused["model.num_layers"] = "model.encoder_layers"
    return unused


def unused_problems(values: dict[str, Any]) -> Iterator[str]:
    """Yields one line for each changed field that is refused in every config."""
    defaults = flatten(Config())
    for name, (cause, _, _, remedy) in _find_unused(values, _REFUSED):
        if values[name] != defaults[name]:
            end = remedy.format(default=defaults[name])
            yield f"{name}={values[name]!r} is not used by {cause}={values[cause]!r}; {end}"


def _find_unused(values: dict[str, Any], rules: tuple[_Rule, ...]) -> Iterator[tuple[str, _Rule]]:
    for rule in rules:
        section, _, _ = rule.cause.partition(".")
        if rule.is_cause(values[rule.cause]):
            fields = rule.fields.split()
            yield from ((each if "." in each else f"{section}.{each}", rule) for each in fields)


def _is(*known: str) -> Callable[[str], bool]:
    return lambda value: value in known


def _lacks(field: str, *names: str) -> Callable[[str], bool]:
    """Returns whether a value has none of these names; a registered variant may use any field."""
    return lambda value: {*value.split("+")} <= {*CHOICES[field]} - {*names}


_LEAVE = "leave it at {default!r}"
_REFUSED = (
    _Rule("model.kind", _is("transformer"), "rnn_cell prefix", _LEAVE),
    _Rule("model.kind", _is("decoder_only"), "rnn_cell encoder_layers", _LEAVE),
    _Rule(
        "model.kind",
        _is("encoder_only"),
        "rnn_cell decoder_layers prefix training.scheduled_sampling",
        _LEAVE,
    ),
    _Rule(
        "model.kind",
        _is("rnn"),
        "d_ff num_heads num_kv_heads d_k d_v attention attention_scale attention_bias position "
        "max_positions norm norm_epsilon norm_position embedding_norm feed_forward "
        "feed_forward_bias prefix attention_dropout feed_forward_dropout scan_layers num_experts "
        "experts_per_token load_balance",
        _LEAVE,
    ),
    _Rule(
        "model.kind",
        _is("rnn"),
        "data.packed_length",
        "it would carry its state between the sentences of a row; set data.packed_length=0",
    ),
    *(
        _Rule(
            "data.source",
            _lacks("data.source", source),
            fields,
            f"choose data.source={source!r}, or leave it empty",
        )
        for source, fields in {
            "text": "train_src train_tgt validation_src validation_tgt test_src test_tgt",
            "tfds": "tfds_held_out_name",
            "hf": "hf_name hf_files src_column tgt_column",
        }.items()
    ),
    _Rule(
        "data.objective",
        lambda value: value != "translation",
        "max_length_ratio directions training.bleu_every checkpoints.best_metric",
        f"it reads text alone; {_LEAVE}",
    ),
    _Rule(
        "tokenizer.kind",
        _is("symbols"),
        "data.subword_sampling",
        "a sentence has one segmentation; set it to 0",
    ),
    _Rule(
        "tokenizer.kind",
        _is("symbols"),
        "training.bleu_every",
        "BLEU counts words, and symbols are none; set it to 0",
    ),
    _Rule("data.directions", lambda value: value == (), "direction_tags", _LEAVE),
    _Rule(
        "training.optimizer",
        _is("adam", "muon"),
        "weight_decay",
        "leave it at 0, or use 'nadamw' or 'schedule_free_adamw'",
    ),
    _Rule(
        "decoding.strategy",
        _is("beam"),
        "num_samples temperature top_k top_p sampling_seed",
        f"{_LEAVE}, or set decoding.strategy='sampling'",
    ),
)
_UNUSED = (
    *_REFUSED,
    _Rule("model.position", _lacks("model.position", "learned"), "max_positions"),
    _Rule("model.norm", _is("none"), "norm_position"),
    _Rule("model.feed_forward", _is("none"), "d_ff"),
    _Rule("model.feed_forward", _is("none", "moe"), "feed_forward_dropout feed_forward_bias"),
    _Rule(
        "model.feed_forward",
        _lacks("model.feed_forward", "moe"),
        "num_experts experts_per_token load_balance",
    ),
    _Rule("data.source", _lacks("data.source", "multi30k", "tfds"), "directory"),
    _Rule("data.source", _lacks("data.source", "tfds"), "tfds_name"),
    _Rule("data.source", _lacks("data.source", "hf"), "hf_streaming"),
    _Rule(
        "data.objective",
        _lacks("data.objective", "span_corruption", "masked_lm"),
        "noise_density",
    ),
    _Rule("data.objective", _lacks("data.objective", "span_corruption"), "mean_span_length"),
    _Rule("data.packed_length", lambda value: value > 0, "num_shapes"),
    _Rule("data.subword_sampling", lambda value: value == 0, "sampled_sides"),
    _Rule("tokenizer.kind", _is("symbols"), "character_coverage byte_fallback"),
    _Rule(
        "tokenizer.path",
        lambda value: value != "",
        "kind vocab_size shared character_coverage byte_fallback lowercase sentinels",
    ),
    _Rule("decoding.length_penalty", _is("none"), "alpha"),
    _Rule("decoding.strategy", _is("sampling"), "beam_size"),
)
