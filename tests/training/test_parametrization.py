"""Parametrisations: equal at the base, and activations that no width or depth makes larger.

The check of coordinates is that of Yang et al. 2022 (appendix D.1): a model of each width learns a
few steps of one batch at one rate, and the root mean squares of what its layers return, and of how
far that has moved, are compared on logarithmic scales.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float

from t2t.config.fields import Config, ModelConfig, TrainingConfig
from t2t.config.rules import validate
from t2t.data.batch import BOS_ID, UNK_ID, DeviceBatch
from t2t.model.parameters import Params, merge
from t2t.model.stack import Residual
from t2t.ops.build_model import init_model
from t2t.training.optimizer import make_optimizer

VOCAB_SIZE, ROWS, LENGTH = 32, 4, 8
STEPS = (1, 5, 10)  # after which sizes are compared
RATES = {"adam": 1e-3, "nadamw": 1e-3, "muon": 3e-3}
BASE = Config(
    model=ModelConfig(
        num_layers=1, d_model=64, d_ff=64, num_heads=8, norm_position="pre", dropout=0.0,
        dtype="float32",
    ),
    training=TrainingConfig(schedule="constant", warmup_steps=1, label_smoothing=0.0),
)  # fmt: skip


def make_batch() -> DeviceBatch:
    draw = np.random.default_rng(0).integers(UNK_ID + 1, VOCAB_SIZE, (2, ROWS, LENGTH))
    src, tgt_out = jnp.asarray(draw, jnp.int32)
    tgt_in = jnp.pad(tgt_out[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    return DeviceBatch(src, tgt_in, tgt_out, jnp.ones((ROWS, LENGTH)))


def configure(optimizer: str, **model: Any) -> Config:
    training = dataclasses.replace(
        BASE.training, optimizer=optimizer, learning_rate=RATES[optimizer]
    )
    return validate(Config(model=dataclasses.replace(BASE.model, **model), training=training))


def train(config: Config, steps: int) -> tuple[Params, list[Array]]:
    """Returns the parameters, and what each sub-layer, residual and table returned, by steps."""
    structure, params = init_model(config.model, VOCAB_SIZE, VOCAB_SIZE, jax.random.key(0))
    optimizer, batch = make_optimizer(config), make_batch()

    def compute_loss(params: Params) -> tuple[Float[Array, ""], list[Array]]:
        seen = list[Array]()
        own = Residual.after

        def after(self: Residual, x: Array, y: Array, key: None) -> Array:
            seen.extend([y, own(self, x, y, key)])
            return seen[-1]

        with pytest.MonkeyPatch.context() as patch:
            if not config.model.scan_layers:  # what is in a loop cannot be taken out of it
                patch.setattr(Residual, "after", after)
            model = merge(structure, params)
            hidden, auxiliary = model.compute_hidden(batch.src, batch.tgt_in)
        logits = model.compute_logits(hidden)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.tgt_out)
        return losses.mean() + auxiliary.get("loss", 0.0), [*seen, hidden, logits]

    @jax.jit
    def run(params: Params) -> tuple[Params, list[Array]]:
        def step(state: Any, _: None) -> tuple[Any, list[Array]]:
            params, opt_state = state
            gradient, seen = jax.grad(compute_loss, has_aux=True)(params)
            updates, opt_state = optimizer.update(gradient, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), seen

        state = params, optimizer.init(params)
        (params, _), seen = jax.lax.scan(step, state, length=steps)
        return params, seen

    return run(params)


def measure(config: Config) -> Float[np.ndarray, "layers steps"]:
    """Sizes of what each layer returns at first, and of its changes."""
    _, seen = train(config, STEPS[-1] + 1)
    parts = [[x[0], *(x[step] - x[0] for step in STEPS)] for x in seen]
    return np.array([[jnp.sqrt(jnp.mean(part**2)) for part in each] for each in parts])


def find_slopes(
    sizes: Sequence[int], make_config: Callable[[int], Config]
) -> Float[np.ndarray, "layers steps"]:
    """Slopes of the logarithms of the sizes of activations against that of width or depth."""
    found = np.log(np.stack([measure(make_config(size)) for size in sizes]))
    x = np.log(sizes)
    slopes, _ = np.polyfit(x, found.reshape(len(x), -1), 1)
    return slopes.reshape(found.shape[1:])


WIDE = {"parametrization": "mup", "base_width": 64}


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
        ("muon", {"heads grow": True}),
        ("nadamw", {"heads grow": True, "num_kv_heads": 4, "position": "relative_by_layer"}),
        (
            "adam",
            {
                "feed_forward": "moe",
                "num_experts": 4,
                "tie_embeddings": "none",
                "position": "learned",
            },
        ),
        ("muon", {"feed_forward": "moe", "num_experts": 4, "norm_position": "post"}),
    ],
)
def test_variants_do_not_grow_with_the_width(optimizer: str, changes: dict[str, Any]) -> None:
    def widen(width: int) -> Config:
        own = {**changes}
        if own.pop("heads grow", False):
            own |= {"num_heads": width // 8, "base_d_k": 8}
        return configure(optimizer, d_model=width, d_ff=width, **WIDE, **own)

    slopes = find_slopes((64, 256), widen)
    print(slopes.round(2).T)
    assert_flat(slopes)


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_changes_do_not_grow_with_the_depth(optimizer: str) -> None:
    def deepen(depth: int, **changes: Any) -> Config:
        return configure(optimizer, num_layers=depth, scan_layers=True, **changes)

    own = WIDE | {"base_layers": 2}
    s1 = find_slopes((2, 4, 8, 16), lambda depth: deepen(depth, **own))
    s2 = find_slopes((2, 4, 8, 16), deepen)
    print(s1.round(2).T)
    print(s2.round(2).T)


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
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(x, y)
