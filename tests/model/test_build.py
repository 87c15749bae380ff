import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import Config, ConfigError, DataConfig, ModelConfig, TokenizerConfig
from t2t.config.rules import list_unused, validate
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID, DeviceBatch
from t2t.model.parameters import Params, merge
from t2t.ops.build_model import init_model
from tests import reference, reference_rnn
from tests.model.small_models import (
    COMBINED,
    SIZES,
    SMALL,
    SRC,
    TGT_IN,
    TGT_OUT,
    VARIANTS,
    VOCAB_SIZE,
    Structure,
    draw_model,
    draw_params,
    vary,
)

Logits: TypeAlias = Float[Array, "B T V"]

TRANSFORM = {
    "transformer": reference.transform,
    "decoder_only": reference.transform_decoder_only,
    "rnn": reference_rnn.transform,
}


def alone(*variants: Any) -> list[Any]:
    """Variants that differ from the paper in one way: in the slow tests, since they are many."""
    return [pytest.param(each, marks=pytest.mark.slow) for each in variants]


# The ways in which a model knows the order of words.
ORDERS = [name for name, changes in COMBINED.items() if {"position", "kind"} & changes.keys()]

# One shape of batches serves most tests, and sources and targets have the same shape.
ROWS, LENGTH = 24, 8
NO_GRADIENT = np.zeros((ROWS, LENGTH, VOCAB_SIZE), np.float32)


def widen(ids: Any) -> Int[np.ndarray, "B T"]:
    rows, length = np.shape(ids)
    return np.pad(ids, ((0, ROWS - rows), (0, LENGTH - length)), constant_values=PAD_ID)


@functools.cache
def compile_model(structure: Structure) -> Callable[..., tuple[Logits, Params]]:
    """Logits of the common shape, and the parameters' gradients for gradients of the logits."""

    @jax.jit
    def run(
        params: Params,
        src: Int[Array, "B S"],
        tgt_in: Int[Array, "B T"],
        gradient: Logits,
        key: jax.Array | None = None,
    ) -> tuple[Logits, Params]:
        def forward(params: Params) -> Logits:
            return merge(structure, params)(src, tgt_in, key)

        logits, pull_back = jax.vjp(forward, params)
        return logits, *pull_back(gradient)

    return run


def run_model(
    structure: Structure, params: Params, src: Any, tgt_in: Any, key: jax.Array | None = None
) -> Float[np.ndarray, "B T V"]:
    run = compile_model(structure)
    logits, _ = run(params, widen(src), widen(tgt_in), NO_GRADIENT, key)
    return np.asarray(logits)[: len(tgt_in), : np.shape(tgt_in)[1]]


def pull_back(
    structure: Structure, params: Params, gradient: Float[Array | np.ndarray, "B T V"]
) -> Params:
    """The parameters' gradients for those of the small batch's logits."""
    rows, length, _ = gradient.shape
    wide = NO_GRADIENT.copy()
    wide[:rows, :length] = gradient
    return compile_model(structure)(params, widen(SRC), widen(TGT_IN), wide)[1]


class Outcome(NamedTuple):
    loss: float
    logits: Float[np.ndarray, "B T V"]
    gradients: Params


@jax.value_and_grad
def measure_loss(logits: Logits) -> Float[Array, ""]:
    """Cross-entropy per token of the small batch."""
    real = TGT_OUT != PAD_ID
    own = jnp.take_along_axis(jax.nn.log_softmax(logits), TGT_OUT[..., None], axis=-1)[..., 0]
    return -jnp.sum(own * real) / jnp.sum(real)


@functools.cache
def run(name: str) -> Outcome:
    drawn = draw_model(name)
    logits = run_model(*drawn, SRC, TGT_IN)
    loss, gradient = measure_loss(logits)
    return Outcome(float(loss), logits, pull_back(*drawn, gradient))


def run_again_with_dropout(name: str, seed: int) -> Float[np.ndarray, "B T V"]:
    return run_model(*draw_model(name), SRC, TGT_IN, jax.random.key(seed))


run_with_dropout = functools.cache(run_again_with_dropout)


@pytest.mark.parametrize(
    "name", [*COMBINED, *alone(*(name for name in VARIANTS if vary(name).dtype == "float32"))]
)
def test_variant_agrees_with_naive_numpy(name: str) -> None:
    parameters = jax.tree.map(lambda x: np.asarray(x, float), draw_model(name)[1])
    for row, *padded in zip(run(name).logits, SRC.tolist(), TGT_IN.tolist(), strict=True):
        src, tgt_in = ([token for token in ids if token != PAD_ID] for ids in padded)
        wanted = TRANSFORM[vary(name).kind](parameters, vary(name), src, tgt_in)
        near = max(1e-4, 5e-6 * np.abs(wanted).max())
        np.testing.assert_allclose(row[: len(tgt_in)], wanted, atol=near)


def test_every_field_of_the_config_has_a_variant() -> None:
    varied = {field for changes in VARIANTS.values() for field in changes}
    same = {"kernels", "attention"}  # the same numbers: test_twins.py; see test_variants.py
    apart = {"decoder_start"}  # test_decoder_may_start_with_another_embedding
    apart |= {"own_tables"}  # of runs with several stacks: tests/training/test_sharing.py
    assert varied | same | apart == {field.name for field in dataclasses.fields(ModelConfig)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "paper"])
def test_every_variant_is_another_model(name: str) -> None:
    """In its parameters' shapes, or in its outputs: under dropout, where it is about that."""
    shapes, paper_shapes = (jax.tree.map(jnp.shape, draw_model(x)[1]) for x in (name, "paper"))
    if shapes == paper_shapes:
        drops = any("dropout" in field for field in VARIANTS[name])
        found, paper = (run_with_dropout(x, 0) if drops else run(x).logits for x in (name, "paper"))
        assert float(np.abs(found - paper).max()) > 1e-3


# One other value of each field, except of those that change how numbers are computed.
CHANGES = {field: value for each in reversed(VARIANTS.values()) for field, value in each.items()}
CHANGES = {"decoder_start": "eos"} | {
    field: value
    for field, value in CHANGES.items()
    if field not in ("kind", "dtype", "scan_layers")
}


def trace_model(model: ModelConfig) -> str:
    """The program that draws the parameters and predicts under dropout, without addresses."""

    def predict(key: jax.Array) -> Any:
        structure, params = init_model(model, *SIZES, key)
        weights = jnp.ones(TGT_OUT.shape, jnp.float32)
        return merge(structure, params).predict(DeviceBatch(SRC, TGT_IN, TGT_OUT, weights), key)

    return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(predict)(jax.random.key(0))))


def is_valid(config: Config) -> bool:
    """Returns whether the config breaks no rule."""
    try:
        return validate(config) is config
    except ConfigError:
        return False


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "decoder_only", "decoder_layers": 1, "norm": "none", "feed_forward": "moe"},
        {"kind": "encoder_only", "encoder_layers": 1, "norm": "none", "feed_forward": "none"},
        *alone(
            {},
            {"encoder_layers": 2, "decoder_layers": 1, "norm": "none"},
            {"decoder_layers": 2, "feed_forward": "moe", "num_experts": 3, "residual": False},
            {"kind": "decoder_only", "position": "learned", "feed_forward": "none"},
            {"kind": "encoder_only", "position": "relative", "norm_position": "pre"},
            {"kind": "rnn", "decoder_layers": 2, "tie_embeddings": "none"},
        ),
    ],
    ids=str,
)
def test_field_that_changes_no_program_is_known_to_have_no_effect(changes: dict[str, Any]) -> None:
    objective = "masked_lm" if changes.get("kind") == "encoder_only" else "translation"
    data = DataConfig(objective=objective, max_length=8)
    tokenizer = TokenizerConfig(sentinels=1)
    start = ModelConfig() if changes.get("kind") == "rnn" else SMALL  # whose fields it lacks
    base = Config(dataclasses.replace(start, **changes, dropout=0.1), data, tokenizer)
    base.model.d_model = SMALL.d_model
    program = trace_model(validate(base).model)
    for field, value in CHANGES.items():
        model = dataclasses.replace(base.model, **{field: value})
        config = dataclasses.replace(base, model=model)
        is_unused = f"model.{field}" in list_unused(config)
        if model == base.model or not (is_unused or is_valid(config)):
            continue
        assert (trace_model(model) == program) == is_unused, field


@pytest.mark.parametrize("name", [*COMBINED, *alone("bfloat16", "mixed", "LSTM in bfloat16")])
def test_gradients_reach_every_parameter_and_lower_the_loss(name: str) -> None:
    """By as much as they promise; in bfloat16 rounding changes the loss by about 0.003."""
    structure, params = draw_model(name)
    loss, _, gradients = run(name)
    for path, gradient in jax.tree.leaves_with_path(gradients):
        assert np.any(gradient), jax.tree_util.keystr(path)
    promised, near = (0.01, 0.1) if vary(name).dtype == "float32" else (0.03, 0.3)
    square = sum(float(np.sum(np.square(x))) for x in jax.tree.leaves(gradients))
    moved = jax.tree.map(
        lambda x, gradient: x - np.float32(promised / square) * np.asarray(gradient),
        params,
        gradients,
    )
    lowered, _ = measure_loss(run_model(structure, moved, SRC, TGT_IN))
    assert loss - float(lowered) == pytest.approx(promised, rel=near)


def find_changes(
    name: str, src: Any, tgt_in: Any, params: Params | None = None
) -> Bool[np.ndarray, "B T"]:
    """Returns whether any logit of a target position differs, except that of PAD.

    The same program computes both, so that equal is equal bit for bit.
    """
    structure, own = draw_model(name)
    found = run_model(structure, own if params is None else params, src, tgt_in)
    return (found != run(name).logits)[..., PAD_ID + 1 :].any(axis=-1)


def replace_column(ids: Any, column: int, token: int) -> Int[np.ndarray, "B T"]:
    replaced = np.array(ids)
    replaced[:, column] = token
    return replaced


@pytest.mark.parametrize("name", ORDERS)
def test_decoder_ignores_future_tokens_and_sees_all_others(name: str) -> None:
    for position in range(TGT_IN.shape[1]):
        is_changed = find_changes(name, SRC, replace_column(TGT_IN, position, 7))
        assert not is_changed[:, :position].any()
        assert is_changed[:, position:].all()


@pytest.mark.parametrize("name", ORDERS)
def test_source_padding_has_no_influence_and_every_word_has(name: str) -> None:
    for position in range(SRC.shape[1]):
        is_changed = find_changes(name, replace_column(SRC, position, 10), TGT_IN)
        assert is_changed[np.asarray(SRC)[:, position] != PAD_ID].all()
    params = draw_model(name)[1]
    table = "src_embedding" if "src_embedding" in params else "tgt_embedding"
    moved = np.array(params[table]["table"])
    moved[PAD_ID] += 1
    is_changed = find_changes(name, SRC, TGT_IN, params | {table: {"table": moved}})
    assert not is_changed[np.asarray(TGT_IN) != PAD_ID].any()


@pytest.mark.parametrize("name", [name for name in COMBINED if vary(name).kind != "rnn"])
def test_sentences_of_a_row_are_as_if_each_had_its_own(name: str) -> None:
    """Recurrent networks take no such rows."""
    src, tgt_in = ([[*ids[1, :3], *ids[0]]] for ids in (np.asarray(SRC), np.asarray(TGT_IN)))
    [together], alone = run_model(*draw_model(name), src, tgt_in), run(name).logits
    near = 2e-6 * np.abs(alone).max()
    np.testing.assert_allclose(together[:3], alone[1, :3], atol=near)
    np.testing.assert_allclose(together[3:7], alone[0], atol=near)


@pytest.mark.equality
@pytest.mark.parametrize(
    "name",
    [
        *COMBINED,
        *alone("paper", "relative positions", "decoder only, rotary positions", "deep GRU"),
    ],
)
def test_cached_decoding_of_a_shuffled_beam_equals_teacher_forcing(name: str) -> None:
    is_extended = name not in COMBINED  # a longer cache is another program
    check_cached_decoding(*draw_model(name), is_extended=is_extended)


def check_cached_decoding(
    structure: Structure, params: Params, *, is_extended: bool = False
) -> None:
    random = np.random.default_rng(0)
    rows, beam, steps = len(SRC), 3, 4
    length = 2 if is_extended else steps + 2
    start = jax.jit(lambda params: merge(structure, params).init_cache(SRC, beam, length))
    decode_step = jax.jit(lambda params, *others: merge(structure, params).decode_step(*others))
    cache, hypotheses = start(params), np.zeros((rows, beam, 0), np.int32)
    found, forced = [], []
    for step in range(steps):
        tokens = random.integers(3, VOCAB_SIZE, (rows, beam)).astype(np.int32)
        # Any slot may continue any, so that some die out and others have several successors.
        parents = random.integers(0, beam, (rows, beam)).astype(np.int32)
        past = hypotheses[np.arange(rows)[:, None], parents]
        hypotheses = np.concatenate([past, tokens[..., None]], axis=-1)
        if step == 2 and is_extended:
            cache = merge(structure, params).extend_cache(cache, steps + 2)
        logits, cache = decode_step(params, jnp.asarray(tokens), jnp.asarray(parents), cache)
        found.append(logits)
        forced.append(np.pad(hypotheses, ((0, 0), (0, 0), (0, steps - step - 1))))
    tgt_in = np.stack(forced).reshape(-1, steps)
    src = np.tile(np.repeat(SRC, beam, axis=0), (steps, 1))
    wanted = run_model(structure, params, src, tgt_in)
    wanted = wanted.reshape(steps, rows, beam, steps, VOCAB_SIZE)
    for step, logits in enumerate(found):
        near = max(1e-4, 1e-5 * np.abs(wanted).max())
        np.testing.assert_allclose(logits, wanted[step, :, :, step], atol=near)


def test_dropout_follows_the_key_and_needs_one() -> None:
    name = next(name for name in COMBINED if "dropout" in name)
    first, other = (run_with_dropout(name, seed) for seed in (0, 1))
    assert (np.abs(first - other).max(axis=-1) > 1e-3).all()
    np.testing.assert_array_equal(first, run_again_with_dropout(name, 0))
    assert np.abs(first - run(name).logits).max() > 1e-3


@pytest.mark.parametrize(("start", "id_"), [("eos", EOS_ID), ("unk", UNK_ID)])
def test_decoder_may_start_with_another_embedding(start: str, id_: int) -> None:
    structure, params = draw_model("paper")
    starting, _ = draw_params(dataclasses.replace(SMALL, decoder_start=start))
    table = params["tgt_embedding"]["table"]
    same = params | {"tgt_embedding": {"table": table.at[BOS_ID].set(table[id_])}}
    of_others = np.arange(VOCAB_SIZE) != BOS_ID
    wanted = run_model(structure, same, SRC, TGT_IN)
    found = jax.jit(lambda params: merge(starting, params)(SRC, TGT_IN))(params)
    near = 2e-6 * np.abs(wanted).max()
    np.testing.assert_allclose(found[..., of_others], wanted[..., of_others], atol=near)


@pytest.mark.parametrize(
    ("name", "in_float32", "dtype"),
    [
        ("bfloat16", "paper", jnp.bfloat16),
        pytest.param("mixed", "paper", jnp.float32, marks=pytest.mark.slow),
        pytest.param("LSTM in bfloat16", "LSTM", jnp.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_bfloat16_stays_close_and_keeps_float32_where_it_matters(
    name: str, in_float32: str, dtype: jnp.dtype
) -> None:
    structure, params = draw_model(name)
    logits, wanted = run(name).logits, run(in_float32).logits
    # Eight bits of mantissa, through five sub-layers or positions.
    np.testing.assert_allclose(logits, wanted, atol=0.03 * np.abs(wanted).max())
    [memory] = jax.tree.leaves(
        jax.eval_shape(lambda params: merge(structure, params).encode(SRC), params)
    )
    assert (memory.dtype, logits.dtype) == (dtype, jnp.float32)
    kept = jax.tree.leaves((params, run(name).gradients))
    assert {leaf.dtype for leaf in kept} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", ["paper", *alone("deep GRU")])
def test_initial_logits_are_of_the_order_of_one(name: str) -> None:
    """Outputs that are normalised, or below one, times embeddings of deviation d_model^-0.5."""
    drawn = init_model(vary(name), *SIZES, jax.random.key(0))
    logits = run_model(*drawn, SRC, TGT_IN)
    assert 0.3 < float(logits.std()) < 2
