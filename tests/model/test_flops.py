import dataclasses
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr

from t2t.config.fields import Config, ModelConfig
from t2t.config.files import override
from t2t.model.parameters import Params, merge
from t2t.ops.build_model import find_family
from t2t.ops.flops import count_parameters, train_flops
from t2t.sweeps.sweep_rows import read_rows
from tests.model.small_models import COMBINED, SRC, TGT_IN, VOCAB_SIZE, draw_model, vary

BASE = ModelConfig()
BIG = ModelConfig(d_model=1024, d_ff=4096, num_heads=16, dropout=0.3)
PAPERS_VOCABULARY = 37_000
TABLE_3 = Path(__file__).parents[2] / "configs" / "sweeps" / "table3.py"
C_ROWS_THAT_KEEP_D_MODEL = ("C-N2", "C-N4", "C-N8", "C-dff1024", "C-dff4096")


def test_counting_asks_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a sweep counts while its workers train: it must not take their TPU."""

    def fail() -> str:
        raise AssertionError("it asked for the platform")

    monkeypatch.setattr("t2t.ops.select_kernels.platform", fail)
    config = ModelConfig(num_layers=1, d_model=24, num_heads=2)  # of no other test, so not cached
    assert count_parameters(config, 7, 11) > 11 * 24


@pytest.mark.parametrize(("config", "count"), [(BASE, 63_045_632), (BIG, 214_171_648)])
def test_count_of_the_papers_models(config: ModelConfig, count: int) -> None:
    """The paper has 65 and 213 million, of a vocabulary whose exact size it does not tell."""
    sizes = PAPERS_VOCABULARY, PAPERS_VOCABULARY
    assert count_parameters(config, *sizes) == count


@pytest.mark.parametrize("name", ["B-dk16", "B-dk32", *C_ROWS_THAT_KEEP_D_MODEL])
def test_count_differs_from_base_as_in_table_3(name: str) -> None:
    """In the other rows the difference depends on the vocabulary."""
    row = {row.name: row for row in read_rows(TABLE_3, Config())}[name]
    changed, base = (
        count_parameters(config.model, PAPERS_VOCABULARY, PAPERS_VOCABULARY)
        for config in (override(Config(), row.overrides), Config())
    )
    assert row.published
    assert row.published.parameters
    assert (changed - base) / 1e6 == pytest.approx(row.published.parameters - 65, abs=1)


@pytest.mark.parametrize("name", COMBINED)
def test_flops_are_those_of_the_products_computed(name: str) -> None:
    structure, params = draw_model(name)

    def sum_logits(params: Params) -> jax.Array:
        return merge(structure, params)(SRC, TGT_IN).sum()

    program = jax.make_jaxpr(jax.grad(sum_logits))(params)
    config = vary(name)
    (rows, src), (_, tgt) = SRC.shape, TGT_IN.shape
    encoder_depth, decoder_depth = config.depth
    # The backward pass makes the attention logits again; the closed form is of what has to be done.
    pairs = rows * (encoder_depth * src * src + decoder_depth * (tgt * tgt + src * tgt))
    if config.kind == "decoder_only":
        pairs = rows * decoder_depth * (src + tgt) ** 2
    again = 2 * config.num_heads * config.key_width * pairs * (config.kind != "rnn")
    lengths = np.full(rows, src), np.full(rows, tgt)
    assert train_flops(config, VOCAB_SIZE, *lengths) + again == count_products(program.jaxpr)


def count_products(program: Jaxpr) -> int:
    """FLOPs of the matrix products in a program; a multiplication and an addition are two."""
    flops = 0
    for equation in program.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, result = equation.invars[0].aval, equation.outvars[0].aval
            assert isinstance(left, ShapedArray)
            assert isinstance(result, ShapedArray)
            flops += 2 * result.size * math.prod(left.shape[i] for i in contracted)
        if equation.primitive.name == "ragged_dot_general":  # each row with one expert's weights
            found = (x.aval for x in (*equation.invars[:2], equation.outvars[0]))
            shapes = [x.shape for x in found if isinstance(x, ShapedArray)]
            [experts] = (shape for shape in shapes if len(shape) == 3)
            flops += 2 * shapes[0][0] * math.prod(experts[1:])
        rounds = equation.params["length"] if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            if isinstance(value, ClosedJaxpr):
                flops += rounds * count_products(value.jaxpr)
    return flops


def test_only_recurrence_takes_more_sequential_operations_for_longer_sentences() -> None:
    """Table 1: O(1) and O(n) a layer."""
    base, rnn = ModelConfig(), ModelConfig(kind="rnn", encoder_layers=2, decoder_layers=1)
    counts = [
        [find_family(config).count_sequential(config, n, n + 5) for n in (10, 20)]
        for config in (base, dataclasses.replace(base, feed_forward="none"), rnn)
    ]
    assert counts == [[6 * 2 + 6 * 3] * 2, [6 + 6 * 2] * 2, [2 * 10 + 15, 2 * 20 + 25]]
