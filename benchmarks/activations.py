"""Measures the sizes of activations at several widths: `python -m benchmarks.activations`.

The check of coordinates of Yang et al. 2022 (appendix D.1): a model of each width learns a few
steps of one batch at one rate, and the root mean squares of what its layers return, and of how far
that has moved, are compared on logarithmic scales. With `model.parametrization=mup` those of layers
hardly depend on the width. The file has all sizes; both it and the plot take a minute.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from benchmarks.contest import write
from t2t.config.fields import Config, ModelConfig, TrainingConfig
from t2t.config.rules import validate
from t2t.data.batch import BOS_ID, UNK_ID, DeviceBatch
from t2t.model.parameters import Params, merge
from t2t.model.stack import Residual, Shared
from t2t.ops.build_model import init_model
from t2t.training.optimizer import make_optimizer
from t2t.training.provenance import find_revision, find_versions, now

WIDTHS = 64, 128, 256, 512
WIDE = {"parametrization": "mup", "base_width": 64}
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
    """Returns random pairs of `LENGTH` tokens."""
    draw = np.random.default_rng(0).integers(UNK_ID + 1, VOCAB_SIZE, (2, ROWS, LENGTH))
    src, tgt_out = jnp.asarray(draw, jnp.int32)
    tgt_in = jnp.pad(tgt_out[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    return DeviceBatch(src, tgt_in, tgt_out, jnp.ones((ROWS, LENGTH)))


def configure(optimizer: str, **model: Any) -> Config:
    """Returns a config of one layer with this optimiser and these fields of the model."""
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

        def after(self: Residual, x: Array, y: Array, key: None) -> Shared:
            shared = own(self, x, y, key)
            seen.extend([y, shared.residual])
            return shared

        # What is in a loop cannot be taken out of it.
        with mock.patch.object(Residual, "after", own if config.model.scan_layers else after):
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


def draw(sizes: dict[str, dict[int, Float[np.ndarray, "layers steps"]]]) -> Figure:
    """Draws the median over layers against the width, a panel for each optimiser."""
    optimizers = dict.fromkeys(name.split()[0] for name in sizes)
    figure = Figure(figsize=(4.5 * len(optimizers), 3.4), layout="constrained")
    panels = figure.subplots(1, len(optimizers), sharey=True, squeeze=False)[0]
    for axes, optimizer in zip(panels, optimizers, strict=True):
        for kind, style in (("standard", "--"), ("mup", "-")):
            medians = np.array(
                [np.median(x, axis=0) for x in sizes[f"{optimizer} {kind}"].values()]
            )
            for number, step in enumerate(STEPS, start=1):
                label = f"{kind}, {step} step{'s' * (step > 1)}"
                color = f"C{number - 1}"
                axes.plot(WIDTHS, medians[:, number], style, color=color, marker="o", label=label)
        axes.set(xscale="log", yscale="log", title=optimizer, xlabel="d_model")
        axes.set_xticks(WIDTHS, labels=[str(width) for width in WIDTHS])
        axes.minorticks_off()
    panels[0].set_ylabel("change of activations (RMS)")
    panels[0].legend(fontsize="small")
    return figure


def main() -> None:
    """Runs the benchmark, and writes its JSON and its plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/activations.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/pictures/activations.svg"))
    arguments = parser.parse_args()
    sizes = {
        f"{optimizer} {kind}": {
            width: measure(configure(optimizer, d_model=width, d_ff=width, **own))
            for width in WIDTHS
        }
        for optimizer in ("adam", "muon")
        for kind, own in (("standard", {}), ("mup", WIDE))
    }
    result = {
        "measured": now(),
        "revision": find_revision(),
        "versions": find_versions(("jax", "optax")),
        "steps": [0, *STEPS],  # the sizes at first, and of the changes after so many
        "sizes": {
            name: {str(width): each.tolist() for width, each in own.items()}
            for name, own in sizes.items()
        },
    }
    write(arguments.output, result)
    draw(sizes).savefig(arguments.plot)


if __name__ == "__main__":
    main()
