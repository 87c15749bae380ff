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
from t2t.model.build import make_model, merge
from t2t.model.interface import Params
from tests import reference, reference_rnn
from tests.model.small_models import (
    SMALL,
    SRC,
    TGT_IN,
    TGT_OUT,
    VARIANTS,
    VOCAB_SIZE,
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
    "GRU",
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
    "deep GRU",
]


class Outcome(NamedTuple):
    loss: Float[Array, ""]
    logits: Float[Array, "B T V"]
    gradients: Params


@functools.cache
def compile_variant(name: str) -> Callable[[Params], Outcome]:
    """Loss, logits and gradients on the small batch, without dropout."""
    structure, _ = draw_model(name)
    real = TGT_OUT != PAD_ID

    def measure(params: Params) -> tuple[Float[Array, ""], Float[Array, "B T V"]]:
        logits = merge(structure, params)(SRC, TGT_IN)
        log_probs = jax.nn.log_softmax(logits)
        own = jnp.take_along_axis(log_probs, TGT_OUT[..., None], axis=-1)[..., 0]
        return -jnp.sum(own * real) / jnp.sum(real), logits

    def run(params: Params) -> Outcome:
        (loss, logits), gradients = jax.value_and_grad(measure, has_aux=True)(params)
        return Outcome(loss, logits, gradients)

    return jax.jit(run)


def run(name: str) -> Outcome:
    return compile_variant(name)(draw_model(name)[1])


@functools.cache
def run_with_dropout(name: str, seed: int = 0) -> Float[Array, "B T V"]:
    structure, params = draw_model(name)
    forward = jax.jit(lambda params, key: merge(structure, params)(SRC, TGT_IN, key))
    logits: Float[Array, "B T V"] = forward(params, jax.random.key(seed))
    return logits


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
        found, paper = (run_with_dropout(x) if drops else run(x).logits for x in (name, "paper"))
        assert float(jnp.abs(found - paper).max()) > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_reach_every_parameter_and_lower_the_loss(name: str) -> None:
    params, losses = draw_model(name)[1], []
    for _ in range(4):
        loss, _, gradients = compile_variant(name)(params)
        losses.append(float(loss))
        for path, gradient in jax.tree.leaves_with_path(gradients):
            assert np.any(gradient), jax.tree_util.keystr(path)
        norm = sum(np.sum(np.square(x)) for x in jax.tree.leaves(gradients)) ** 0.5
        params = jax.tree.map(lambda x, g, norm=norm: x - 0.1 / norm * g, params, gradients)
    assert sorted(losses, reverse=True) == losses


class Influences(NamedTuple):
    """Greatest absolute gradient of a target position's logits for the embedding of each token."""

    of_src: Float[np.ndarray, "T B S"]
    of_tgt: Float[np.ndarray, "T B T"]


@functools.cache
def find_influences(name: str) -> Influences:
    """With a table for the source alone and one for the target's inputs alone."""
    structure, params = draw(dataclasses.replace(vary(name), tie_embeddings="none"))

    @jax.jit
    def differentiate(
        src_table: Float[Array, "V D"], tgt_table: Float[Array, "V D"]
    ) -> tuple[Float[Array, "T V D"], Float[Array, "T V D"]]:
        def sum_logits(
            src_table: Float[Array, "V D"], tgt_table: Float[Array, "V D"]
        ) -> Float[Array, "T"]:
            tables = {"src_embedding": {"table": src_table}, "tgt_embedding": {"table": tgt_table}}
            return merge(structure, params | tables)(SRC, TGT_IN).sum(axis=(0, 2))

        of_src, of_tgt = jax.jacrev(sum_logits, argnums=(0, 1))(src_table, tgt_table)
        return of_src, of_tgt

    gradients = differentiate(params["src_embedding"]["table"], params["tgt_embedding"]["table"])
    per_token = (np.abs(gradient).max(axis=-1) for gradient in gradients)
    return Influences(*(x[:, ids] for x, ids in zip(per_token, (SRC, TGT_IN), strict=True)))


@pytest.mark.parametrize("name", ORDERS)
def test_decoder_ignores_future_tokens_and_sees_all_others(name: str) -> None:
    for position, influence in enumerate(find_influences(name).of_tgt):
        assert (influence[:, : position + 1] > 0).all()
        assert (influence[:, position + 1 :] == 0).all()


@pytest.mark.parametrize("name", ORDERS)
def test_source_padding_has_no_influence_and_every_word_has(name: str) -> None:
    for influence in find_influences(name).of_src:
        np.testing.assert_array_equal(influence > 0, SRC != PAD_ID)


@pytest.mark.parametrize("name", ORDERS)
def test_more_padding_does_not_change_the_logits(name: str) -> None:
    structure, params = draw_model(name)
    forward = jax.jit(lambda params, *ids: merge(structure, params)(*ids))
    more = (jnp.pad(ids, ((0, 1), (0, 3)), constant_values=PAD_ID) for ids in (SRC, TGT_IN))
    padded, logits = forward(params, *more), run(name).logits
    np.testing.assert_allclose(padded[:2, : TGT_IN.shape[1]], logits, atol=1e-5)
    assert np.isfinite(padded).all()  # also of the row without any word


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.equality) if name in ("today's", "GRU") else name
        for name in DECODED
    ],
)
def test_cached_decoding_of_a_shuffled_beam_equals_teacher_forcing(name: str) -> None:
    structure, params = draw_model(name)
    random = np.random.default_rng(0)
    rows, beam, steps = len(SRC), 3, 4

    @jax.jit
    def start(params: Params) -> Any:
        model = merge(structure, params)
        return model.init_cache(model.encode(SRC), SRC, beam, max_length=2)

    forward = jax.jit(lambda params, *ids: merge(structure, params)(*ids))
    decode_step = jax.jit(
        lambda params, *arguments: merge(structure, params).decode_step(*arguments)
    )
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
        logits, cache = decode_step(params, tokens, parents, cache)
        found.append(logits)
        forced.append(np.pad(hypotheses, ((0, 0), (0, 0), (0, steps - step - 1))))
    tgt_in = np.stack(forced).reshape(-1, steps)
    src = np.tile(np.repeat(SRC, beam, axis=0), (steps, 1))
    wanted = forward(params, src, tgt_in).reshape(steps, rows, beam, steps, VOCAB_SIZE)
    for step, logits in enumerate(found):
        np.testing.assert_allclose(logits, wanted[step, :, :, step], atol=1e-4)


@pytest.mark.parametrize("name", [name for name in ORDERS if vary(name).kind == "transformer"])
def test_sentences_of_a_row_are_as_if_each_had_its_own(name: str) -> None:
    structure, params = draw_model(name)
    forward = jax.jit(lambda params, *ids: merge(structure, params)(*ids))
    alone = run(name).logits
    lengths = [(5, 4), (3, 3)]
    packed = [
        jnp.concatenate([ids[row, : lengths[row][side]] for row in (1, 0)])[None]
        for side, ids in enumerate((SRC, TGT_IN))
    ]
    together = forward(params, *packed)[0]
    np.testing.assert_allclose(together[:3], alone[1, :3], atol=1e-5)
    np.testing.assert_allclose(together[3:], alone[0], atol=1e-5)


def test_without_positions_the_source_is_a_bag_of_words() -> None:
    src, shuffled = jnp.array([[5, 6, 7, 8]]), jnp.array([[8, 6, 5, 7]])
    differences = []
    for name in ("no positions", "paper"):
        structure, params = draw_model(name)
        encode = jax.jit(lambda params, src, s=structure: merge(s, params).encode(src))
        found, moved = encode(params, src), encode(params, shuffled)
        differences.append(np.abs(found[:, np.array([3, 1, 0, 2])] - moved).max())
    assert differences[0] < 1e-5
    assert differences[1] > 1e-2


def test_dropout_follows_the_key_and_needs_one() -> None:
    first, other = (run_with_dropout("dropout", seed) for seed in (0, 1))
    assert (np.abs(first - other).max(axis=-1) > 1e-3).all()
    again = run_with_dropout.__wrapped__("dropout", 0)
    np.testing.assert_array_equal(first, again)
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


@pytest.mark.parametrize("kind", ["transformer", "rnn"])
def test_initial_logits_are_of_the_order_of_one(kind: str) -> None:
    """Outputs that are normalised, or below one, times embeddings of deviation d_model^-0.5."""
    config = dataclasses.replace(SMALL, kind=kind)
    forward = jax.jit(lambda key: make_model(config, 500, 500, key)(SRC, TGT_IN))
    assert 0.3 < float(forward(jax.random.key(0)).std()) < 2


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.kind='convolution' is unknown"):
        make_model(dataclasses.replace(SMALL, kind="convolution"), 5, 5, jax.random.key(0))
