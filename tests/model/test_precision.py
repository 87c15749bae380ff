"""Every product of the compiled programs has the precision that the model's dtype names."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from t2t.config.fields import Config, DecodingConfig
from t2t.data.batch import Batch
from t2t.model.parameters import merge
from t2t.ops import recomputed_attention
from t2t.ops.tpu_attention import fused_attention
from t2t.training.optimizer import make_optimizer
from t2t.training.state import abstract_state
from t2t.training.step import make_eval_step, make_train_step
from tests.model.small_models import COMBINED, SRC, TGT_IN, TGT_OUT, VOCAB_SIZE, vary

BATCH = Batch(SRC, TGT_IN, TGT_OUT, jnp.ones(TGT_OUT.shape))
PROGRAMS = ("training", "validation", "search")
# Search has the products of the forward pass once more. On TPUs, with a bias of attention and not.
QUICK = {
    *(("cpu", variant, "training") for variant in COMBINED),
    *(("tpu", name, "training") for name in COMBINED if "relative" in name or "rms" in name),
    *(("cpu", "textbook", program) for program in PROGRAMS),
    ("cpu", "paper", "validation"),
    ("cpu", "mixed", "training"),
}
FEW = "paper", "today's", "ALiBi", "no tables shared", "deep GRU", "LSTM", "mixed", "textbook"
HIGHEST = (jax.lax.Precision.HIGHEST,) * 2


def list_equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, also within loops and kernels."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            if hasattr(inner, "eqns"):
                yield from list_equations(inner)
            elif hasattr(inner, "jaxpr"):
                yield from list_equations(inner.jaxpr)


def list_products(jaxpr: Any) -> Iterator[tuple[set[str], Any]]:
    """The operands' dtypes and the precision of each product."""
    for equation in list_equations(jaxpr):
        if equation.primitive.name == "dot_general":
            dtypes = {str(operand.aval.dtype) for operand in equation.invars}
            yield dtypes, equation.params["precision"]


def list_sums(jaxpr: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The dtype of each sum, and the sizes of the dimensions or the loop that it sums over."""
    for equation in list_equations(jaxpr):
        if equation.primitive.name == "scan":
            body = equation.params["jaxpr"].jaxpr
            arguments, results = (
                {inner for outer, inner in zip(*both, strict=True) if outer.aval == inner.aval}
                for both in ((equation.invars, body.invars), (equation.outvars, body.outvars))
            )  # without those that have a part for each turn
            for inner in body.eqns:
                [result, *_], is_sum = inner.outvars, inner.primitive.name in ("add", "add_any")
                if is_sum and result in results and not arguments.isdisjoint(inner.invars):
                    yield str(result.aval.dtype), (equation.params["length"],)
        if equation.primitive.name in ("reduce_sum", "scatter-add"):
            operand = equation.invars[0].aval
            axes = equation.params.get("axes", range(operand.ndim))
            yield str(operand.dtype), tuple(operand.shape[axis] for axis in axes)


def trace(program: str, config: Config) -> Any:
    """What the program computes, before any compiler sees it."""
    optimizer = make_optimizer(config)
    structure, state = abstract_state(config, optimizer, VOCAB_SIZE, VOCAB_SIZE)
    match program:
        case "training":
            return jax.make_jaxpr(make_train_step(structure, config, optimizer))(state, BATCH)
        case "validation":
            return jax.make_jaxpr(make_eval_step(structure))(state.params, BATCH)
        case _:
            slots = jnp.zeros((2, DecodingConfig().beam_size), jnp.int32)

            def decode(params: Any) -> Any:
                model = merge(structure, params)
                cache = model.init_cache(SRC, slots.shape[1], 8)
                return model.decode_step(slots, slots, cache)

            return jax.make_jaxpr(decode)(state.params)


@pytest.mark.parametrize(
    ("platform", "variant", "program"),
    [
        pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow])
        for case in itertools.product(("cpu", "tpu"), [*FEW, *COMBINED], PROGRAMS)
    ],
)
def test_float32_products_are_float32_on_every_device(
    platform: str, variant: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputed_attention, "platform", lambda: platform)
    paper = dataclasses.replace(vary("paper"), kernels="textbook")
    model = paper if variant == "textbook" else vary(variant)
    products = list(list_products(trace(program, Config(model=model)).jaxpr))
    wide = [precision for dtypes, precision in products if "float32" in dtypes]
    assert len(wide) >= 4
    assert set(wide) == {HIGHEST}
    if variant != "mixed":
        assert len(wide) == len(products)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    "variant",
    ["bfloat16", "LSTM in bfloat16", pytest.param("mixed", marks=pytest.mark.slow)],
)
def test_bfloat16_products_have_the_default_precision(program: str, variant: str) -> None:
    products = list(list_products(trace(program, Config(model=vary(variant))).jaxpr))
    narrow = [precision for dtypes, precision in products if "bfloat16" in dtypes]
    assert len(narrow) >= 4
    assert set(narrow) == {None}


@pytest.mark.parametrize("kernels", ["textbook", "auto"])
@pytest.mark.parametrize(
    "variant",
    [
        "learned positions",
        "relative positions",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("paper", "SwiGLU", "LSTM")),
    ],
)
def test_sums_over_positions_are_float32_in_a_bfloat16_model(
    variant: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputed_attention, "BLOCK", 1)
    model = dataclasses.replace(vary(variant), dtype="bfloat16", kernels=kernels)
    sums = list(list_sums(trace("training", Config(model=model)).jaxpr))
    assert len(sums) >= 10
    assert all(dtype != "bfloat16" or set(sizes) <= {1} for dtype, sizes in sums)


@pytest.mark.parametrize(("dtype", "precision"), [("float32", HIGHEST), ("bfloat16", None)])
def test_kernels_products_have_the_precision_of_their_dtype(dtype: str, precision: Any) -> None:
    rows, mask = jnp.ones((1, 1, 8, 16), dtype), jnp.ones((1, 1, 8, 8), bool)

    def run(rows: jax.Array) -> jax.Array:
        return fused_attention(rows, rows, rows, mask, 4.0).sum()

    products = list(list_products(jax.make_jaxpr(jax.grad(run))(rows).jaxpr))
    assert len(products) >= 5
    assert {precision for _, precision in products} == {precision}
    assert all(dtypes == {dtype} for dtypes, _ in products)
