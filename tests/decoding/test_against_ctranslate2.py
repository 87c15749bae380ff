"""The model and the search against an independent implementation, with the same weights.

CTranslate2 has another length penalty, so both rank by log-probability; and it ends a hypothesis
only where the end mark is among the W best continuations, not 2W, so ours may find a better one.
"""

from pathlib import Path
from typing import Any

import ctranslate2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.config import ModelConfig
from t2t.decoding.search import Hypotheses, beam_search
from t2t.model.position import encode_sinusoidal
from t2t.model.transformer import Params, init_transformer, merge

VOCABULARY, MAX_LENGTH = 40, 16
CONFIG = ModelConfig(num_layers=2, d_model=32, d_ff=64, num_heads=4)
NAMES = ["<blank>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, VOCABULARY))]
SOURCES = [
    [*np.random.default_rng(length).integers(4, VOCABULARY, length).tolist(), EOS_ID]
    for length in (3, 9, 1, 6, 12, 4, 7, 10)
]


def to_names(ids: Any) -> list[str]:
    return [NAMES[i] for i in ids]


@pytest.fixture(scope="module")
def model() -> Any:
    """(structure, parameters), every one of them random."""
    structure, params = init_transformer(CONFIG, VOCABULARY, VOCABULARY, jax.random.key(0))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    params = jax.tree.unflatten(tree, noisy)
    # The two that are never chosen: CTranslate2 has no such rule, so the model must not want them.
    table = params["tgt_embedding"]["table"]
    last = params["decoder"][CONFIG.num_layers - 1]["feed_forward"]["residual"]["norm"]
    direction = last["bias"] / jnp.linalg.norm(last["bias"])
    table = table.at[jnp.array([PAD_ID, BOS_ID])].set(-20 * direction)
    table = table.at[EOS_ID].add(4 * direction)  # some hypotheses end before the limit
    params["tgt_embedding"]["table"] = table
    return structure, params


@pytest.fixture(scope="module")
def translator(model: Any, tmp_path_factory: pytest.TempPathFactory) -> ctranslate2.Translator:
    _, params = model
    directory = tmp_path_factory.mktemp("model")
    export(jax.tree.map(np.asarray, params), directory)
    return ctranslate2.Translator(str(directory), compute_type="float32", intra_threads=1)


def export(params: Params, directory: Path) -> None:
    """Our layout to CTranslate2's: matrices are (out, in), and Q, K, V lie one behind the other."""
    specs = ctranslate2.specs
    spec = specs.TransformerSpec.from_config(CONFIG.num_layers, CONFIG.num_heads, pre_norm=False)
    positions = np.asarray(encode_sinusoidal(jnp.arange(64), CONFIG.d_model))
    table = params["tgt_embedding"]["table"]
    for side, embeddings in ((spec.encoder, spec.encoder.embeddings[0]),
                             (spec.decoder, spec.decoder.embeddings)):  # fmt: skip
        embeddings.weight = table
        side.position_encodings.encodings = positions
    spec.decoder.projection.weight = table
    width = CONFIG.key_width
    for target, layer in zip(spec.encoder.layer, params["encoder"].values(), strict=True):
        export_self_attention(target.self_attention, layer["attention"], width)
        export_norm(target.self_attention.layer_norm, layer["attention_residual"])
        export_feed_forward(target.ffn, layer["feed_forward"])
    for target, layer in zip(spec.decoder.layer, params["decoder"].values(), strict=True):
        export_self_attention(target.self_attention, layer["self_attention"], width)
        export_norm(target.self_attention.layer_norm, layer["self_residual"])
        cross, attention = layer["cross_attention"], target.attention
        keys, values = np.split(cross["key_value"], 2, axis=-1)
        attention.linear[0].weight = join(cross["query"])
        attention.linear[1].weight = np.concatenate([join(keys), join(values)])
        attention.linear[2].weight = cross["output"].reshape(-1, CONFIG.d_model).T
        export_norm(attention.layer_norm, layer["cross_residual"])
        export_feed_forward(target.ffn, layer["feed_forward"])
    spec.register_source_vocabulary(NAMES)
    spec.register_target_vocabulary(NAMES)
    spec.config.layer_norm_epsilon = 1e-6
    spec.validate()
    spec.save(str(directory))


def join(heads: np.ndarray) -> np.ndarray:
    """D H K to HK D."""
    return heads.reshape(len(heads), -1).T


def export_self_attention(target: Any, attention: Params, width: int) -> None:
    parts = np.split(attention["query_key_value"], [width, 2 * width], axis=-1)
    target.linear[0].weight = np.concatenate([join(part) for part in parts])
    target.linear[1].weight = attention["output"].reshape(-1, CONFIG.d_model).T


def export_norm(target: Any, residual: Params) -> None:
    target.gamma, target.beta = residual["norm"]["scale"], residual["norm"]["bias"]


def export_feed_forward(target: Any, block: Params) -> None:
    inner = block["feed_forward"]
    target.linear_0.weight, target.linear_0.bias = inner["inner"][:, 0].T, inner["inner_bias"][0]
    target.linear_1.weight, target.linear_1.bias = inner["outer"].T, inner["outer_bias"]
    export_norm(target.layer_norm, block["residual"])


def pad(rows: list[list[int]]) -> jax.Array:
    width = max(map(len, rows))
    return jnp.array([row + [PAD_ID] * (width - len(row)) for row in rows])


def search(model: Any, beam_size: int) -> Hypotheses:
    """As CTranslate2 does it: at the limit a hypothesis ends as it is, at no cost."""
    structure, params = model

    @jax.jit
    def run(params: Params, src: jax.Array) -> Hypotheses:
        transformer = merge(structure, params)

        def decode_step(tokens: Any, parents: Any, cache: Any) -> Any:
            logits, cache = transformer.decode_step(tokens, parents, cache)
            free_end = jnp.where(jnp.arange(VOCABULARY) == EOS_ID, 0.0, -1e9)
            return jnp.where(cache.step > MAX_LENGTH, free_end, logits), cache

        return beam_search(
            decode_step,
            transformer.init_cache(transformer.encode(src), src, beam_size, MAX_LENGTH + 1),
            max_lengths=jnp.full(len(src), MAX_LENGTH + 1),
            max_length=MAX_LENGTH + 1,
            beam_size=beam_size,
            alpha=0.0,
            n_best=1,
        )

    found: Hypotheses = jax.device_get(run(params, pad(SOURCES)))
    return found


def test_teacher_forced_probabilities_agree(model: Any, translator: ctranslate2.Translator) -> None:
    targets = [source[:-1][::-1] for source in SOURCES]
    scores = translator.score_batch([*map(to_names, SOURCES)], [*map(to_names, targets)])
    structure, params = model
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
        [*map(to_names, SOURCES)],
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
