"""Sentences and small random models for the tests of the translator."""

from typing import Any

import jax
import numpy as np

from t2t.config.fields import Config, DecodingConfig, ModelConfig
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translation import Translation
from t2t.model.parameters import Params
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


def assert_same(found: list[Translation], expected: list[Translation]) -> None:
    assert [x.text for x in found] == [x.text for x in expected]
    assert [x.length for x in found] == [x.length for x in expected]
    scores, others = ([each.score for each in them] for them in (found, expected))
    np.testing.assert_allclose(scores, others, rtol=1e-4, atol=1e-4)  # rounding differs by CPU
