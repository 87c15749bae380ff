"""Each rule of `validate` and its remedy."""

import dataclasses
import math
from typing import Any

import pytest

from t2t.config.fields import FIELD_TYPES, Config, ConfigError, ModelConfig, flatten
from t2t.config.rules import validate


def change(**sections: Any) -> Config:
    """Returns the defaults with some fields changed: change(model={"d_k": 1}, seed=2)."""
    config = Config()
    for section, value in sections.items():
        is_section = isinstance(value, dict)
        new = dataclasses.replace(getattr(config, section), **value) if is_section else value
        setattr(config, section, new)
    return config


def change_field(name: str, value: Any) -> Config:
    section, _, field = name.rpartition(".")
    return change(**{section: {field: value}} if section else {field: value})


def rejection(config: Config) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(config)
    return str(caught.value)


def test_defaults_are_valid() -> None:
    config = Config()
    assert validate(config) is config


NUMBERS = {
    name: value
    for name, value in flatten(Config()).items()
    if not isinstance(value, str | bool | tuple) and not name.startswith("mesh.")
}

_SHARES = ("dropout", "smoothing", "adam_b", "ema_decay")  # parts of the names of probabilities


@pytest.mark.parametrize("name", [name for name, kind in FIELD_TYPES.items() if kind.names])
def test_unknown_choice_is_rejected_with_the_known_ones(name: str) -> None:
    message = rejection(change_field(name, "sine"))
    assert message.startswith(f"{name}='sine' is unknown; use one of ")
    assert flatten(Config())[name] in message.split("use one of ")[1].split(", ")


def test_numbers_without_meaning_are_rejected() -> None:
    """Rejects negative numbers in each field, NaN, and probabilities of 1 or more."""
    for name, default in NUMBERS.items():
        of_floats = [math.nan] if isinstance(default, float) else []
        of_shares = [1.5] if any(part in name for part in _SHARES) else []
        for value in (-1, *of_floats, *of_shares):
            assert f"{name}={value} must " in rejection(change_field(name, value))


@pytest.mark.parametrize(
    "name", ["model.d_model", "model.d_k", "training.steps", "data.num_shapes"]
)
def test_zero_is_rejected_where_something_is_counted(name: str) -> None:
    assert f"{name}=0 must be positive" in rejection(change_field(name, 0))


TEXT = {"source": "text", "train_src": ("a.en",), "train_tgt": ("a.de",)}
TWO = TEXT | {"source": "phrasebook+text"}

COMBINATIONS = {
    "scheduled sampling needs target inputs": (
        {"model": {"kind": "encoder_only"}, "data": {"objective": "masked_lm"}}
        | {"tokenizer": {"sentinels": 1}, "training": {"scheduled_sampling": 0.5}},
        "training.scheduled_sampling=0.5 replaces target inputs, which model.kind='encoder_only' "
        "does not have; leave it at 0.0",
    ),
    "scheduled sampling has passes of its own": (
        {"training": {"scheduled_sampling": 0.5, "r_drop": 5.0}},
        "training.scheduled_sampling=0.5 does not go with training.r_drop=5.0, which has two "
        "passes of its own; set one of them to 0",
    ),
    "a token has different experts": (
        {"model": {"feed_forward": "moe", "experts_per_token": 9}},
        "model.experts_per_token=9 is more than model.num_experts=8; use 8 or less",
    ),
    "num_heads divides d_model": (
        {"model": {"num_heads": 5}},
        "model.num_heads=5 does not divide model.d_model=512; use one of 1, 2, 4, 8, "
        "or set model.d_k and model.d_v",
    ),
    "num_kv_heads divides num_heads": (
        {"model": {"num_kv_heads": 3}},
        "model.num_kv_heads=3 does not divide model.num_heads=8; use one of 1, 2, 4, 8",
    ),
    "sinusoids come in pairs": (
        {"model": {"d_model": 9, "num_heads": 3}},
        "model.d_model=9 is odd, but sinusoidal positions pair a sine with a cosine; "
        "use an even width or another model.position",
    ),
    "fairseq's sinusoids have two rates": (
        {"model": {"d_model": 2, "num_heads": 1, "position": "sinusoidal_fairseq"}},
        "model.d_model=2 must be 4 or more with model.position='sinusoidal_fairseq'; "
        "use a wider model, or 'sinusoidal'",
    ),
    "tags are of directions": (
        {"data": {"direction_tags": "both"}},
        "data.direction_tags='both' is not used without data.directions; leave it at 'target'",
    ),
    "rotations come in pairs": (
        {"model": {"position": "rotary", "d_k": 5}},
        "model.d_k=5 is odd, but rotary positions rotate pairs of dimensions; "
        "use an even model.d_k or another model.position",
    ),
    "the two ways of a recurrent encoder are equally wide": (
        {"model": {"kind": "rnn", "d_model": 9}},
        "model.d_model=9 is odd, but each direction of the recurrent encoder is half as wide; "
        "use an even width",
    ),
    "a recurrent model has no heads": (
        {"model": {"kind": "rnn", "num_heads": 4}},
        "model.num_heads=4 is not used by model.kind='rnn'; leave it at 8",
    ),
    "a Transformer has no cells": (
        {"model": {"rnn_cell": "lstm"}},
        "model.rnn_cell='lstm' is not used by model.kind='transformer'; leave it at 'gru'",
    ),
    "SentencePiece covers nearly all characters": (
        {"tokenizer": {"character_coverage": 0.95}},
        "tokenizer.character_coverage=0.95 must lie in [0.98, 1], "
        "the shares of characters that SentencePiece can cover",
    ),
    "factors on the rate are positive": (
        {"training": {"rate_factors": ("encoder.*=0",)}},
        "training.rate_factors has 'encoder.*=0'; write PATTERN=FACTOR with a positive factor, "
        "such as encoder.*=0.1, and use training.frozen for parameters without updates",
    ),
    "factors on the rate have a pattern": (
        {"training": {"rate_factors": ("0.1",)}},
        "training.rate_factors has '0.1'; write PATTERN=FACTOR with a positive factor, "
        "such as encoder.*=0.1, and use training.frozen for parameters without updates",
    ),
    "a pattern has one factor": (
        {"training": {"rate_factors": ("a=1", "a=2")}},
        "training.rate_factors=('a=1', 'a=2') names a pattern twice; name each once",
    ),
    "text needs training files": (
        {"data": {"source": "text"}},
        "data.train_src has 0 files and data.train_tgt 0; "
        "data.source='text' needs equally many, at least one",
    ),
    "files need the source that reads them": (
        {"data": {"source": "multi30k", "train_src": ("a.en",)}},
        "data.train_src=('a.en',) is not used by data.source='multi30k'; "
        "choose data.source='text', or leave it empty",
    ),
    "columns are found by languages": (
        {"data": {"source": "hf", "hf_files": ("train=a.tsv",), "src_language": "en"}},
        "data.src_language='en' and data.tgt_language='': data.source='hf' finds its columns by "
        "them; set both, or data.src_column and data.tgt_column",
    ),
    "a misspelt split is no training split": (
        {
            "data": {
                "source": "hf",
                "hf_files": ("trian=a.tsv",),
                "src_column": "0",
                "tgt_column": "1",
            }
        },
        "data.hf_files has files for trian only; name the training files as train=FILE",
    ),
    "Muon does not know the matrices of a recurrent model": (
        {"model": {"kind": "rnn"}, "training": {"optimizer": "muon"}},
        "training.optimizer='muon' needs model.kind='transformer'; use 'adam'",
    ),
    "Adam has no weight decay": (
        {"training": {"weight_decay": 0.1}},
        "training.weight_decay=0.1 is not used by training.optimizer='adam'; "
        "leave it at 0, or use 'nadamw' or 'schedule_free_adamw'",
    ),
    "gradients depend on Schedule-Free's average": (
        {"training": {"optimizer": "schedule_free_adamw", "adam_b1": 0.0}},
        "training.adam_b1=0.0 would compute gradients without the average that "
        "training.optimizer='schedule_free_adamw' evaluates; use a value above 0, such as 0.9",
    ),
    "only TFDS has another dataset for held-out splits": (
        {"data": {"tfds_held_out_name": "wmt14_translate/de-en"}},
        "data.tfds_held_out_name='wmt14_translate/de-en' is not used by data.source='phrasebook'; "
        "choose data.source='tfds', or leave it empty",
    ),
    "files come in pairs": (
        {"data": TEXT | {"train_tgt": ("a.de", "b.de")}},
        "data.train_src has 1 files and data.train_tgt 2; "
        "data.source='text' needs equally many, at least one",
    ),
    "one weight for each file": (
        {"data": TEXT | {"train_weights": (1.0, 2.0)}},
        "data.train_weights has 2 values for 1 corpora; give one for each, or none",
    ),
    "weights are finite": (
        {"data": TEXT | {"train_weights": (float("nan"),)}},
        "data.train_weights=(nan,) must all be positive and finite; to skip a corpus, remove it",
    ),
    "validation files come in pairs": (
        {"data": TEXT | {"validation_src": "v.en"}},
        "data.validation_src='v.en' and data.validation_tgt='' go together; give both",
    ),
    "test files come in pairs": (
        {"data": TEXT | {"test_tgt": "t.de"}},
        "data.test_src='' and data.test_tgt='t.de' go together; give both",
    ),
    "max_length fits length_multiple": (
        {"data": {"max_length": 100, "length_multiple": 8}},
        "data.max_length=100 is no multiple of data.length_multiple=8; raise it to 104",
    ),
    "batch holds its longest rows": (
        {"data": {"batch_tokens": 2000}},
        "data.batch_tokens=2000 cannot hold data.rows_multiple=8 rows of data.max_length=256; "
        "raise it to 2048, or lower one of the others",
    ),
    "batch holds its packed rows": (
        {"data": {"batch_tokens": 2500, "packed_length": 512}},
        "data.batch_tokens=2500 cannot hold data.rows_multiple=8 rows of data.packed_length=512; "
        "raise it to 4096, or lower one of the others",
    ),
    "packed rows hold the longest pairs": (
        {"data": {"packed_length": 128}},
        "data.packed_length=128 cannot hold pairs of data.max_length=256; "
        "raise it to that value, or lower data.max_length",
    ),
    "one weight for each corpus of all sources": (
        {"data": TEXT | {"source": "phrasebook+text+multi30k", "train_weights": (1.0, 2.0)}},
        "data.train_weights has 2 values for 3 corpora; give one for each, or none",
    ),
    "weights or a temperature": (
        {"data": TEXT | {"train_weights": (2.0,), "temperature": 5.0}},
        "data.train_weights=(2.0,) and data.temperature=5.0 both say how often an epoch uses a "
        "corpus; give one of them",
    ),
    "weights or stages": (
        {"data": TEXT | {"train_weights": (2.0,), "stages": ("2",)}},
        "data.train_weights=(2.0,) and data.stages=('2',) both say how often an epoch uses a "
        "corpus; give one of them\ndata.stages=('2',) has weights of several corpora, but "
        "data.source='text' is one; add another, or leave it empty",
    ),
    "stages have numbers": (
        {"data": TWO | {"stages": ("20: text=1", "1,1")}},
        "data.stages has '20: text=1' as number 1 of 2; write each as STEP: WEIGHTS, such as "
        "'2000: 1,0.5', but the last one as WEIGHTS alone",
    ),
    "a stage has an end unless it is the last": (
        {"data": TWO | {"stages": ("20: 1,1", "1,0", "1,1")}},
        "data.stages has '1,0' as number 2 of 3; write each as STEP: WEIGHTS, such as "
        "'2000: 1,0.5', but the last one as WEIGHTS alone",
    ),
    "the last stage has no end": (
        {"data": TWO | {"stages": ("20: 1,1", "40: 1,0")}},
        "data.stages has '40: 1,0' as number 2 of 2; write each as STEP: WEIGHTS, such as "
        "'2000: 1,0.5', but the last one as WEIGHTS alone",
    ),
    "stages follow each other": (
        {"data": TWO | {"stages": ("20: 1,1", "20: 1,0", "1,1")}},
        "data.stages has '20: 1,0' after step 20; let each stage end later than the one before",
    ),
    "a stage reads something": (
        {"data": TWO | {"stages": ("20: 0,0", "1,1")}},
        "data.stages has '20: 0,0', whose weights must be finite and not negative, and one of "
        "them positive; 0 leaves a corpus out",
    ),
    "weights of a stage are finite": (
        {"data": TWO | {"stages": ("inf,1",)}},
        "data.stages has 'inf,1', whose weights must be finite and not negative, and one of them "
        "positive; 0 leaves a corpus out",
    ),
    "a stage has a weight for each corpus": (
        {"data": TWO | {"stages": ("20: 1,1", "1,1,1")}},
        "data.stages has '1,1,1' with 3 weights for 2 corpora; give one for each, 0 to leave it "
        "out",
    ),
    "each source is known": (
        {"data": {"source": "multi30k+wmt"}},
        "data.source='wmt' is unknown; use one of phrasebook, multi30k, tfds, hf, text, or name "
        "the module that registers it in plugins",
    ),
    "sources differ": (
        {"data": TEXT | {"source": "text+text"}},
        "data.source='text+text' names a source twice; name each once",
    ),
    "recurrence is not packed": (
        {"model": {"kind": "rnn"}, "data": {"packed_length": 256}},
        "data.packed_length=256 puts several sentences into a row, but "
        "model.kind='rnn' would carry its state between them; set data.packed_length=0",
    ),
    "tied embeddings share a vocabulary": (
        {"tokenizer": {"shared": False}},
        "model.tie_embeddings='all' needs one vocabulary, but tokenizer.shared=False; "
        "set tokenizer.shared=True or model.tie_embeddings='decoder'",
    ),
    "learned positions reach through a packed row": (
        {"model": {"position": "learned"}, "data": {"packed_length": 2048}},
        "model.max_positions=1024 is less than data.packed_length=2048; raise it to 2048 or more",
    ),
    "position table holds max_length": (
        {"model": {"position": "learned", "max_positions": 100}},
        "model.max_positions=100 is less than data.max_length=256; raise it to 256 or more",
    ),
    "rows split evenly": (
        {"training": {"accumulation_steps": 3}},
        "training.accumulation_steps=3 does not divide data.rows_multiple=8; "
        "raise data.rows_multiple to 24",
    ),
    "BLEU is measured at validations": (
        {"training": {"bleu_every": 1500}},
        "training.bleu_every=1500 must be a multiple of training.validate_every=1000, or 0",
    ),
    "best checkpoint by BLEU is measured": (
        {"checkpoints": {"best_metric": "bleu"}},
        "checkpoints.every=1000 must be a multiple of training.bleu_every=0, so that "
        "checkpoints.keep_best has a bleu for each checkpoint; "
        "change one of them, or set checkpoints.keep_best=0",
    ),
    "best checkpoint by loss is measured": (
        {"checkpoints": {"every": 500}},
        "checkpoints.every=500 must be a multiple of training.validate_every=1000, so that "
        "checkpoints.keep_best has a loss for each checkpoint; "
        "change one of them, or set checkpoints.keep_best=0",
    ),
    "a cosine ends at 0 by itself": (
        {"training": {"schedule": "cosine", "cooldown_steps": 10}},
        "training.cooldown_steps=10 is not used by training.schedule='cosine', which decides "
        "itself how it ends; leave it at 0, or use one of noam, inverse_sqrt, constant",
    ),
    "cooldown begins after the warm-up": (
        {"training": {"steps": 5000, "cooldown_steps": 1001}},
        "training.cooldown_steps=1001 is more than the 1000 steps that training.warmup_steps=4000 "
        "leaves of the 5000 steps of the schedule; lower it to 1000 or less",
    ),
    "schedule starts before the end": (
        {"training": {"steps": 10, "schedule_start": 10}},
        "training.schedule_start=10 must be less than training.steps=10; leave it at 0, or use "
        "--extend of t2t.train, which sets both",
    ),
    "cooldown of an extension begins after its warm-up": (
        {"training": {"schedule_start": 95_000, "cooldown_steps": 1001}},
        "training.cooldown_steps=1001 is more than the 1000 steps that training.warmup_steps=4000 "
        "leaves of the 5000 steps of the schedule; lower it to 1000 or less",
    ),
    "R-Drop compares masks of dropout": (
        {"training": {"r_drop": 5.0}, "model": {"dropout": 0.0}},
        "training.r_drop=5.0 compares two passes with different dropout masks, but all dropout "
        "rates of the model are 0; set model.dropout, or training.r_drop=0",
    ),
    "one mesh axis takes the rest": (
        {"mesh": {"fsdp": -1}},
        "mesh=(-1, -1, 1) must hold positive sizes, and -1 at most once",
    ),
    "mesh sizes are positive": (
        {"mesh": {"tensor": 0}},
        "mesh=(-1, 1, 0) must hold positive sizes, and -1 at most once",
    ),
}


@pytest.mark.parametrize(("changes", "message"), COMBINATIONS.values(), ids=COMBINATIONS)
def test_bad_combination_is_rejected_with_a_remedy(changes: dict[str, Any], message: str) -> None:
    assert rejection(change(**changes)) == message


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"num_heads": 5, "d_k": 64, "d_v": 64}},
        {"model": {"num_heads": 1}},
        {"model": {"num_kv_heads": 1}},
        {"model": {"d_model": 9, "num_heads": 3, "position": "learned"}},
        {"model": {"kind": "rnn", "rnn_cell": "lstm", "d_model": 10, "residual": False}},
        {"data": TEXT | {"train_weights": (0.5,), "test_src": "t.en", "test_tgt": "t.de"}},
        {"tokenizer": {"shared": False}, "model": {"tie_embeddings": "decoder"}},
        {"data": {"rows_multiple": 24}, "training": {"accumulation_steps": 3}},
        {"training": {"bleu_every": 1000}, "checkpoints": {"best_metric": "bleu"}},
        {"training": {"steps": 5000, "cooldown_steps": 1000}},
        {"training": {"r_drop": 5.0}, "model": {"dropout": 0.0, "attention_dropout": 0.1}},
        {"checkpoints": {"every": 500, "keep_best": 0}},
        {"mesh": {"data": 2, "fsdp": 2, "tensor": -1}},
    ],
    ids=str,
)
def test_followed_remedy_is_accepted(changes: dict[str, Any]) -> None:
    validate(change(**changes))


def test_fields_that_a_kind_does_not_use_are_rejected() -> None:
    """Checks every field of ModelConfig: it is either listed here or used by both kinds."""
    changes = {
        "d_ff": 4, "num_heads": 4, "num_kv_heads": 4, "d_k": 4, "d_v": 4, "attention_scale": False,
        "position": "none", "max_positions": 4, "norm": "rms",
        "norm_position": "pre", "embedding_norm": True, "feed_forward": "gelu",
        "attention_dropout": 0.5, "feed_forward_dropout": 0.5, "scan_layers": True,
        "attention_bias": True, "norm_epsilon": 1e-5, "feed_forward_bias": False, "num_experts": 4,
        "experts_per_token": 1, "load_balance": 0.5, "prefix": False,
    }  # fmt: skip
    shared = """
        kind num_layers encoder_layers decoder_layers d_model residual tie_embeddings output_bias
        embedding_scale decoder_start dropout attention dtype kernels rnn_cell
    """.split()
    assert vars(ModelConfig()).keys() == {*changes, *shared}
    foreign_fields: dict[str, dict[str, Any]] = {
        "rnn": changes,
        "transformer": {"rnn_cell": "lstm", "prefix": False},
        "decoder_only": {"rnn_cell": "lstm", "encoder_layers": 2},
        "encoder_only": {"rnn_cell": "lstm", "decoder_layers": 2, "prefix": False},
    }
    for kind, foreign in foreign_fields.items():
        for name, value in foreign.items():
            message = rejection(change(model={"kind": kind, name: value}))
            assert message.startswith(f"model.{name}={value!r} is not used by model.kind={kind!r}")


def test_all_problems_are_named_at_once() -> None:
    message = rejection(change(model={"d_model": 0, "norm": "batch"}, seed=-1))
    names = [line.split("=")[0] for line in message.splitlines()]
    assert names == ["model.d_model", "model.norm", "seed"]


def test_fields_of_sampling_are_rejected_in_beam_search_and_those_without_meaning_always() -> None:
    for name, value in {"num_samples": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.5}.items():
        assert rejection(change(decoding={name: value})) == (
            f"decoding.{name}={value} is not used by decoding.strategy='beam'; leave it at "
            f"{flatten(Config())[f'decoding.{name}']}, or set decoding.strategy='sampling'"
        )
        validate(change(decoding={"strategy": "sampling", name: value}))
    for top_p in (0.0, 1.5, math.nan):
        message = rejection(change(decoding={"strategy": "sampling", "top_p": top_p}))
        assert message.startswith(f"decoding.top_p={top_p} must lie in (0, 1]: with 0")
    for strategy, field in (("beam", "beam_size"), ("sampling", "num_samples")):
        message = rejection(change(decoding={"strategy": strategy, "mbr": "chrf", field: 1}))
        assert message.endswith(f"several candidates, but decoding.{field} is 1; raise it")
    message = rejection(change(decoding={"min_length": 60}))
    assert message.endswith("raise decoding.max_extra_length to 60 or more")
    limited = {"position": "learned", "max_positions": 512}
    message = rejection(
        change(model=limited, decoding={"min_length": 512, "max_extra_length": 600})
    )
    assert message.endswith("is less than decoding.min_length + EOS=513; raise it to 513 or more")
    message = rejection(change(model=limited, decoding={"max_source_length": 513}))
    assert message.endswith("is less than decoding.max_source_length=513; raise it to 513 or more")
    assert "no room for a sub-word" in rejection(change(decoding={"max_source_length": 2}))
    message = rejection(change(decoding={"strategy": "sampling", "sampling_seed": 2**31}))
    assert message == f"decoding.sampling_seed={2**31} must be below 2**31"
    assert rejection(change(seed=2**31)) == f"seed={2**31} must be below 2**31"
