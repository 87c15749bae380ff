"""Compares the fast twins of this platform and their formulas with the formulas in float64.

Values and gradients, in bfloat16 and float32. The largest error is divided by the largest value,
the mean error by the mean absolute value; of a twin's value and gradients the worst counts. A
process on the CPU computes the formulas of t2t/model in float64, from the same operands.

XLA takes its default kernels here: to time others would take longer than the comparison.
"""

import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.gpu_steps.results import NOT_FINITE, Child, Results, end_with_parent, make_parser
from t2t.config.fields import ModelConfig
from t2t.data.batch import EOS_ID
from t2t.model import attention, experts, layers, linear, loss, masks, position, stack
from t2t.model.kv_cache import KeyValue, KVCache
from t2t.ops.select_kernels import TEXTBOOK, choose_policy

DTYPES = ("bfloat16", "float32")
WORSE = 3  # a mean error that is so many times its formula's is pointed out
Function = Callable[..., Any]


class Sizes(NamedTuple):
    """The sizes of the operands, in the letters of t2t/data/batch.py."""

    B: int = 2
    T: int = 256
    S: int = 64  # keys where a kernel's tile of 128 is half full
    H: int = 2
    K: int = 64
    D: int = 128
    F: int = 512
    V: int = 1024
    E: int = 4  # experts, each of width F / E


TOY = Sizes(2, 16, 8, 2, 8, 16, 32, 40)


class Case(NamedTuple):
    """An operation and its operands; the last `weights` of them are parameters, in float32."""

    operation: str  # a field of `Policy`
    shapes: tuple[tuple[int, ...], ...]
    call: Callable[..., Any]  # of the operation, the operands and their dtype
    weights: int = 0
    kernels: str = "auto"  # model.kernels, which chooses the twin


class _Product(nnx.Module):
    """A layer with one weight."""

    def __init__(self, weights: jax.Array):
        self.weights = nnx.Param(weights)


def make_cases(sizes: Sizes) -> dict[str, Case]:
    """Creates the cases; what they use besides their operands is the same in every process."""
    B, T, S, H, K, D, F, V, E = sizes  # noqa: N806
    random = np.random.default_rng(1)
    segments = jnp.asarray(np.arange(T) // (T // 4))[None].repeat(B, axis=0)
    causal = masks.causal_mask(segments)
    ends = random.integers(S // 2, S, (B, 1))
    src = jnp.asarray(np.where(np.arange(S) == ends, EOS_ID, 5) * (np.arange(S) <= ends), jnp.int32)
    padding = masks.padding_mask(src)
    packed = masks.source_mask(masks.source_segment_ids(src), src)  # padding sees no key
    targets = jnp.asarray(random.integers(0, V, (B, T)), jnp.int32)
    weights = jnp.asarray(random.random((B, T)) < 0.9, jnp.float32)
    key = jax.random.key(7)
    heads, hidden, table = (B, T, H, K), (B, T, D), (V, D)
    first = random.integers(0, E, (B, T, 1))
    chosen = jnp.asarray(np.concatenate([first, (first + 1) % E], axis=-1), jnp.int32)

    def attend(*others: Any, mask: Any = causal, store: Any = KeyValue) -> Callable[..., Any]:
        return lambda f, q, k, v, _: f(q, store(k, v), mask, *others)

    def attend_far(f: Function, q: Any, k: Any, v: Any, _: Any) -> Any:
        """Logits are about -128, and the results of queries that see no key do not count."""
        q, k = q.at[..., 0].set(32), k.at[..., 0].set(-4 * K**0.5)
        return jnp.where(packed.any(axis=-1)[:, 0, :, None, None], f(q, KeyValue(k, v), packed), 0)

    def add_and_norm(f: Function, x: Any, y: Any, scale: Any, bias: Any, _: Any) -> Any:
        """With post-norm, the sum of all uses, which weigh unequally."""
        config = ModelConfig(d_model=D, dropout=0.1)
        residual = stack.Residual(config, choose_policy(ModelConfig(kernels="textbook")))
        residual.norm.scale, residual.norm.bias = nnx.Param(scale), nnx.Param(bias)  # type: ignore[attr-defined]
        arrays = f(residual, x, y, key).arrays
        return sum(n * one for n, one in enumerate(arrays * (4 // len(arrays)), start=1))

    def order(f: Function, x: Any, w: Any, dtype: Any) -> Any:
        module, x = f(_Product(w), x)
        return x * module.weights[...].astype(dtype)

    return {
        "attention over itself": Case("attention", (heads,) * 3, attend()),
        "attention over the source": Case(
            "attention", (heads, (B, S, H, K), (B, S, H, K)), attend(mask=padding)
        ),
        "causal attention": Case("causal_attention", (heads,) * 3, attend()),
        "attention over padded rows": Case("attention", ((B, S, H, K),) * 3, attend_far),
        "attention with dropout": Case("attention", (heads,) * 3, attend(None, 0.1, key)),
        "attention with a bias": Case(
            "attention",
            (heads, heads, heads, (H, T, T)),
            lambda f, q, k, v, bias, _: f(q, KeyValue(k, v), causal, bias),
            weights=1,
        ),
        "attention over a cache": Case(
            "attention", (heads,) * 3, attend(store=lambda k, v: KVCache.store(KeyValue(k, v)))
        ),
        "product": Case(
            "multiply",
            (hidden, (D, F)),
            lambda f, x, w, dtype: f("BTD,DF->BTF", x, w, dtype=dtype),
            1,
        ),
        "product with a bias": Case(
            "affine",
            (hidden, (D, F), (F,)),
            lambda f, x, w, b, dtype: f("BTD,DF->BTF", x, w, b, dtype=dtype),
            2,
        ),
        "projection": Case(
            "multiply_parts",
            (hidden, (D, H, 3 * K)),
            lambda f, x, w, dtype: jnp.concatenate(f(x, w, (K, 2 * K), dtype=dtype), axis=-1),
            1,
        ),
        "mixture of experts": Case(
            "apply_experts",
            (hidden, (B, T, 2), (E, D, F // E), (E, F // E, D)),
            lambda f, x, factors, w1, w2, dtype: f(x, factors, chosen, w1, w2, dtype=dtype),
            weights=2,
        ),
        "layer norm": Case("standardize", (hidden,), lambda f, x, _: f(x, centred=True)),
        "RMS norm": Case("standardize", (hidden,), lambda f, x, _: f(x, centred=False)),
        "ReLU": Case("relu", (hidden,), lambda f, x, _: f(x)),
        "rotary positions": Case("rotate", (heads,), lambda f, x, _: f(x, jnp.arange(T))),
        "dropout": Case("dropout", (hidden,), lambda f, x, _: f(x, 0.1, key)),
        "dropout, residual and norm in one kernel": Case(
            "add_and_norm", (hidden, hidden, (D,), (D,)), add_and_norm, 2, "fused_norm"
        ),
        "order of gradients": Case("order_gradients", (hidden, (D,)), order, 1),
        "loss": Case(
            "smoothed_cross_entropy",
            (hidden, table),
            lambda f, x, w, _: f(x, w, targets, weights, 0.1)[0],
            1,
        ),
        "R-Drop's loss": Case(
            "r_drop_cross_entropy",
            (hidden, hidden, table),
            lambda f, x, y, w, _: f(x, y, w, targets, weights, 0.1, 5.0)[0],
            1,
        ),
        "loss of sentences": Case(
            "sentence_losses", (hidden, table), lambda f, x, w, _: f(x, w, targets, weights), 1
        ),
    }


def differentiate(
    case: Case, function: Function, dtype: str, wide: bool = False
) -> tuple[list[np.ndarray], str]:
    """Returns value and gradients, and the compiled program; `wide`: all operands in float64."""
    random = np.random.default_rng(0)
    count = len(case.shapes) - case.weights
    dtypes = [dtype] * count + ["float32"] * case.weights
    rounded = [
        random.standard_normal(shape, np.float32).astype(jnp.dtype(own))
        for shape, own in zip(case.shapes, dtypes, strict=True)
    ]
    operands = [jnp.asarray(x, jnp.float64 if wide else x.dtype) for x in rounded]

    def run(*operands: Any) -> list[Any]:
        own = jnp.dtype("float64") if wide else jnp.dtype(dtype)
        value, pull_back = jax.vjp(lambda *x: case.call(function, *x, own), *operands)
        cotangent = np.cos(np.arange(value.size, dtype=np.float32)).reshape(value.shape)
        return [value, *pull_back(jnp.asarray(cotangent.astype(jnp.dtype(dtype)), value.dtype))]

    compiled = jax.jit(run).lower(*operands).compile()
    found = [np.asarray(x, np.float64) for x in compiled(*operands)]
    return found, compiled.as_text() or ""


class _Double:
    """`jax.numpy` in which float32 is float64."""

    float32 = jnp.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)


def compute_reference(sizes: Sizes, path: Path) -> None:
    """Writes values and gradients of the formulas in float64."""
    for module in (attention, experts, layers, linear, loss, masks, position, stack):
        vars(module)["jnp"] = _Double()
    cases = make_cases(sizes)
    keys = [(name, dtype) for name in cases for dtype in DTYPES]

    def run(key: tuple[str, str]) -> list[np.ndarray]:
        return differentiate(cases[key[0]], find_formula(cases[key[0]]), key[1], wide=True)[0]

    named: dict[str, Any] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for key, arrays in zip(keys, pool.map(run, keys), strict=True):
            named |= {"|".join([*key, str(i)]): array for i, array in enumerate(arrays)}
    np.savez(path, **named)
    print(json.dumps({"cases": len(keys)}))


def find_formula(case: Case) -> Function:
    """Returns the formula of an operation."""
    return TEXTBOOK[case.operation]


def find_twin(case: Case, dtype: str) -> Function:
    """Returns what t2t computes an operation with on this platform."""
    config = ModelConfig(dtype=dtype, kernels=case.kernels)
    twin: Function = getattr(choose_policy(config), case.operation)
    return getattr(twin, "func", twin)  # without the dtype that is bound to it


def name_module(case: Case, twin: Function, text: str) -> str:
    """Names what computes a twin; attention chooses by its operands, so the program tells."""
    if not case.operation.endswith("attention"):
        return twin.__module__.removeprefix("t2t.")
    return name_attention(text)


def name_attention(text: str) -> str:
    """Names what computes attention in a compiled program."""
    if "__cudnn$fmha" in text:
        return "cuDNN"
    files = ("tpu_attention", "cached_attention", "recomputed_attention")
    return next((f"ops.{name}" for name in files if f"/{name}.py" in text), "unknown")


def compare(found: list[np.ndarray], wanted: list[np.ndarray]) -> dict[str, float]:
    """Returns the relative errors of the worst array: the largest and the mean.

    Both are infinite if a value is not finite.
    """
    if not all(np.isfinite(one).all() for one in found):
        return {"largest": math.inf, "mean": math.inf}
    errors = [(np.abs(own - ours), np.abs(ours)) for own, ours in zip(found, wanted, strict=True)]
    return {
        "largest": max(float(error.max() / size.max()) for error, size in errors),
        "mean": max(float(error.mean() / size.mean()) for error, size in errors),
    }


def main() -> None:
    """Compares all cases, several side by side."""
    parser = make_parser(__doc__)
    parser.add_argument("--reference", action="store_true", help="write the formulas' values")
    flags = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
    sizes = TOY if flags.dry_run else Sizes()
    if flags.reference:
        compute_reference(sizes, flags.output)
        return
    end_with_parent()
    cases = make_cases(sizes)
    results = Results(flags.output, list(cases))
    path = flags.output.with_suffix(".npz")
    log = flags.output.with_name("twins, reference.log")
    environment = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    given = ["--reference", f"--output={path}", *["--dry_run"] * flags.dry_run]
    child = Child(log, "benchmarks.gpu_steps.twins", *given, environment=environment)

    def run(name: str) -> list[Any]:
        return [run_both(cases[name], dtype) for dtype in DTYPES]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = {pool.submit(run, name): name for name in results.list_missing()}
        child.finish()
        reference = np.load(path)
        for done in as_completed(pending):
            figures, texts = {}, []
            with results.measuring(name := pending[done]):
                for dtype, (module, *both) in zip(DTYPES, done.result(), strict=True):
                    wanted = [reference[f"{name}|{dtype}|{i}"] for i in range(len(both[0]))]
                    twin, formula = (compare(one, wanted) for one in both)
                    figures[dtype] = {"by": module, "twin": twin, "formula": formula}
                    texts.append(describe(dtype, module, twin, formula))
                results.add(name, "; ".join(texts), **figures)
    path.unlink()


def run_both(case: Case, dtype: str) -> tuple[str, list[np.ndarray], list[np.ndarray]]:
    """Returns the module of a twin, its value and gradients, and those of its formula."""
    twin, formula = find_twin(case, dtype), find_formula(case)
    arrays, text = differentiate(case, twin, dtype)
    module = name_module(case, twin, text)
    return module, arrays, arrays if twin is formula else differentiate(case, formula, dtype)[0]


def describe(dtype: str, module: str, twin: dict[str, float], formula: dict[str, float]) -> str:
    """Formats the errors of a twin and of its formula."""
    worse = twin["mean"] > WORSE * formula["mean"] + 1e-7
    mark = f" {NOT_FINITE}" if math.isinf(twin["mean"]) else " WORSE" * worse
    return (
        f"{dtype}, {module}: {twin['largest']:.1e}, mean {twin['mean']:.1e} "
        f"(formula {formula['largest']:.1e}, {formula['mean']:.1e}){mark}"
    )


if __name__ == "__main__":
    main()
