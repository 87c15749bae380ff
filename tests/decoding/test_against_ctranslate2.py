"""Export, model and search against CTranslate2, an independent implementation, and its engine.

CTranslate2 ends a hypothesis only where EOS is among the W best continuations, not 2W, so ours may
find a better one. Here the best are far apart.
"""

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import Config, ConfigError, DecodingConfig, ModelConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import Vocabulary, train_vocabulary
from t2t.decoding.translation import Translation
from t2t.decoding.translator import Translator
from t2t.evaluation.load_models import RunModel
from t2t.model.parameters import Params
from t2t.ops.build_model import Members, init_model
from tests.tiny_run import PAIRS

SENTENCES = [src for src, _ in PAIRS] + ["Dogs run.", "   ", "She sells the fish to the man."] * 3
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm, rotary": {"norm_position": "pre", "position": "rotary"},
    "learned positions, SwiGLU, no tables shared, shallow decoder": {
        "position": "learned",
        "feed_forward": "swiglu",
        "tie_embeddings": "none",
        "encoder_layers": 2,
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
    # of a narrower base the random model would be less sure of itself
    "mup": {"parametrization": "mup", "base_width": 32},
}
CASES = [
    ("paper", 4),
    pytest.param("paper", 1, marks=pytest.mark.slow),
    *(pytest.param(name, 4, marks=pytest.mark.slow) for name in VARIANTS if name != "paper"),
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    config = dataclasses.replace(Config().tokenizer, vocab_size=390, shared=False)
    return train_vocabulary([ListCorpus("toy", PAIRS)], config, tmp_path_factory.mktemp("vocab"))


def make_config(beam_size: int = 4, **model: Any) -> Config:
    fields = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
    return Config(
        model=ModelConfig(**(fields | {"tie_embeddings": "decoder"} | model)),
        decoding=DecodingConfig(beam_size=beam_size, max_extra_length=4, batch_size=3),
    )


def make_params(model: ModelConfig, vocabulary: Vocabulary) -> Params:
    """Random in every array, but sure of themselves, with ends, and without a wish for padding."""
    _, params = init_model(model, *vocabulary.sizes, jax.random.key(1))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    noisy = [
        3 * x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)
    ]
    params = jax.tree.unflatten(tree, noisy)
    last = params["decoder"][model.depth[1] - 1]["feed_forward_residual"]["norm"]
    norm = params["decoder_norm"] if model.norm_position == "pre" else last
    norm["bias"] = 2 * jax.random.normal(jax.random.key(2), norm["bias"].shape)
    direction = norm["bias"] / jnp.linalg.norm(norm["bias"])
    output = params.get("own_output_embedding", params["tgt_embedding"])
    table = output["table"].at[jnp.array([PAD_ID, BOS_ID])].set(-20 * direction)
    output["table"] = table.at[EOS_ID].add(0.3 * direction)
    return params


def make_translator(
    name: str, compute_type: str | None, config: Config, vocabulary: Vocabulary
) -> Translator:
    """The translator of a model that is in no run directory."""
    model: Any = SimpleNamespace(
        config=config, vocabulary=vocabulary, members=Members((config.model,)),
        _described=None, _programs=None,
    )  # fmt: skip
    return RunModel.make_translator(model, name, compute_type)


def translate(
    name: str, config: Config, vocabulary: Vocabulary, params: Params
) -> list[Translation]:
    return make_translator(name, None, config, vocabulary).translate(params, SENTENCES)


@pytest.mark.parametrize(("name", "beam_size"), CASES)
def test_translations_and_scores_are_those_of_jax(
    vocabulary: Vocabulary, name: str, beam_size: int
) -> None:
    config = make_config(beam_size, **VARIANTS[name])
    params = make_params(config.model, vocabulary)
    expected = translate("jax", config, vocabulary, params)
    found = translate("ctranslate2", config, vocabulary, params)
    assert [x.text for x in found] == [x.text for x in expected]
    assert [x.length for x in found] == [x.length for x in expected]
    values = [[(x.score, x.log_prob) for x in side] for side in (found, expected)]
    # Such sure models are sensitive: parameters that differ in their last bit move a score by 2e-3.
    np.testing.assert_allclose(values[0], values[1], atol=5e-3)
    limits = [len(ids) + 4 for ids in vocabulary.src.encode(SENTENCES)]
    at_limit = {x.length == limit for x, limit in zip(found, limits, strict=True)}
    assert at_limit == {False, True}


def test_other_parameters_are_another_model(vocabulary: Vocabulary) -> None:
    translator = make_translator("ctranslate2", None, make_config(), vocabulary)
    params = make_params(make_config().model, vocabulary)
    first = translator.translate(params, SENTENCES)
    other = jax.tree.map(lambda x: -x, params)
    assert translator.translate(other, SENTENCES) != first
    assert translator.translate(params, SENTENCES) == first


def test_what_an_engine_lacks_is_refused(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, compute_type: str | None, message: str, **model: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            make_translator(name, compute_type, make_config(**model), vocabulary)

    refuse("ctranslate2", None, "it supports sinusoidal, sinusoidal_halves", position="alibi")
    refuse("ctranslate2", "int3", "--compute_type=int3 .* use one of .*float32.*int8")
    tagged = dataclasses.replace(vocabulary, tgt=copy.copy(vocabulary.tgt))
    tagged.tgt.tag_ids = (5,)
    with pytest.raises(ConfigError, match=r"direction_tags='both' .* needs --backend=jax"):
        make_translator("ctranslate2", None, make_config(), tagged)
    refuse("torch", None, "--backend='torch' is unknown; use jax or ctranslate2")
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        refuse("ctranslate2", None, "works in one process")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuse("ctranslate2", None, r"pip install 'ctranslate2>=4\.6\.3,<5'")
