"""Beam search against searches that are too slow to be wrong."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from t2t.config.fields import ModelConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.decoding.beam_search import (
    DecodeStep,
    Hypotheses,
    Search,
    continue_search,
    extend_search,
    grouped_top_k,
    is_unfinished,
    start_search,
    take_rows,
)
from t2t.decoding.sampling import BANNED_TOKENS, Sampler, Stream
from t2t.model.parameters import merge
from t2t.ops.build_model import init_model
from tests.decoding.reference_search import search_all, search_beam
from tests.decoding.toy_model import (
    BATCH,
    LENGTH,
    VOCABULARY,
    ToyModel,
    beam_search,
    gnmt,
    search_toy,
    tokens_of,
)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(num_layers=1, d_model=8, d_ff=8, num_heads=2),
        ModelConfig(kind="rnn", rnn_cell="lstm", num_layers=1, d_model=8),
    ],
    ids=["transformer", "lstm"],
)
def test_a_wide_beam_over_a_model_equals_exhaustive_search(config: ModelConfig) -> None:
    """The cache against teacher forcing, with all that becomes of parents in a search."""
    structure, params = init_model(config, VOCABULARY, VOCABULARY, jax.random.key(0))
    params = jax.tree.map(lambda x: 2 * x, params)  # sure of itself: scores lie far apart
    src = jnp.array([[4, 5, 3, EOS_ID], [5, EOS_ID, PAD_ID, PAD_ID]])

    @jax.jit
    def run(params: Any) -> tuple[Hypotheses, ...]:
        model = merge(structure, params)
        return beam_search(
            model.decode_step,
            model.init_cache(src, beam_size=32, max_length=4),
            max_lengths=jnp.array([4, 4]),
            max_length=4,
            beam_size=32,
            penalties=(gnmt(0.6),),
        )

    forward = jax.jit(lambda *ids: jax.nn.log_softmax(merge(structure, params)(*ids)))
    [found] = jax.tree.map(np.asarray, run(params))
    for row in range(len(src)):

        def next_log_probs(prefix: tuple[int, ...], row: int = row) -> np.ndarray:
            tgt_in = [BOS_ID, *prefix, *[PAD_ID] * (3 - len(prefix))]
            return np.asarray(forward(src[row : row + 1], jnp.array([tgt_in]))[0, len(prefix)])

        expected = search_all(next_log_probs, 4, 0.6)[:32]
        assert [tokens_of(found, row, rank) for rank in range(32)] == [h.tokens for h in expected]
        np.testing.assert_allclose(found.scores[row], [h.score for h in expected], rtol=1e-4)


def test_one_search_finds_for_each_alpha_what_its_own_would() -> None:
    alphas, model = (0.0, 0.6, 4.0), ToyModel(seed=3)
    found = search_toy(model, alphas=alphas, n_best=1)
    for together, alpha in zip(found, alphas, strict=True):
        [alone] = search_toy(model, alphas=[alpha], n_best=1)
        np.testing.assert_array_equal(together.tokens, alone.tokens)
        np.testing.assert_allclose(together.scores, alone.scores, rtol=1e-6)
    assert (found[0].tokens != found[2].tokens).any()  # or there was nothing to see


@pytest.mark.parametrize("beam_size", [2, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_stopping_early_changes_nothing(beam_size: int, alpha: float) -> None:
    model = ToyModel(seed=1)
    [found] = search_toy(model, alphas=[alpha], beam_size=beam_size)
    [best] = search_toy(model, alphas=[alpha], beam_size=beam_size, n_best=1)
    for row in range(BATCH):
        expected = search_beam(model.next_log_probs(row), LENGTH, alpha, beam_size)
        assert [tokens_of(found, row, rank) for rank in range(beam_size)] == [
            hypothesis.tokens for hypothesis in expected
        ]
        assert tokens_of(best, row, 0) == expected[0].tokens


def test_the_search_stops_as_soon_as_the_result_is_certain() -> None:
    """One sentence ends at once with near certainty; the model counts its calls."""
    calls = []

    def decode_step(tokens: Any, parents: Any, cache: Any) -> Any:
        del parents
        jax.debug.callback(lambda: calls.append(1))
        return jnp.full((*tokens.shape, VOCABULARY), -9.0).at[..., EOS_ID].set(9.0), cache

    [found] = jax.jit(
        lambda: beam_search(
            decode_step, (), max_lengths=jnp.array([LENGTH, 0, 1]), max_length=LENGTH,
            beam_size=4, penalties=(gnmt(0.6),), n_best=1,
        )
    )()  # fmt: skip
    jax.effects_barrier()
    assert len(calls) == 1
    assert found.lengths.tolist() == [[1], [0], [1]]


def test_a_beam_of_one_is_greedy() -> None:
    model = ToyModel(seed=2)
    [found] = search_toy(model, alphas=[2.0], beam_size=1)
    for row in range(BATCH):
        next_log_probs = model.next_log_probs(row)
        prefix: tuple[int, ...] = ()
        while not prefix or prefix[-1] != EOS_ID:
            log_probs = next_log_probs(prefix).copy()
            log_probs[[PAD_ID, BOS_ID]] = -np.inf
            last = len(prefix) + 1 == LENGTH
            prefix = (*prefix, EOS_ID if last else int(log_probs.argmax()))
        assert tokens_of(found, row, 0) == prefix


@functools.partial(jax.jit, static_argnames=("capacity", "n_best"))
def start(model: ToyModel, limits: np.ndarray, capacity: int, n_best: int) -> Search:
    cache, lengths = model.init_cache(jnp.arange(BATCH), 4), jnp.asarray(limits)
    return start_search(cache, max_lengths=lengths, capacity=capacity, beam_size=4, n_best=n_best)


@functools.partial(jax.jit, static_argnames=("capacity", "pause_at"))
def resume(model: ToyModel, state: Search, capacity: int, pause_at: int = 0) -> Search:
    state = extend_search(state, state.cache, capacity)
    return continue_search(model.decode_step, state, (gnmt(0.6),), pause_at)


find_unfinished, leave = jax.jit(is_unfinished), jax.jit(take_rows)


@pytest.mark.parametrize("n_best", [1, 4])
def test_pausing_at_capacity_and_dropping_sentences_changes_nothing(n_best: int) -> None:
    model, limits = ToyModel(seed=3), np.array([6, 1, 3, 0, 2, 5, 4, 6])
    [wanted] = search_toy(model, limits, n_best=n_best)
    state = start(model, limits, capacity=1, n_best=n_best)
    owners, unfinished = np.arange(BATCH), np.ones(BATCH, bool)
    for capacity in (1, 2, 4, 6):
        state = resume(model, state, capacity)
        unfinished = np.asarray(find_unfinished(state))
        finished = jax.tree.map(np.asarray, state.finished[0])
        for row, owner in enumerate(owners):
            if not unfinished[row]:
                done = jax.tree.map(lambda x, row=row: x[row], finished)
                np.testing.assert_array_equal(done.tokens, wanted.tokens[owner, :, :capacity])
                for found, expected in zip(done[1:], wanted[1:], strict=True):
                    np.testing.assert_allclose(found, expected[owner], rtol=1e-6)
        if not unfinished.any():
            break
        state, owners = leave(state, np.flatnonzero(unfinished)), owners[unfinished]
    assert not unfinished.any()


def test_of_equals_the_lower_token_and_the_lower_slot_win() -> None:
    """And of finished hypotheses the shorter. Padding and BOS keep their share of probability."""

    def decode_step(tokens: Any, parents: Any, cache: Any) -> Any:
        del parents
        return jnp.zeros((*tokens.shape, VOCABULARY)), cache

    [found] = jax.jit(
        lambda: beam_search(
            decode_step, (), max_lengths=jnp.array([2]), max_length=2, beam_size=4,
            penalties=(gnmt(0.0),),
        )
    )()  # fmt: skip
    assert found.tokens[0].tolist() == [[2, 0], [3, 2], [4, 2], [5, 2]]
    lengths = np.array([1, 2, 2, 2])
    np.testing.assert_allclose(found.log_probs[0], -lengths * np.log(VOCABULARY), rtol=1e-5)


@pytest.mark.equality
@pytest.mark.parametrize("sampler", [None, Sampler(1.2, 5, 0.95)], ids=["beam", "samples"])
def test_rows_on_several_devices_and_a_divided_vocabulary_change_nothing(
    sampler: Sampler | None,
) -> None:
    model, beam_size = ToyModel(seed=5), 1 if sampler else 4
    zeros, limits = np.zeros(BATCH, np.int32), np.full(BATCH, LENGTH)
    stream = Stream(zeros, np.arange(BATCH, dtype=np.int32), zeros, zeros) if sampler else None

    def run(decode_step: DecodeStep, start: Any, limits: Any, stream: Any) -> Hypotheses:
        cache = start[:, None] + jnp.zeros((beam_size, 1)), jnp.zeros((), jnp.int32)
        [found] = beam_search(
            decode_step, cache, max_lengths=limits, max_length=LENGTH, beam_size=beam_size,
            penalties=(gnmt(0.6),), stream=stream, sampler=sampler,
        )  # fmt: skip
        return found

    run_jitted = jax.jit(run, static_argnums=0)
    expected = run_jitted(model.decode_step, model.start, limits, stream)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)
    rows = PartitionSpec(("data", "fsdp"))
    with jax.set_mesh(mesh):
        model.table = jax.device_put(np.asarray(model.table), PartitionSpec())
        placed = jax.tree.map(
            lambda x: jax.device_put(np.asarray(x), rows), (model.start, limits, stream)
        )
        found = run_jitted(model.decode_step_divided, *placed)
    assert jax.typeof(found.tokens).sharding.spec == PartitionSpec(*rows, None, None)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


@pytest.mark.parametrize("size", [9, 256, 2003])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_best_of_groups_are_the_best_of_all(size: int, beam_size: int) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(3, beam_size, size)).astype(np.float32)
    logits[0, 0, -2:] += 9
    logits[1, :, :2] += 9  # the banned
    offsets = random.normal(size=(3, beam_size)).astype(np.float32)
    totals = logits + offsets[..., None]
    totals[..., list(BANNED_TOKENS)] = -np.inf
    order = np.argsort(-totals.reshape(3, -1), axis=1)[:, : 2 * beam_size]
    found = jax.jit(grouped_top_k, static_argnums=2)(logits, offsets, 2 * beam_size)
    np.testing.assert_array_equal(found[0], np.take_along_axis(totals.reshape(3, -1), order, 1))
    np.testing.assert_array_equal(found[1], order // size)
    np.testing.assert_array_equal(found[2], order % size)
