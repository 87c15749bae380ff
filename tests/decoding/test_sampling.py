"""Sampling against exact probabilities and against a sampler written as loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.decoding.sampling import Sampler, Stream, draw_noise
from tests.decoding.toy_model import BATCH, LENGTH, VOCABULARY, ToyModel, search_toy, tokens_of


def make_stream(rows: int, seed: int = 0) -> Stream:
    return Stream(*np.array([[seed] * rows, range(rows), [0] * rows, [0] * rows], np.int32))


def restrict_naively(logits: np.ndarray, sampler: Sampler) -> np.ndarray:
    """The probability of each token: sorts, where `Sampler` bisects."""
    scaled = {
        token: float(x) / sampler.temperature
        for token, x in enumerate(logits)
        if token not in (PAD_ID, BOS_ID)
    }
    order = sorted(scaled, key=lambda token: -scaled[token])
    order = order[: sampler.top_k or None]
    total = sum(np.exp(scaled[token]) for token in order)
    probabilities, mass = np.zeros(len(logits)), 0.0
    for token in order:
        if sampler.top_p < 1 and mass >= sampler.top_p:
            break
        probabilities[token] = np.exp(scaled[token]) / total
        mass += probabilities[token]
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    "sampler",
    [Sampler(1.0, 0, 1.0), Sampler(1.5, 6, 0.8), Sampler(1.0, 1, 1.0), Sampler(1.0, 100, 1.0)],
    ids=str,
)  # fmt: skip
def test_tokens_have_their_exact_probabilities(sampler: Sampler) -> None:
    """Chi-square test on 20,000 draws of a fixed seed from 12 tokens."""
    draws, vocabulary = 20_000, 12
    logits = 1.5 * jax.random.normal(jax.random.key(4), (vocabulary,))
    rows = jnp.broadcast_to(logits, (draws, 1, vocabulary))
    log_probs, _, tokens = jax.jit(sampler.draw)(
        rows, jnp.zeros((draws, 1)), make_stream(draws), jnp.int32(0)
    )
    expected = restrict_naively(np.asarray(logits, np.float64), sampler)
    counts = np.bincount(np.asarray(tokens)[:, 0], minlength=vocabulary)
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    if possible.sum() > 1:
        assert chisquare(counts[possible], draws * expected[possible]).pvalue > 0.01
    np.testing.assert_allclose(log_probs[:, 0], logits[tokens[:, 0]])  # the model's own


LOGITS = st.lists(st.integers(-30, 30), min_size=4, max_size=20, unique=True)
restrict = jax.jit(Sampler.restrict, static_argnums=0)


# Each sampler is a program, so there are a few with several rows of logits each.
@settings(max_examples=settings().max_examples // 3)
@given(
    st.lists(LOGITS, min_size=1, max_size=8),
    st.integers(0, 8),
    st.sampled_from([0.01, 0.3, 0.77, 0.999, 1.0]),
    st.sampled_from([0.3, 1.0, 4.0]),
)
def test_kept_tokens_are_those_of_a_sort(
    rows: list[list[int]], top_k: int, top_p: float, temperature: float
) -> None:
    sampler = Sampler(temperature, top_k, top_p)
    padded = np.full((8, 20), -np.inf, np.float32)  # of one shape, so that little is compiled
    padded[:, :4] = 0
    for row, halves in zip(padded, rows, strict=False):
        row[: len(halves)] = np.array(halves) / 2
    for halves, kept in zip(rows, np.asarray(restrict(sampler, padded)), strict=False):
        expected = restrict_naively(np.array(halves) / 2, sampler)
        # Probabilities that a float32 cannot add to a sum near 1 do not count.
        clear = (expected > 1e-5) | (expected == 0)
        found = kept[: len(halves)] > -np.inf
        np.testing.assert_array_equal(found[clear], (expected > 0)[clear])


@pytest.mark.parametrize("temperature", [1e-30, 1e-300])
@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_limit_of_low_temperatures_is_the_most_probable_token(
    temperature: float, top_p: float
) -> None:
    """A quotient of the logits overflows; the largest logit is one that is never drawn."""
    logits = np.tile(np.array([9.0, 8.0, -3.0, 2.5, 2.25, -np.inf], np.float32), (50, 1, 1))
    drawn = jax.jit(Sampler(temperature, 0, top_p).draw)(
        jnp.asarray(logits), jnp.zeros((50, 1)), make_stream(50), jnp.int32(0)
    )
    assert set(np.asarray(drawn[2])[:, 0]) == {3}


def test_samples_of_a_search_are_those_of_a_loop_with_the_same_noise() -> None:
    model, sampler = ToyModel(seed=3), Sampler(0.8, 4, 0.9)
    stream = make_stream(BATCH, seed=5)
    [found] = search_toy(model, kind="none", beam_size=1, sampler=sampler, stream=stream)
    noise = [np.asarray(draw_noise(stream, jnp.int32(t), VOCABULARY)) for t in range(LENGTH)]
    for row in range(BATCH):
        next_log_probs = model.next_log_probs(row)
        prefix: tuple[int, ...] = ()
        log_prob = 0.0
        while not prefix or prefix[-1] != EOS_ID:
            log_probs = next_log_probs(prefix)
            with np.errstate(divide="ignore"):
                kept = np.log(restrict_naively(log_probs, sampler))
            last = len(prefix) + 1 == LENGTH
            token = EOS_ID if last else int(np.argmax(kept + noise[len(prefix)][row]))
            log_prob += log_probs[token]
            prefix = (*prefix, token)
        assert tokens_of(found, row, 0) == prefix
        np.testing.assert_allclose(found.log_probs[row, 0], log_prob, rtol=1e-5)


def test_noise_differs_in_every_number_of_the_stream_and_in_the_step() -> None:
    numbers = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    stream = Stream(*np.array(numbers, np.int32).T)
    noise = [*draw_noise(stream, jnp.int32(0), 4), *draw_noise(stream, jnp.int32(1), 4)]
    assert len({row.tobytes() for row in map(np.asarray, noise)}) == 2 * len(numbers)
