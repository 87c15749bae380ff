"""The first five minutes on a GPU: gradients of attention, a short training, and each fast change.

What decides whether t2t trains on this GPU comes first, then what makes it fast.

- Attention by cuDNN, for many numbers of queries and keys, beside the formula in float32. In some
  versions its gradients are not finite where a tile of queries or keys is not full, or where all
  logits of a query are far below 0 (t2t/ops/cudnn_attention.py).
- 100 steps of the quickstart, and their loss on a CPU.
- 20 steps of base, as the training loop makes them; then without each change of `CHANGES`, and with
  the kernel of norms that is off by default. All were made without a GPU, by counts of the
  compiler.
"""

import contextlib
import dataclasses
import math
import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.gpu_steps import twins
from benchmarks.gpu_steps.results import NOT_FINITE, Results, end_with_parent, make_parser
from benchmarks.gpu_steps.resume import TOY, Quickstart, read_end
from benchmarks.gpu_steps.training import BASE, Step
from t2t.config.fields import ModelConfig
from t2t.model import attention, loss
from t2t.model.kv_cache import KeyValue
from t2t.ops import gradient_norm
from t2t.ops.select_kernels import FAST, FAST_ON_GPU, choose_policy

DEVICE, QUICKSTART, FULL = "device", "quickstart, 100 steps", "base, 20 steps"
QUERIES, KEYS = (2, 8, 32, 62, 64, 96, 128, 192, 256), (64, 128, 192, 256)
TOY_QUERIES, TOY_KEYS = (2, 6), (8, 16)
LOGITS = {"about 0": 0.0, "about -120": -120.0}
NEAR = 0.05  # a mean error, as a share of the mean absolute value; bfloat16 gives 0.002 to 0.01
STEPS, CPU_LOSS = 100, 2.760  # validation loss after these steps on a CPU in float32, seed 0
TIMED = 20

# Name -> what is left out: an operation with the version that is used instead, or the norm.
CHANGES: dict[str, tuple[str, Callable[..., Any]]] = {
    "exp in the product": ("smoothed_cross_entropy", loss.smoothed_cross_entropy),
    "bias in the product": ("affine", FAST["affine"]),
    "causal attention": ("causal_attention", FAST["attention"]),
    "norm over stacks": ("norm", optax.tree.norm),
}
FUSED_NORM = "with the fused norm"  # model.kernels=fused_norm
VARIANTS = [*(f"without {name}" for name in CHANGES), FUSED_NORM]  # of base


class Shape(NamedTuple):
    """A call of attention."""

    queries: int
    keys: int
    causal: bool


def draw_mask(shape: Shape) -> np.ndarray:
    """A causal mask, or one of packed sentences, in which the last eighth of queries see no key."""
    index, keys = np.arange(shape.queries)[:, None], np.arange(shape.keys)
    if shape.causal:
        return keys <= index
    segments = index * 4 // shape.queries, keys * 4 // shape.keys
    return (segments[0] == segments[1]) & (index < max(1, shape.queries * 7 // 8))


def differentiate(
    function: Callable[..., Any], shape: Shape, dtype: str
) -> tuple[Callable[..., Any], str]:
    """Returns a compiled function and what computes attention in it.

    Called with `far`, it returns attention's result and gradients. `far` is added to all logits,
    which changes no softmax.
    """
    random = np.random.default_rng(0)
    batch, heads, width = 2, 2, 64
    sizes = shape.queries, shape.keys, shape.keys
    drawn = [random.standard_normal((batch, size, heads, width), np.float32) for size in sizes]
    mask = jnp.asarray(np.broadcast_to(draw_mask(shape), (batch, 1, shape.queries, shape.keys)))
    sees = mask.any(axis=-1)[:, 0, :, None, None]
    rounded = [jnp.asarray(x, jnp.bfloat16).astype(dtype) for x in drawn]

    def run(far: Any, query: Any, keys: Any, values: Any) -> list[Any]:
        query = query.at[..., 0].set(32)
        keys = keys.at[..., 0].set((far * width**0.5 / 32).astype(keys.dtype))

        def attend(query: Any, keys: Any, values: Any) -> Any:
            return jnp.where(sees, function(query, KeyValue(keys, values), mask), 0)

        value, pull_back = jax.vjp(attend, query, keys, values)
        cotangent = np.cos(np.arange(value.size, dtype=np.float32)).reshape(value.shape)
        return [value, *pull_back(jnp.asarray(cotangent, jnp.bfloat16).astype(dtype))]

    compiled = jax.jit(run).lower(jnp.float32(0), *rounded).compile()

    def call(far: float) -> list[np.ndarray]:
        return [np.asarray(x, np.float64) for x in compiled(jnp.float32(far), *rounded)]

    return call, twins.name_attention(compiled.as_text() or "")


class Compared(NamedTuple):
    """Attention beside its formula, for one shape."""

    errors: dict[str, float]  # the mean error of the worst array for each of `LOGITS`; inf: NaN
    by: str  # what computed it, or why it failed


def compare_attention(shape: Shape) -> Compared:
    """Compares one shape."""
    try:
        return _compare_attention(shape)
    except Exception as error:  # of one shape; the others are compared all the same
        return Compared(dict.fromkeys(LOGITS, math.inf), f"failed: {error}"[:200])


def _compare_attention(shape: Shape) -> Compared:
    policy = choose_policy(ModelConfig(dtype="bfloat16"))
    fast = policy.causal_attention if shape.causal else policy.attention
    own, module = differentiate(fast, shape, "bfloat16")
    formula, _ = differentiate(attention.dot_product_attention, shape, "float32")
    errors = {name: twins.compare(own(far), formula(far))["mean"] for name, far in LOGITS.items()}
    return Compared(errors, module)


def check_attention(results: Results, causal: bool, dry_run: bool) -> None:
    """Writes a row for each of `LOGITS`."""
    queries, keys = (TOY_QUERIES, TOY_KEYS) if dry_run else (QUERIES, KEYS)
    shapes = [Shape(t, s, causal) for t in queries for s in keys]
    names = {logits: name_attention(causal, logits) for logits in LOGITS}
    with contextlib.ExitStack() as rows, ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in names.values():
            rows.enter_context(results.measuring(name))
        found = list(pool.map(compare_attention, shapes))
        for logits, name in names.items():
            errors = {
                f"{s.queries} x {s.keys}": one.errors[logits]
                for s, one in zip(shapes, found, strict=True)
            }
            text = f"{describe_errors(errors)}; by {', '.join({one.by: None for one in found})}"
            results.add(name, text, errors=errors, by=[one.by for one in found])


def name_attention(causal: bool, logits: str) -> str:
    """Returns the name of a row."""
    return f"attention, {'causal' if causal else 'packed'} mask, logits {logits}"


def describe_errors(errors: dict[str, float]) -> str:
    """Names the shapes, queries x keys, whose result or gradients are wrong."""
    infinite = [name for name, error in errors.items() if not np.isfinite(error)]
    wrong = [name for name, error in errors.items() if NEAR < error < np.inf]
    worst = max((error for error in errors.values() if np.isfinite(error)), default=np.inf)
    text = f"{len(errors)} shapes, mean errors up to {worst:.1e} of the formula's mean"
    text += f"; FAR from the formula: {', '.join(wrong)}" * bool(wrong)
    return text + f"; {NOT_FINITE}: {', '.join(infinite)}" * bool(infinite)


@contextlib.contextmanager
def trace_variant(variant: str) -> Iterator[dict[str, Any]]:
    """Traces programs of one of `VARIANTS` inside of this context; returns fields to set."""
    if variant == FUSED_NORM:
        yield {"kernels": "fused_norm"}
    else:
        with leaving_out(variant.removeprefix("without ")):
            yield {}


@contextlib.contextmanager
def leaving_out(change: str) -> Iterator[None]:
    """Traces programs without one of the changes inside of this context."""
    name, instead = CHANGES[change]
    place = vars(gradient_norm) if name == "norm" else FAST_ON_GPU
    before = place[name]
    place[name] = instead
    try:
        yield
    finally:
        place[name] = before


def time_steps(step: Step) -> dict[str, Any]:
    """Measures steps as the loop makes them: time, losses, and how many were skipped."""
    step.start()
    step.run(3)
    metrics, seconds = step.run(TIMED + 1)
    return {
        "ms": 1000 * statistics.median(seconds),
        "losses": [float(metrics[0].loss), float(metrics[-1].loss)],
        "skipped": int(metrics[-1].skipped),
    }


def describe_steps(found: dict[str, Any]) -> str:
    """Formats what `time_steps` found."""
    first, last = found["losses"]
    losses = NOT_FINITE if found["skipped"] else f"loss {first:.2f}, then {last:.2f}"
    return f"{found['ms']:.1f} ms a step; {losses}"


def time_base(results: Results, dry_run: bool) -> None:
    """Writes the row of base, then those of its variants, which are compiled side by side."""
    config = BASE.config(dry_run)
    if FULL in results.list_missing():
        with results.measuring(FULL):
            step = Step(config)
            seconds = step.compile()
            found = time_steps(step)
            del step  # frees the memory
            text = f"{describe_steps(found)}; compiled in {seconds:.0f} s"
            results.add(FULL, text, **found, compile_seconds=seconds)
    missing = [name for name in VARIANTS if f"{FULL}, {name}" in results.list_missing()]
    steps = {}
    for name in missing:
        with results.measuring(f"{FULL}, {name}"), trace_variant(name) as fields:
            own = dataclasses.replace(config, model=dataclasses.replace(config.model, **fields))
            steps[name] = Step(own)
    with ThreadPoolExecutor(len(VARIANTS)) as pool:
        pending = {name: pool.submit(step.compile) for name, step in steps.items()}
    for name, compiling in pending.items():
        with results.measuring(row := f"{FULL}, {name}"):
            compiling.result()
            found = time_steps(steps.pop(name))
            results.add(row, describe_steps(found), **found)


def main() -> None:
    """Does all of it, in the order of its value."""
    flags = make_parser(__doc__).parse_args()
    end_with_parent()
    masks = True, False
    rows = [name_attention(causal, logits) for causal in masks for logits in LOGITS]
    rows += [QUICKSTART, FULL, *(f"{FULL}, {name}" for name in VARIANTS)]
    results = Results(flags.output, [DEVICE, *rows])
    devices = jax.devices()
    kind, platform = devices[0].device_kind, devices[0].platform
    results.add(DEVICE, f"{len(devices)} x {kind}", platform=platform, kind=kind)
    if platform != "gpu" and not flags.dry_run:
        return
    with ThreadPoolExecutor(1) as pool:  # meanwhile nothing is timed
        training = pool.submit(run_quickstart, results, flags.output.parent, flags.dry_run)
        for causal in masks:
            if any(name_attention(causal, each) in results.list_missing() for each in LOGITS):
                check_attention(results, causal, flags.dry_run)
        training.result()
    time_base(results, flags.dry_run)


def run_quickstart(results: Results, folder: Path, dry_run: bool) -> None:
    """Writes the row of the quickstart."""
    if QUICKSTART not in results.list_missing():
        return
    with results.measuring(QUICKSTART):
        steps = 20 if dry_run else STEPS
        overrides = f"--config.training.warmup_steps={steps // 5}", *(TOY if dry_run else ())
        quickstart = Quickstart(folder / "first" / "quickstart", "", steps, overrides)
        quickstart.finish("run")
        end = read_end(quickstart.folder / "run")
        skipped, reached = end["train/skipped"], end["validation/loss"]
        text = f"{skipped} of {steps} steps skipped, validation loss {reached:.3f}"
        text += "" if dry_run else f", on a CPU {CPU_LOSS}"
        text = f"{NOT_FINITE}: {text}" if skipped else text
        results.add(QUICKSTART, text, skipped=skipped, validation_loss=reached)


if __name__ == "__main__":
    main()
