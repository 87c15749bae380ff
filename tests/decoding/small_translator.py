"""Sentences and small random models for the tests of the translator."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from t2t.config.fields import Config, DecodingConfig, ModelConfig
from t2t.data.batch import BOS_ID, PAD_ID
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translation import Translation
from t2t.model.interface import Params, merge
from t2t.ops.build_model import init_model

PAIRS = [
    ("Two dogs run along the beach.", "Zwei Hunde laufen am Strand entlang."),
    ("A girl climbs.", "Ein Mädchen klettert."),
    ("The old man who sells fish sleeps.", "Der alte Mann, der Fisch verkauft, schläft."),
    ("She says that the red ball is in the grass behind the house.", "Sie sagt, dass er rot ist."),
]
SENTENCES = [src for src, _ in PAIRS] + ["Dogs run.", "", "The girl sells the house to the man."]


def make_config(**decoding: Any) -> Config:
    return Config(
        model=ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2),
        decoding=DecodingConfig(**({"max_extra_length": 5} | decoding)),
    )


def make_params(config: Config, vocabulary: Vocabulary) -> Params:
    """Random, but sure of itself: the beam's scores lie far apart."""
    sizes = vocabulary.src.vocab_size, vocabulary.tgt.vocab_size
    _, params = init_model(config.model, *sizes, jax.random.key(1))
    return {name: jax.tree.map(lambda x: 2 * x, part) for name, part in params.items()}


def make_reference(structure: Any) -> Callable[[Params, list[int], list[int]], np.ndarray]:
    """Returns a function that computes the log-probability of each target token, by no search.

    It pads to one shape, so that it is compiled once; padding follows and changes nothing before.
    """

    @jax.jit
    def forward(params: Params, src: jax.Array, tgt_in: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(merge(structure, params)(src, tgt_in))[0]

    def compute(params: Params, src: list[int], tgt_out: list[int]) -> np.ndarray:
        rows = np.full((2, 1, 32), PAD_ID, np.int32)
        rows[0, 0, : len(src)] = src
        rows[1, 0, : len(tgt_out)] = [BOS_ID, *tgt_out[:-1]]
        log_probs = np.asarray(forward(params, *rows))
        return log_probs[np.arange(len(tgt_out)), tgt_out]

    return compute


def assert_same(found: list[Translation], expected: list[Translation]) -> None:
    assert [x.text for x in found] == [x.text for x in expected]
    assert [x.length for x in found] == [x.length for x in expected]
    scores, others = ([each.score for each in them] for them in (found, expected))
    np.testing.assert_allclose(scores, others, rtol=1e-4, atol=1e-4)  # rounding differs by CPU
