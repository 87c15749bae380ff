"""The kernel, interpreted; `test_twins.py` holds it to equation 1."""

import dataclasses
import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float

from t2t.config.fields import MeshConfig
from t2t.data.batch import PAD_ID
from t2t.model.interface import Params, merge
from t2t.model.kv_cache import KeyValue
from t2t.ops import tpu_attention
from t2t.ops.tpu_attention import LANES, supports
from t2t.planning.topology import open_topology
from t2t.runtime.mesh import make_mesh, spec
from tests.model.small_models import SRC, TGT_IN, Structure, draw, draw_params, vary

ROWS, HEADS, QUERIES, KEYS, D_K, D_V = 8, 4, 6, 5, 3, 2

Inputs = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # queries, keys, values, mask


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of what is to be attended to, and by what."""

    rows: int = 8
    heads: int = 4
    queries: int = 256
    keys: int = 256
    d_k: int = 64
    d_v: int = 64
    dtype: str = "bfloat16"

    def describe(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Queries, keys and values."""
        sizes = (self.queries, self.d_k), (self.keys, self.d_k), (self.keys, self.d_v)
        return tuple(jax.ShapeDtypeStruct((self.rows, self.heads, *s), self.dtype) for s in sizes)


def draw_inputs() -> Inputs:
    """By the mask each query sees the first key, and some others."""
    mask = np.random.default_rng(3).random((ROWS, 1, QUERIES, KEYS)) < 0.5
    mask[..., 0] = True
    sizes = (QUERIES, D_K), (KEYS, D_K), (KEYS, D_V)
    query, keys, values = (draw(ROWS, HEADS, *s, seed=seed) for seed, s in enumerate(sizes))
    return query, keys, values, jnp.asarray(mask)


def attend(
    query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array
) -> Float[Array, "B G Q U"]:
    return tpu_attention.fused_attention(query, keys, values, mask, D_K**0.5)


def place(mesh: Mesh, *names: str | None) -> NamedSharding:
    partition = spec(*names)
    assert partition is not None
    return NamedSharding(mesh, partition)


def differentiate(arrays: Inputs) -> Any:
    """Of some function of the results."""
    weighting = draw(ROWS, HEADS, QUERIES, D_V, seed=4)

    def weigh(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(weighting * attend(*arrays))

    return jax.jit(jax.value_and_grad(weigh, argnums=(0, 1, 2)))(*arrays)


@pytest.mark.equality
@pytest.mark.parametrize("at_once", [1, 2])
def test_results_are_the_same_however_many_heads_are_computed_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = draw_inputs()
    together = differentiate(arrays)
    monkeypatch.setattr(tpu_attention, "MAX_WEIGHTS_PER_BLOCK", at_once * QUERIES * KEYS)
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(compare, differentiate(arrays), together)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Takes all operands; counts its calls."""
    spy = mock.Mock(wraps=tpu_attention.fused_attention)
    monkeypatch.setattr(tpu_attention, "supports", lambda *_: True)
    monkeypatch.setattr(tpu_attention, "fused_attention", spy)
    return spy


@pytest.mark.slow
def test_model_computes_the_same_with_and_without_the_kernel(kernel: mock.Mock) -> None:
    found = []
    for kernels in ("auto", "textbook"):
        structure, params = draw_params(dataclasses.replace(vary("today's"), kernels=kernels))

        def weigh(params: Params, structure: Structure = structure) -> Float[Array, ""]:
            hidden = merge(structure, params)(SRC, TGT_IN)
            return jnp.sum(jnp.square(hidden) * (TGT_IN != PAD_ID)[..., None])

        found.append(jax.jit(jax.value_and_grad(weigh))(params))
        # In the encoder, in the decoder, and from one to the other; never among the formulas.
        assert kernel.call_count == 3
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), *found)


@pytest.mark.parametrize(
    ("change", "supported"),
    [
        ({}, True),
        ({"queries": 1024, "keys": 1024}, True),
        ({"d_k": 80, "d_v": 48}, True),
        ({"queries": 200}, False),
        ({"keys": 64}, False),
        ({"queries": 2048, "keys": 1024}, False),
        ({"d_v": 20}, False),
        ({"dtype": "float32"}, False),
    ],
    ids=str,
)
def test_kernel_is_chosen_by_shape_and_numbers(
    change: dict[str, Any], supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = Shape(rows=1, **change).describe()
    query, keys, values = (jnp.zeros(x.shape, x.dtype).swapaxes(1, 2) for x in shapes)
    asked = query, KeyValue(keys, values)
    assert not supports(*asked, None, 0.0)  # on a CPU
    monkeypatch.setattr(tpu_attention, "platform", lambda: "tpu")
    assert supports(*asked, None, 0.0) == supported
    bias = jnp.zeros((query.shape[2], query.shape[1], keys.shape[1]))
    assert not supports(*asked, bias, 0.0)
    assert not supports(*asked, None, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "shape"),
    [
        ("v4:2x2x1", Shape()),
        ("v5p:2x2x1", Shape()),
        ("v6e:2x2", Shape()),
        ("v5e:2x2", Shape()),
        ("v5e:2x2", Shape(heads=2, queries=1024, keys=1024)),
        ("v5e:2x2", Shape(heads=1, queries=2 * LANES, keys=LANES, d_k=48)),
    ],
    ids=str,
)
@pytest.mark.usefixtures("nothing_cached")
def test_tpu_compiler_takes_the_kernel(topology: str, shape: Shape) -> None:
    pytest.importorskip("libtpu")
    mesh = make_mesh(MeshConfig(), open_topology(topology).devices)

    def run(mask: jax.Array, *arrays: jax.Array) -> Any:
        def attend(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
            return tpu_attention.fused_attention(query, keys, values, mask, divisor=8.0)

        results, pull_back = jax.vjp(attend, *arrays)
        return results, pull_back(results)

    with jax.set_mesh(mesh):
        cut = place(mesh, "batch", None, None, None)
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=cut) for x in shape.describe()]
        mask = jax.ShapeDtypeStruct((shape.rows, 1, 1, shape.keys), bool, sharding=cut)
        text = jax.jit(run).lower(mask, *shapes).compile().as_text()
    assert str(text).count('custom_call_target="tpu_custom_call"') == 2
