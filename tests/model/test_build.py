import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from t2t.config.fields import ModelConfig
from t2t.data.batch import PAD_ID
from t2t.model.build import init_model, make_model, merge
from t2t.model.interface import Params
from tests import reference, reference_rnn
from tests.model.small_models import (
    SIZES,
    SMALL,
    SRC,
    TGT_IN,
    TGT_OUT,
    VARIANTS,
    VOCAB_SIZE,
    Structure,
    draw,
    draw_model,
    vary,
)

IN_FLOAT32 = [name for name in VARIANTS if vary(name).dtype == "float32"]
TRANSFORM = {"transformer": reference.transform, "rnn": reference_rnn.transform}
ORDERS = [  # the ways in which a model knows the order of words
    "paper",
    "learned positions",
    "rotary positions",
    "relative positions",
    "ALiBi",
    "no positions",
    "today's",
    "deep GRU",
    "deep LSTM, nothing shared",
]
# What decoding step by step could get wrong besides.
DECODED = [
    *ORDERS,
    "no scaling",
    "decoder_layers",
    "one key/value head",
    "d_v",
    "pre-norm",
]
# Decoded by compiled programs, as users decode.
COMPILED = ["today's", "deep GRU"]
Forward = Callable[..., Float[Array, "B T V"]]
PullBack = Callable[[Float[Array, "B T V"]], tuple[Params]]


def is_apart(name: str) -> bool:
    """Tells variants with shapes or dtypes of their own, which are compiled as a whole.

    The operations of the others are compiled one by one, once for all variants, which takes a
    tenth of the time.
    """
    return name in ("d_model", "one head", "bfloat16") or vary(name).kind == "rnn"


@functools.cache
def make_forward(name: str) -> Forward:
    """The variant's logits as a function of its parameters, the tokens, and perhaps a key."""
    structure, _ = draw_model(name)

    def forward(params: Params, *inputs: jax.Array) -> Float[Array, "B T V"]:
        return merge(structure, params)(*inputs)

    return jax.jit(forward) if is_apart(name) else forward


@functools.cache
def compile_pull_back(structure: Structure) -> Callable[..., tuple[Any, tuple[Params]]]:
    @jax.jit
    def run(params: Params, gradient: Float[Array, "B T V"]) -> tuple[Any, tuple[Params]]:
        logits, pull_back = jax.vjp(lambda params: merge(structure, params)(SRC, TGT_IN), params)
        return logits, pull_back(gradient)

    return run


def differentiate(
    name: str, structure: Structure, params: Params
) -> tuple[Float[Array, "B T V"], PullBack]:
    """Logits of the small batch without dropout, and the function that `jax.vjp` returns."""
    if not is_apart(name):
        return jax.vjp(lambda params: merge(structure, params)(SRC, TGT_IN), params)
    run = functools.partial(compile_pull_back(structure), params)
    logits, _ = run(jnp.zeros((*TGT_IN.shape, VOCAB_SIZE)))
    return logits, lambda gradient: run(gradient)[1]


class Outcome(NamedTuple):
    loss: float
    logits: Float[Array, "B T V"]
    gradients: Params


def measure_loss(logits: Float[Array, "B T V"]) -> Float[Array, ""]:
    """Cross-entropy per token of the small batch."""
    real = TGT_OUT != PAD_ID
    own = jnp.take_along_axis(jax.nn.log_softmax(logits), TGT_OUT[..., None], axis=-1)[..., 0]
    return -jnp.sum(own * real) / jnp.sum(real)


def run_with(name: str, params: Params) -> Outcome:
    logits, pull_back = differentiate(name, draw_model(name)[0], params)
    loss, gradient = jax.value_and_grad(measure_loss)(logits)
    return Outcome(float(loss), logits, *pull_back(gradient))


@functools.cache
def run(name: str) -> Outcome:
    return run_with(name, draw_model(name)[1])


def run_again_with_dropout(name: str, seed: int) -> Float[Array, "B T V"]:
    return make_forward(name)(draw_model(name)[1], SRC, TGT_IN, jax.random.key(seed))


run_with_dropout = functools.cache(run_again_with_dropout)


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_variant_agrees_with_naive_numpy(name: str) -> None:
    parameters = jax.tree.map(lambda x: np.asarray(x, float), draw_model(name)[1])
    for row, src, tgt_in in zip(run(name).logits, SRC.tolist(), TGT_IN.tolist(), strict=True):
        src, tgt_in = ([token for token in ids if token != PAD_ID] for ids in (src, tgt_in))
        wanted = TRANSFORM[vary(name).kind](parameters, vary(name), src, tgt_in)
        np.testing.assert_allclose(row[: len(tgt_in)], wanted, atol=1e-4)


def test_every_field_of_the_config_has_a_variant() -> None:
    varied = {field for changes in VARIANTS.values() for field in changes}
    same = {"kernels", "attention"}  # the same numbers: test_twins.py; see test_variants.py
    assert varied | same == {field.name for field in dataclasses.fields(ModelConfig)}


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "paper"])
def test_every_variant_is_another_model(name: str) -> None:
    """In its parameters' shapes, or in its outputs: under dropout, where it is about that."""
    shapes, paper_shapes = (jax.tree.map(jnp.shape, draw_model(x)[1]) for x in (name, "paper"))
    if shapes == paper_shapes:
        drops = any("dropout" in field for field in VARIANTS[name])
        found, paper = (run_with_dropout(x, 0) if drops else run(x).logits for x in (name, "paper"))
        assert float(jnp.abs(found - paper).max()) > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_reach_every_parameter_and_lower_the_loss(name: str) -> None:
    """By as much as they promise, over a step of length 0.01."""
    loss, _, gradients = run(name)
    for path, gradient in jax.tree.leaves_with_path(gradients):
        assert np.any(gradient), jax.tree_util.keystr(path)
    norm = sum(float(np.sum(np.square(x))) for x in jax.tree.leaves(gradients)) ** 0.5
    params = jax.tree.map(
        lambda x, gradient: x - np.float32(0.01 / norm) * gradient, draw_model(name)[1], gradients
    )
    near = 0.1 if vary(name).dtype == "float32" else 0.3
    assert loss - run_with(name, params).loss == pytest.approx(0.01 * norm, rel=near)


class Influences(NamedTuple):
    """Greatest absolute gradient of a target position's logits for the embedding of each token."""

    of_src: Float[np.ndarray, "T B S"]
    of_tgt: Float[np.ndarray, "T B T"]


@functools.cache
def find_influences(name: str) -> Influences:
    """With a table for the source alone and one for the target's inputs alone."""
    apart = dataclasses.replace(vary(name), tie_embeddings="none")
    drawn = draw_model(name) if apart == vary(name) else draw(apart)
    logits, pull_back = differentiate(name, *drawn)
    influences = []
    for position in range(TGT_IN.shape[1]):
        [gradients] = pull_back(jnp.zeros_like(logits).at[:, position].set(1))
        tables = (gradients[f"{side}_embedding"]["table"] for side in ("src", "tgt"))
        influences.append([np.abs(table).max(axis=-1) for table in tables])
    of_src, of_tgt = (np.stack(each) for each in zip(*influences, strict=True))
    return Influences(of_src[:, SRC], of_tgt[:, TGT_IN])


@pytest.mark.parametrize("name", ORDERS)
def test_decoder_ignores_future_tokens_and_sees_all_others(name: str) -> None:
    for position, influence in enumerate(find_influences(name).of_tgt):
        assert (influence[:, : position + 1] > 0).all()
        assert (influence[:, position + 1 :] == 0).all()


@pytest.mark.parametrize("name", ORDERS)
def test_source_padding_has_no_influence_and_every_word_has(name: str) -> None:
    for influence in find_influences(name).of_src:
        np.testing.assert_array_equal(influence > 0, SRC != PAD_ID)


# One shape of longer batches serves several tests, and sources and targets have the same shape.
ROWS, LENGTH = 24, 8


def widen(ids: np.ndarray) -> jax.Array:
    rows, length = ids.shape
    widths = ((0, ROWS - rows), (0, LENGTH - length))
    return jnp.asarray(np.pad(ids, widths, constant_values=PAD_ID))


@functools.cache
def run_padded_and_packed(name: str) -> Float[np.ndarray, "B T V"]:
    """Logits of the small batch with more padding, then of both its sentences in one row."""
    src, tgt_in = (np.zeros((3, LENGTH), np.int32) for _ in range(2))
    src[:2, :5], tgt_in[:2, :4] = SRC, TGT_IN
    src[2] = [*SRC[1, :3], *SRC[0]]
    tgt_in[2, :7] = [*TGT_IN[1, :3], *TGT_IN[0]]
    return np.asarray(make_forward(name)(draw_model(name)[1], widen(src), widen(tgt_in)))


@pytest.mark.parametrize("name", ORDERS)
def test_more_padding_does_not_change_the_logits(name: str) -> None:
    padded = run_padded_and_packed(name)
    np.testing.assert_allclose(padded[:2, : TGT_IN.shape[1]], run(name).logits, atol=1e-5)
    assert np.isfinite(padded).all()  # also of the rows without any word


@pytest.mark.parametrize("name", [name for name in ORDERS if vary(name).kind == "transformer"])
def test_sentences_of_a_row_are_as_if_each_had_its_own(name: str) -> None:
    together, alone = run_padded_and_packed(name)[2], run(name).logits
    np.testing.assert_allclose(together[:3], alone[1, :3], atol=1e-5)
    np.testing.assert_allclose(together[3:7], alone[0], atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.equality) if name in COMPILED else name
        for name in DECODED
    ],
)
def test_cached_decoding_of_a_shuffled_beam_equals_teacher_forcing(name: str) -> None:
    structure, params = draw_model(name)
    random = np.random.default_rng(0)
    rows, beam, steps = len(SRC), 3, 4

    def start(params: Params) -> Any:
        model = merge(structure, params)
        return model.init_cache(model.encode(SRC), SRC, beam, max_length=2)

    def decode_step(params: Params, *arguments: Any) -> Any:
        return merge(structure, params).decode_step(*arguments)

    if name in COMPILED:
        start, decode_step = jax.jit(start), jax.jit(decode_step)
    cache, hypotheses = start(params), np.zeros((rows, beam, 0), np.int32)
    found, forced = [], []
    for step in range(steps):
        tokens = random.integers(3, VOCAB_SIZE, (rows, beam)).astype(np.int32)
        # Any slot may continue any, so that some die out and others have several successors.
        parents = random.integers(0, beam, (rows, beam)).astype(np.int32)
        past = hypotheses[np.arange(rows)[:, None], parents]
        hypotheses = np.concatenate([past, tokens[..., None]], axis=-1)
        if step == 2:
            cache = merge(structure, params).extend_cache(cache, steps + 2)
        logits, cache = decode_step(params, jnp.asarray(tokens), jnp.asarray(parents), cache)
        found.append(logits)
        forced.append(np.pad(hypotheses, ((0, 0), (0, 0), (0, steps - step - 1))))
    tgt_in = np.stack(forced).reshape(-1, steps)
    src = np.tile(np.repeat(SRC, beam, axis=0), (steps, 1))
    wanted = make_forward(name)(params, widen(src), widen(tgt_in))
    wanted = wanted[:, :steps].reshape(steps, rows, beam, steps, VOCAB_SIZE)
    for step, logits in enumerate(found):
        np.testing.assert_allclose(logits, wanted[step, :, :, step], atol=1e-4)


def test_without_positions_the_source_is_a_bag_of_words() -> None:
    src = jnp.array([[5, 6, 7, 8, 9], [8, 6, 5, 9, 7]])
    differences = []
    for name in ("no positions", "paper"):
        found, moved = merge(*draw_model(name)).encode(src)
        differences.append(np.abs(found[np.array([3, 1, 0, 4, 2])] - moved).max())
    assert differences[0] < 1e-5
    assert differences[1] > 1e-2


def test_dropout_follows_the_key_and_needs_one() -> None:
    first, other = (run_with_dropout("dropout", seed) for seed in (0, 1))
    assert (np.abs(first - other).max(axis=-1) > 1e-3).all()
    np.testing.assert_array_equal(first, run_again_with_dropout("dropout", 0))
    np.testing.assert_array_equal(run("dropout").logits, run("paper").logits)


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("paper", {"tgt_embedding"}),
        ("source table of its own", {"tgt_embedding", "src_embedding"}),
        ("no tables shared", {"tgt_embedding", "src_embedding", "own_output_embedding"}),
    ],
)
def test_tables_are_shared_as_asked(name: str, tables: set[str]) -> None:
    structure, params = draw_model(name)
    model = merge(structure, params)
    assert {name for name in params if name.endswith("embedding")} == tables
    assert (model.output_embedding is model.tgt_embedding) == ("own_output_embedding" not in tables)


@pytest.mark.parametrize(
    ("name", "in_float32", "dtype"),
    [
        ("bfloat16", "paper", jnp.bfloat16),
        ("mixed", "paper", jnp.float32),
        ("LSTM in bfloat16", "LSTM", jnp.bfloat16),
    ],
)
def test_bfloat16_stays_close_and_keeps_float32_where_it_matters(
    name: str, in_float32: str, dtype: jnp.dtype
) -> None:
    structure, params = draw_model(name)
    logits, wanted = run(name).logits, run(in_float32).logits
    # Eight bits of mantissa, through five sub-layers or positions.
    np.testing.assert_allclose(logits, wanted, atol=0.03 * np.abs(wanted).max())
    hidden = jax.eval_shape(
        lambda params: merge(structure, params).encode_and_decode(SRC, TGT_IN), params
    )
    assert (hidden.dtype, logits.dtype) == (dtype, jnp.float32)
    kept = jax.tree.leaves((params, run(name).gradients))
    assert {leaf.dtype for leaf in kept} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", ["paper", "deep GRU"])
def test_initial_logits_are_of_the_order_of_one(name: str) -> None:
    """Outputs that are normalised, or below one, times embeddings of deviation d_model^-0.5."""
    drawn = init_model(vary(name), *SIZES, jax.random.key(0))
    logits, _ = differentiate(name, *drawn)
    assert 0.3 < float(logits.std()) < 2


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.kind='convolution' is unknown"):
        make_model(dataclasses.replace(SMALL, kind="convolution"), 5, 5, jax.random.key(0))
