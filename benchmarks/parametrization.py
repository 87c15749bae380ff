"""Measures where the best learning rate lies at each width: `python -m benchmarks.parametrization`.

Models of several widths learn the phrasebook at seven rates, with `model.parametrization=standard`
and with `mup`, whose base is the smallest width: there both are the same model, which is trained
once. The vocabulary, the batches and their order are the same for all. The score is the validation
loss after the last step, in nats per sub-word.

The best rate is that of the grid, and the least point of the parabola through the logarithms of
that rate and its two neighbours; at an end of the grid there is none. The file has the command,
all losses and the CPU seconds of each width; a plot goes beside it. The default, 35 runs with
each of two optimisers, needs about an hour of one core.
"""

import argparse
import dataclasses
import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from matplotlib.figure import Figure

from benchmarks.contest import write
from configs.quickstart import get_config
from t2t.api.train_run import plan_batches
from t2t.config.fields import Config
from t2t.config.files import override
from t2t.data.corpus_sources import check_paths, open_data
from t2t.data.loader import put_batch
from t2t.data.preparation import make_vocabulary
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.validation_scores import Validation
from t2t.runtime.mesh import make_mesh
from t2t.training.optimizer import make_optimizer
from t2t.training.provenance import find_revision, find_versions, now
from t2t.training.state import TrainState, init_state
from t2t.training.step import Metrics, make_train_step

# The middle of the grid.
RATES = {"adam": 4e-3, "muon": 1.2e-2}
SPACING, NUM_RATES = 2.0, 7
Losses = dict[float, float]  # by rate


class Best(NamedTuple):
    """The best rate of one width."""

    of_grid: float
    interpolated: float | None


def configure(arguments: argparse.Namespace, optimizer: str, **model: Any) -> Config:
    """The quickstart's recipe with two layers and small batches, for a short run."""
    changes = {
        "model.num_layers": 2,
        "data.batch_tokens": 512,
        "training.optimizer": optimizer,
        "training.learning_rate": RATES[optimizer],
        "training.steps": arguments.steps,
        "training.warmup_steps": max(arguments.steps // 10, 1),
        "training.source_use_pairs": 0,
        "data.cache_directory": arguments.cache,
    }
    return override(get_config(), changes | {f"model.{n}": v for n, v in model.items()})


class Corpus:
    """The vocabulary, the batches and the validation text, the same for all models."""

    def __init__(self, config: Config, mesh: Mesh, folder: Path):
        """Trains the vocabulary, and reads all batches of a run."""
        data = open_data(check_paths(config.data), config.tokenizer)
        self.mesh, self.validation = mesh, data.validation
        self.vocabulary: Vocabulary = make_vocabulary(config, folder, data.training)
        batches, _ = plan_batches(config, folder, self.vocabulary, mesh, data.training, 0)
        self.batches = [put_batch(batch, mesh) for batch in batches]


def train_at_rates(config: Config, corpus: Corpus, rates: Sequence[float]) -> Losses:
    """Trains the model once at each rate, all by one program; returns the validation losses."""
    optimizer = make_optimizer(config)
    structure, _ = init_state(config, optimizer, *corpus.vocabulary.sizes)
    validate_params = Validation(config, corpus.vocabulary, corpus.mesh, corpus.validation)

    @jax.jit
    def step(state: TrainState, batch: Any, rate: Any) -> tuple[TrainState, Metrics]:
        # The rate is an argument, so that one program serves all rates.
        training = dataclasses.replace(config.training, learning_rate=rate)
        own = dataclasses.replace(config, training=training)
        return make_train_step(structure, own, make_optimizer(own))(state, batch)

    losses = {}
    for rate in rates:
        _, state = init_state(config, optimizer, *corpus.vocabulary.sizes)
        for batch in corpus.batches:
            state, _ = step(state, batch, np.float32(rate))
        losses[rate] = validate_params(state.params, config.training.steps)["loss"]
    return losses


def find_best(losses: Losses) -> Best:
    """Returns the best rate, and the lowest point of a parabola through it and its neighbours."""
    rates = sorted(losses)
    values = [losses[rate] if math.isfinite(losses[rate]) else math.inf for rate in rates]
    best = int(np.argmin(values))
    near = slice(best - 1, best + 2)
    if best in (0, len(rates) - 1) or not np.all(np.isfinite(values[near])):
        return Best(rates[best], None)
    a, b, _ = np.polyfit(np.log(rates[near]), values[near], 2)
    return Best(rates[best], float(np.exp(-b / (2 * a))))


def describe(found: Mapping[tuple[str, str, int], Losses]) -> Iterator[str]:
    """Yields a line for each width, and one for how far the best rates lie apart."""
    for (optimizer, parametrization), keys in itertools.groupby(found, lambda key: key[:2]):
        best = {width: find_best(found[optimizer, parametrization, width]) for *_, width in keys}
        for width, (of_grid, exact) in best.items():
            loss = min(found[optimizer, parametrization, width].values())
            at = "at an end of the grid" if exact is None else f"interpolated {exact:.2g}"
            yield (
                f"{optimizer} {parametrization} width {width}: best rate {of_grid:.2g} ({at}), "
                f"loss {loss:.3f}"
            )
        rates = [each.interpolated or each.of_grid for each in best.values()]
        yield f"{optimizer} {parametrization}: the best rate moves by {max(rates) / min(rates):.2f}"


def draw(found: Mapping[tuple[str, str, int], Losses]) -> Figure:
    """Draws loss against rate, a panel for each optimiser and parametrisation."""
    optimizers, kinds = (dict.fromkeys(key[i] for key in found) for i in range(2))
    figure = Figure(figsize=(4.5 * len(kinds), 3.4 * len(optimizers)), layout="constrained")
    panels = figure.subplots(len(optimizers), len(kinds), sharey="row", squeeze=False)
    for row, optimizer in zip(panels, optimizers, strict=True):
        for axes, kind in zip(row, kinds, strict=True):
            for (*which, width), losses in found.items():
                if which == [optimizer, kind]:
                    rates = sorted(losses)
                    axes.plot(rates, [losses[r] for r in rates], marker="o", label=str(width))
                    best = find_best(losses).of_grid
                    axes.plot([best], [losses[best]], marker="*", markersize=12, color="black")
            axes.set_xscale("log")
            axes.set_title(f"{optimizer}, {kind}")
            axes.set_xlabel("peak learning rate")
        row[0].set_ylabel("validation loss, nats per sub-word")
        row[0].legend(title="d_model")
    return figure


def main() -> None:
    """Runs the benchmark, and writes its JSON and its plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--optimizers", nargs="+", choices=[*RATES], default=[*RATES])
    parser.add_argument("--steps", type=int, default=120, help="length of each run")
    parser.add_argument("--rates", type=int, default=NUM_RATES, help="rates of the grid")
    parser.add_argument("--cache", default="~/.cache/t2t", help="folder of tokenised text")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/parametrization.json")
    )
    arguments = parser.parse_args()
    base = min(arguments.widths)
    grid = [SPACING ** (i - arguments.rates // 2) for i in range(arguments.rates)]
    mesh = make_mesh(get_config().mesh)
    found: dict[tuple[str, str, int], Losses] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh):
        corpus = Corpus(configure(arguments, "adam"), mesh, Path(folder))
        for optimizer in arguments.optimizers:
            rates = [RATES[optimizer] * factor for factor in grid]
            for kind, width in itertools.product(("standard", "mup"), sorted(arguments.widths)):
                started = time.process_time()
                if (kind, width) == ("mup", base):  # bit for bit the standard model
                    found[optimizer, kind, width] = found[optimizer, "standard", width]
                    continue
                model = {"d_model": width, "d_ff": 4 * width}
                if kind == "mup":
                    model |= {"parametrization": kind, "base_width": base}
                config = configure(arguments, optimizer, **model)
                found[optimizer, kind, width] = train_at_rates(config, corpus, rates)
                seconds[f"{optimizer} {kind} {width}"] = time.process_time() - started
                print(optimizer, kind, width, found[optimizer, kind, width], flush=True)
    lines = [*describe(found)]
    print(*lines, sep="\n")
    result = {
        "measured": now(),
        "revision": find_revision(),
        "versions": find_versions(("jax", "optax")),
        "steps": arguments.steps,
        "cpu_seconds": seconds,
        "losses": {" ".join(map(str, key)): losses for key, losses in found.items()},
        "best": {" ".join(map(str, key)): find_best(each)._asdict() for key, each in found.items()},
        "summary": lines,
    }
    write(arguments.output, result)
    draw(found).savefig(arguments.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
