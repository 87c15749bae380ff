"""Export, model and search against an independent implementation with the same weights.

CTranslate2 has another length penalty, so both rank by log-probability; and it ends a hypothesis
only where EOS is among the W best continuations, not 2W, so ours may find a better one.
"""

import dataclasses
from typing import Any

import ctranslate2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import ModelConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.decoding.beam_search import Hypotheses, LengthPenalty
from t2t.interop.ctranslate2_export import write_model
from t2t.model.interface import Params, merge
from t2t.ops.build_model import init_model
from tests.decoding.toy_model import beam_search

VOCABULARY, MAX_LENGTH = 40, 16
CONFIG = ModelConfig(num_layers=2, d_model=32, d_ff=64, num_heads=4)
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"num_layers": 1},
    "two layers": {},
    "pre-norm, rotary": {"norm_position": "pre", "position": "rotary"},
    "learned positions, SwiGLU, no tables shared, shallow decoder": {
        "position": "learned",
        "feed_forward": "swiglu",
        "tie_embeddings": "none",
        "decoder_layers": 1,
    },
    "Marian's": {
        "attention_bias": True,
        "feed_forward": "silu",
        "position": "sinusoidal_halves",
        "norm_epsilon": 1e-2,
        "output_bias": True,
    },
    "fairseq's sinusoids, no biases, output table of its own": {
        "norm_position": "pre",
        "position": "sinusoidal_fairseq",
        "feed_forward_bias": False,
        "tie_embeddings": "input",
    },
}
PARAMS = [
    name if name == "paper" else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS
]
NAMES = ["<blank>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, VOCABULARY))]
SOURCES = [
    [*np.random.default_rng(length).integers(4, VOCABULARY, length).tolist(), EOS_ID]
    for length in (3, 9, 1, 6, 12, 4, 7, 10)
]


def to_names(ids: Any) -> list[str]:
    return [NAMES[i] for i in ids]


@pytest.fixture(scope="module", params=PARAMS)
def model(request: pytest.FixtureRequest) -> Any:
    """(config, structure, parameters), every one of them random."""
    config = dataclasses.replace(CONFIG, **VARIANTS[request.param])
    structure, params = init_model(config, VOCABULARY, VOCABULARY, jax.random.key(0))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    params = jax.tree.unflatten(tree, noisy)
    # The two that are never chosen: CTranslate2 has no such rule, so the model must not want them.
    name = "own_output_embedding" if config.tie_embeddings in ("input", "none") else "tgt_embedding"
    table = params[name]["table"]
    last = params["decoder"][config.depth[1] - 1]["feed_forward_residual"]["norm"]
    norm = params["decoder_norm"] if config.norm_position == "pre" else last
    norm["bias"] = 2 * jax.random.normal(jax.random.key(2), norm["bias"].shape)
    direction = norm["bias"] / jnp.linalg.norm(norm["bias"])
    table = table.at[jnp.array([PAD_ID, BOS_ID])].set(-20 * direction)
    table = table.at[EOS_ID].add(4 * direction)  # some hypotheses end before the limit
    params[name]["table"] = table
    return config, structure, params


@pytest.fixture(scope="module")
def translator(model: Any, tmp_path_factory: pytest.TempPathFactory) -> ctranslate2.Translator:
    config, _, params = model
    directory = tmp_path_factory.mktemp("model")
    write_model(config, params, (NAMES, NAMES), directory)
    return ctranslate2.Translator(str(directory), compute_type="float32", intra_threads=1)


def pad(rows: list[list[int]]) -> jax.Array:
    width = max(map(len, rows))
    return jnp.array([row + [PAD_ID] * (width - len(row)) for row in rows])


def search(model: Any, beam_size: int) -> Hypotheses:
    """As CTranslate2 does it: at the limit a hypothesis ends as it is, at no cost."""
    _, structure, params = model

    @jax.jit
    def run(params: Params, src: jax.Array) -> tuple[Hypotheses, ...]:
        transformer = merge(structure, params)

        def decode_step(tokens: Any, parents: Any, cache: Any) -> Any:
            logits, cache = transformer.decode_step(tokens, parents, cache)
            free_end = jnp.where(jnp.arange(VOCABULARY) == EOS_ID, 0.0, -1e9)
            return jnp.where(cache.step > MAX_LENGTH, free_end, logits), cache

        return beam_search(
            decode_step,
            transformer.init_cache(src, beam_size, MAX_LENGTH + 1),
            max_lengths=jnp.full(len(src), MAX_LENGTH + 1),
            max_length=MAX_LENGTH + 1,
            beam_size=beam_size,
            penalties=[LengthPenalty("none", 0.0)],
            n_best=1,
        )

    found: list[Hypotheses] = jax.device_get(run(params, pad(SOURCES)))
    return found[0]


def test_teacher_forced_probabilities_agree(model: Any, translator: ctranslate2.Translator) -> None:
    targets = [source[:-1][::-1] for source in SOURCES]
    scores = translator.score_batch(
        [to_names(source[:-1]) for source in SOURCES], [*map(to_names, targets)]
    )
    _, structure, params = model
    tgt_in = pad([[BOS_ID, *target] for target in targets])
    logits = jax.jit(lambda p, *x: merge(structure, p)(*x))(params, pad(SOURCES), tgt_in)
    log_probs = jax.nn.log_softmax(logits)
    for row, (target, score) in enumerate(zip(targets, scores, strict=True)):
        tgt_out = [*target, EOS_ID]
        expected = [log_probs[row, t, token] for t, token in enumerate(tgt_out)]
        assert score.tokens == to_names(tgt_out)
        np.testing.assert_allclose(score.log_probs, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_best_hypotheses_and_their_probabilities_agree(
    model: Any, translator: ctranslate2.Translator, beam_size: int
) -> None:
    found = search(model, beam_size)
    expected = translator.translate_batch(
        [to_names(source[:-1]) for source in SOURCES],
        beam_size=beam_size,
        length_penalty=0,
        min_decoding_length=0,
        max_decoding_length=MAX_LENGTH,
        return_scores=True,
    )
    same = 0
    for row, result in enumerate(expected):
        tokens = found.tokens[row, 0, : found.lengths[row, 0] - 1]
        [log_prob] = result.scores
        if to_names(tokens) == result.hypotheses[0]:
            same += 1
            np.testing.assert_allclose(found.log_probs[row, 0], log_prob, atol=1e-3)
        else:
            assert beam_size > 1
            assert found.log_probs[row, 0] > log_prob + 1e-3
    assert same >= len(SOURCES) - 1
