"""The notes at the fields say what a table of all rules said before."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from t2t.config.fields import Config, DecodingConfig, flatten
from t2t.config.unused_fields import list_unused, unused_problems
from t2t.config.variants import CHOICES


class _Rule(NamedTuple):
    """Fields that have no effect if another field has a value."""

    cause: str  # the other field
    is_cause: Callable[[Any], bool]  # of its value
    fields: str  # their names, separated by spaces
    # The end of the message of `unused_problems`; "": only a new run and a request are refused.
    remedy: str = ""
    holds: Callable[[Mapping[str, Any]], bool] = lambda values: True  # of all values of a config


def _list_acting(rules: Sequence[_Rule], values: Mapping[str, Any]) -> Iterator[tuple[str, _Rule]]:
    """Yields each field without effect, with its rule."""
    for rule in rules:
        if rule.is_cause(values[rule.cause]) and rule.holds(values):
            yield from ((name, rule) for name in rule.fields.split())


def _is(*known: str) -> Callable[[str], bool]:
    """Returns a function that says whether a value is one of these."""
    return lambda value: value in known


def _lacks(field: str, *names: str) -> Callable[[str], bool]:
    """Returns a function that says whether a value has none of these names.

    A registered variant may use any field.
    """
    return lambda value: {*value.split("+")} <= {*CHOICES[field]} - {*names}


def _is_given(value: object) -> bool:
    return value is not None


_LEAVE = "leave it at {default!r}"
_REFUSED = (
    _Rule("model.kind", _is("transformer"), "model.rnn_cell model.prefix", _LEAVE),
    _Rule("model.kind", _is("decoder_only"), "model.rnn_cell model.encoder_layers", _LEAVE),
    _Rule(
        "model.kind",
        _is("encoder_only"),
        "model.rnn_cell model.decoder_layers model.prefix training.scheduled_sampling",
        _LEAVE,
    ),
    _Rule(
        "model.kind",
        _is("rnn"),
        "model.d_ff model.num_heads model.num_kv_heads model.d_k model.d_v model.attention "
        "model.attention_scale model.attention_bias model.position model.max_positions "
        "model.norm model.norm_epsilon model.norm_position model.embedding_norm "
        "model.feed_forward model.feed_forward_bias model.prefix model.attention_dropout "
        "model.feed_forward_dropout model.scan_layers model.num_experts "
        "model.experts_per_token model.load_balance",
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
            "text": "data.train_src data.train_tgt data.validation_src data.validation_tgt "
            "data.test_src data.test_tgt",
            "tfds": "data.tfds_held_out_name",
            "hf": "data.hf_name data.hf_files data.src_column data.tgt_column",
        }.items()
    ),
    _Rule(
        "data.objective",
        lambda value: value != "translation",
        "data.max_length_ratio data.directions training.bleu_every checkpoints.best_metric",
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
    _Rule("data.directions", lambda value: value == (), "data.direction_tags", _LEAVE),
    _Rule(
        "training.optimizer",
        _is("adam", "muon"),
        "training.weight_decay",
        "leave it at 0, or use 'nadamw' or 'schedule_free_adamw'",
    ),
    _Rule(
        "decoding.strategy",
        _is("beam"),
        "decoding.num_samples decoding.temperature decoding.top_k decoding.top_p "
        "decoding.sampling_seed",
        f"{_LEAVE}, or set decoding.strategy='sampling'",
    ),
)
_UNUSED = (
    *_REFUSED,
    _Rule("model.position", _lacks("model.position", "learned"), "model.max_positions"),
    _Rule(
        "model.decoder_layers",
        _is_given,
        "model.num_layers",
        holds=lambda values: values["model.kind"] == "decoder_only",
    ),
    _Rule(
        "model.encoder_layers",
        _is_given,
        "model.num_layers",
        holds=lambda values: (
            values["model.kind"] == "encoder_only" or values["model.decoder_layers"] is not None
        ),
    ),
    _Rule("model.kind", _is("encoder_only"), "model.decoder_start"),
    _Rule("model.norm", _is("none"), "model.norm_position model.norm_epsilon model.embedding_norm"),
    _Rule("model.feed_forward", _is("none"), "model.d_ff"),
    _Rule(
        "model.feed_forward",
        _is("none", "moe"),
        "model.feed_forward_dropout model.feed_forward_bias",
    ),
    _Rule(
        "model.feed_forward",
        _lacks("model.feed_forward", "moe"),
        "model.num_experts model.experts_per_token model.load_balance",
    ),
    _Rule("data.source", _lacks("data.source", "multi30k", "tfds"), "data.directory"),
    _Rule("data.source", _lacks("data.source", "tfds"), "data.tfds_name"),
    _Rule("data.source", _lacks("data.source", "hf"), "data.hf_streaming"),
    _Rule("data.hf_files", lambda value: value != (), "data.hf_streaming"),
    _Rule(
        "data.objective",
        _lacks("data.objective", "span_corruption", "masked_lm"),
        "data.noise_density",
    ),
    _Rule("data.objective", _lacks("data.objective", "span_corruption"), "data.mean_span_length"),
    _Rule("data.subword_sampling", lambda value: value == 0, "data.sampled_sides"),
    _Rule("tokenizer.kind", _is("symbols"), "tokenizer.character_coverage tokenizer.byte_fallback"),
    _Rule(
        "tokenizer.path",
        lambda value: value != "",
        "tokenizer.kind tokenizer.vocab_size tokenizer.shared tokenizer.character_coverage "
        "tokenizer.byte_fallback tokenizer.lowercase tokenizer.sentinels",
    ),
    _Rule("decoding.length_penalty", _is("none"), "decoding.alpha"),
    _Rule("data.objective", _is("lm"), "decoding.max_source_length decoding.split_sentences"),
    _Rule(  # whose masks are filled without a search
        "data.objective",
        _is("masked_lm"),
        " ".join(
            f"decoding.{each.name}"
            for each in dataclasses.fields(DecodingConfig)
            if each.name != "batch_size"
        ),
    ),
    _Rule(
        "decoding.strategy",
        _is("sampling"),
        "decoding.beam_size decoding.alpha decoding.length_penalty",
    ),
)

_VALUES: dict[str, list[Any]] = {
    "model.kind": [*CHOICES["model.kind"], "mine"],
    "model.encoder_layers": [None, 2],
    "model.decoder_layers": [None, 2],
    "model.norm": ["layer", "none", "mine"],
    "model.feed_forward": ["relu", "none", "moe", "mine"],
    "model.position": ["rotary", "learned", "mine"],
    "data.objective": [*CHOICES["data.objective"], "mine"],
    "data.source": [
        *CHOICES["data.source"], "mine", "multi30k+text", "text+mine", "hf+tfds", "phrasebook+mine"
    ],
    "data.hf_files": [(), ("train=a.tsv",)],
    "data.directions": [(), ("en-de",)],
    "data.subword_sampling": [0.0, 0.1],
    "tokenizer.kind": [*CHOICES["tokenizer.kind"]],
    "tokenizer.path": ["", "RUN/vocab"],
    "training.optimizer": [*CHOICES["training.optimizer"], "mine"],
    "decoding.strategy": ["beam", "sampling"],
    "decoding.length_penalty": ["gnmt", "none"],
}  # fmt: skip
# Groups of causes that share fields: all combinations of their values.
_GROUPS = [
    "model.kind model.encoder_layers model.decoder_layers model.norm model.feed_forward "
    "model.position",
    "model.kind data.objective tokenizer.kind tokenizer.path decoding.strategy "
    "decoding.length_penalty data.directions",
    "data.source data.hf_files data.objective data.subword_sampling tokenizer.kind",
    "training.optimizer model.kind data.source",
]


def _change(value: Any) -> Any:
    """Returns another value."""
    return not value if isinstance(value, bool) else (value, "changed")


def test_notes_say_what_the_table_said() -> None:
    """Beside the cause that the notes name, that of the table may have no effect itself."""
    assert {rule.cause for rule in _UNUSED} == _VALUES.keys()
    for group in _GROUPS:
        for chosen in product(*(_VALUES[name] for name in group.split())):
            config = Config()
            for name, value in zip(group.split(), chosen, strict=True):
                section, field = name.split(".")
                setattr(getattr(config, section), field, value)
            values = flatten(config)
            for refused, rules in ((True, _REFUSED), (False, _UNUSED)):
                before = {name: rule.cause for name, rule in _list_acting(rules, values)}
                now = list_unused(config, refused=refused)
                assert now.keys() == before.keys()
                for name in now:
                    assert now[name] == before[name] or before[name] in now
            causes = {rule.cause for rule in _UNUSED}
            changed = {
                name: value if name in causes else _change(value) for name, value in values.items()
            }
            defaults = flatten(Config())
            lines = [
                f"{name}={changed[name]!r} is not used by {rule.cause}={changed[rule.cause]!r}; "
                + rule.remedy.format(default=defaults[name])
                for name, rule in _list_acting(_REFUSED, changed)
                if changed[name] != defaults[name]
            ]
            assert sorted(unused_problems(changed)) == sorted(lines)
