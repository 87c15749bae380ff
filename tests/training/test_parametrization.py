"""Parametrisations: equal at the base, and activations that no width or depth makes larger.

`benchmarks/activations.py` measures the sizes of activations, and draws them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Float

from benchmarks.activations import (
    VOCAB_SIZE,
    WIDE,
    configure,
    make_batch,
    measure,
    train,
)
from t2t.config.fields import Config, ConfigError, TrainingConfig
from t2t.config.variants import register
from t2t.interop.standard_form import drop_factors, fold_factors
from t2t.model.parameters import merge
from t2t.model.parametrization import Factors
from t2t.ops.build_model import abstract_model, init_model
from t2t.training.optimizer import describe_optimizer, make_optimizer
from t2t.training.parameter_groups import group_parameters, scale_settings
from t2t.training.schedule import make_schedule


def find_slopes(
    sizes: Sequence[int], make_config: Callable[[int], Config]
) -> Float[np.ndarray, "layers steps"]:
    """Slopes of the logarithms of the sizes of activations against that of width or depth."""
    found = np.log(np.stack([measure(make_config(size)) for size in sizes]))
    x = np.log(sizes)
    slopes, _ = np.polyfit(x, found.reshape(len(x), -1), 1)
    return slopes.reshape(found.shape[1:])


def assert_flat(slopes: Float[np.ndarray, "layers steps"]) -> None:
    """The logits come last: at first they fall with the width, as table 8 wants."""
    assert slopes.max() < 0.15
    assert slopes[:-1].min() > -0.15


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_activations_and_their_changes_do_not_grow_with_the_width(optimizer: str) -> None:
    def widen(width: int, **changes: Any) -> Config:
        return configure(optimizer, d_model=width, d_ff=width, **changes)

    assert_flat(find_slopes((64, 128, 256, 512), lambda width: widen(width, **WIDE)))
    of_standard = find_slopes((64, 256), widen)
    assert np.median(of_standard[:, 1:]) > 0.4


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        ("muon", {"heads": "grow"}),
        ("nadamw", {"heads": "grow", "grouped": True, "position": "relative_by_layer"}),
        ("adam", {"feed_forward": "moe", "tie_embeddings": "none", "position": "learned"}),
        ("muon", {"feed_forward": "moe", "norm_position": "post", "position": "alibi"}),
    ],
)
def test_nor_do_those_of_variants_on_average(optimizer: str, changes: dict[str, Any]) -> None:
    def widen(width: int) -> Config:
        own = {"num_experts": 4} | changes
        if own.pop("heads", ""):
            own |= {"num_heads": width // 8, "base_d_k": 8}
        if own.pop("grouped", False):
            own |= {"num_kv_heads": width // 16}
        return configure(optimizer, d_model=width, d_ff=width, **WIDE, **own)

    slopes = np.median(find_slopes((64, 256), widen)[:-1], axis=0)
    assert np.abs(slopes).max() < 0.15


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("muon", marks=pytest.mark.slow)])
def test_changes_hardly_grow_with_the_depth(optimizer: str) -> None:
    def deepen(layers: int, **changes: Any) -> Config:
        return configure(
            optimizer, d_model=32, d_ff=32, num_heads=4, num_layers=layers, kind="decoder_only",
            scan_layers=True, **changes,
        )  # fmt: skip

    own = {"parametrization": "mup", "base_width": 32, "base_layers": 2}
    found = find_slopes((2, 8), lambda layers: deepen(layers, **own))
    of_standard = find_slopes((2, 8), deepen)
    assert found[:, 1:].max() < 0.3
    assert of_standard[0, 1:].min() > 0.5  # of the stack's output


@pytest.mark.parametrize(
    "model",
    [
        {"base_layers": 1, "base_d_k": 8, "position": "relative", "output_bias": True},
        {"kind": "decoder_only", "feed_forward": "moe", "position": "learned"},
    ],
)
@pytest.mark.parametrize("optimizer", ["adam", "nadamw", "muon"])
def test_base_is_the_standard_model_bit_for_bit(optimizer: str, model: dict[str, Any]) -> None:
    standard = {name: value for name, value in model.items() if not name.startswith("base_")}
    found = [configure(optimizer, **each) for each in (WIDE | model, standard)]
    for config in found:
        config.training.weight_decay = 0.1 if optimizer != "adam" else 0.0
    one, other = (train(config, 2) for config in found)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(x, y)


def test_weight_decay_and_epsilon_follow_the_rate() -> None:
    """Decay times rate is the same at all widths (Dey et al. 2025, table 1)."""
    config = configure("nadamw", d_model=256, norm_position="pre", **WIDE)
    config.training.weight_decay, config.training.adam_eps = 0.1, 1e-8
    find, groups = group_parameters(config)
    of_matrix = find("encoder.0.feed_forward.inner.weight")
    assert of_matrix == Factors(rate=1 / 4, epsilon=1 / 4, decay=4)
    assert find("tgt_embedding.table") == Factors(epsilon=1 / 4)
    assert len(groups) == 2
    scaled = scale_settings(config, of_matrix).training
    assert (scaled.weight_decay, scaled.adam_eps) == (0.4, 2.5e-9)


def test_log_says_which_rates_parameters_have() -> None:
    config = configure("muon", d_model=256, d_ff=64, **WIDE)
    structure_and_params = abstract_model(config.model, VOCAB_SIZE, VOCAB_SIZE)
    lines = describe_optimizer(config, make_optimizer(config), structure_and_params[1])
    assert any(
        line.endswith("parameters are trained at 0.5 times the learning rate") for line in lines
    )


def test_rate_of_noam_is_that_of_the_base() -> None:
    wide, base = (
        make_schedule(
            TrainingConfig(), configure("adam", d_model=width, **WIDE).model.reference_width
        )
        for width in (256, 64)
    )
    assert float(wide(100)) == float(base(100))


@pytest.mark.usefixtures("own_variants")
def test_registered_parts_are_refused() -> None:
    register("model.norm", "own")(lambda config, policy: None)
    with pytest.raises(
        ConfigError, match=r"^model\.parametrization='mup' .* model\.norm='own'; use"
    ):
        configure("adam", norm="own", **WIDE)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_position": "post", "attention_bias": True, "feed_forward": "swiglu"},
        {"base_layers": 1, "num_layers": 2, "position": "learned", "tie_embeddings": "none"},
        {"norm": "rms", "position": "relative", "attention_scale": False, "base_d_k": 2},
        {"embedding_scale": False, "tie_embeddings": "decoder", "num_kv_heads": 2},
        {
            "norm_position": "post",
            "feed_forward": "none",
            "position": "rotary",
            "output_bias": True,
        },
    ],
    ids=str,
)
def test_exported_model_computes_the_same(changes: dict[str, Any]) -> None:
    fields = {"d_model": 32, "d_ff": 16, "num_heads": 4, "base_width": 8, "parametrization": "mup"}
    config = configure("adam", **(fields | changes)).model
    structure, params = init_model(config, VOCAB_SIZE, VOCAB_SIZE, jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), params)
    standard, _ = init_model(drop_factors(config), VOCAB_SIZE, VOCAB_SIZE, jax.random.key(0))
    batch = make_batch()
    wanted = merge(structure, params)(batch.src, batch.tgt_in)
    folded = jax.tree.map(jnp.asarray, fold_factors(config, params))
    found = merge(standard, folded)(batch.src, batch.tgt_in)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    assert np.abs(merge(standard, params)(batch.src, batch.tgt_in) - wanted).max() > 0.1
