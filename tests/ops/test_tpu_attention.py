"""Where the kernel is used, and compiled; `test_twins.py` holds it to equation 1."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from t2t.config.fields import MeshConfig
from t2t.model.attention import dot_product_attention
from t2t.model.kv_cache import KeyValue
from t2t.ops import tpu_attention
from t2t.ops.select_kernels import fast_attention
from t2t.ops.tpu_attention import LANES, supports
from t2t.planning.topology import open_topology
from t2t.runtime.mesh import make_mesh, spec


def describe(
    rows: int = 8,
    heads: int = 4,
    queries: int = 256,
    keys: int = 256,
    d_k: int = 64,
    d_v: int = 64,
    dtype: str = "bfloat16",
) -> list[jax.ShapeDtypeStruct]:
    """Queries, keys and values."""
    sizes = (queries, d_k), (keys, d_k), (keys, d_v)
    return [jax.ShapeDtypeStruct((rows, heads, *each), dtype) for each in sizes]


@pytest.mark.parametrize(
    ("change", "supported"),
    [
        ({}, True),
        ({"queries": 1024, "keys": 1024}, True),
        ({"d_k": 80, "d_v": 48}, True),
        ({"queries": 200, "keys": 192}, True),
        ({"queries": 136, "keys": 136}, False),  # most weights would be padding
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
    shapes = describe(rows=1, **change)
    query, keys, values = (jnp.zeros(x.shape, x.dtype).swapaxes(1, 2) for x in shapes)
    asked = query, KeyValue(keys, values)
    assert not supports(*asked, None, 0.0)  # on a CPU
    monkeypatch.setattr(tpu_attention, "platform", lambda: "tpu")
    assert supports(*asked, None, 0.0) == supported
    if supported:
        monkeypatch.setattr(tpu_attention, "tpu_attention", lambda *_, scaled: query)
        assert fast_attention(*asked, jnp.ones((1, 1, 1, 1), bool), scaled=True) is query
    bias = jnp.zeros((query.shape[2], query.shape[1], keys.shape[1]))
    assert not supports(*asked, bias, 0.0)
    assert not supports(*asked, None, 0.1)


def test_lengths_that_are_no_multiples_of_128_are_padded() -> None:
    """Values and gradients are those of equation 1; a mask for all queries is padded as well."""
    described = describe(rows=2, heads=2, queries=136, keys=192, d_k=16, d_v=16, dtype="float32")
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [
        jax.random.normal(key, x.shape).swapaxes(1, 2)
        for key, x in zip(keys, described, strict=True)
    ]
    for queries in (1, 136):
        mask = jax.random.bernoulli(jax.random.key(1), 0.7, (2, 1, queries, 192))

        def attend(function: Any, *operands: jax.Array, mask: jax.Array = mask) -> jax.Array:
            query, keys, values = operands
            return jnp.sum(function(query, KeyValue(keys, values), mask) ** 3)

        found, wanted = (
            jax.jit(jax.value_and_grad(functools.partial(attend, function), (0, 1, 2)))(*arrays)
            for function in (tpu_attention.tpu_attention, dot_product_attention)
        )
        for own, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(own, other, rtol=2e-3, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "sizes"),
    [
        ("v4:2x2x1", {}),
        ("v5p:2x2x1", {}),
        ("v6e:2x2", {}),
        ("v5e:2x2", {}),
        ("v5e:2x2", {"heads": 2, "queries": 1024, "keys": 1024}),
        ("v5e:2x2", {"heads": 1, "queries": 2 * LANES, "keys": LANES, "d_k": 48}),
    ],
    ids=str,
)
@pytest.mark.usefixtures("nothing_cached")
def test_tpu_compiler_takes_the_kernel(topology: str, sizes: dict[str, Any]) -> None:
    pytest.importorskip("libtpu")
    mesh = make_mesh(MeshConfig(), open_topology(topology).devices)
    described = describe(**sizes)

    def run(mask: jax.Array, *arrays: jax.Array) -> Any:
        def attend(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
            return tpu_attention.fused_attention(query, keys, values, mask, divisor=8.0)

        results, pull_back = jax.vjp(attend, *arrays)
        return results, pull_back(results)

    with jax.set_mesh(mesh):
        rows = spec("batch", None, None, None)
        assert rows is not None
        cut = NamedSharding(mesh, rows)
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=cut) for x in described]
        mask = jax.ShapeDtypeStruct((8, 1, 1, described[1].shape[2]), bool, sharding=cut)
        text = jax.jit(run).lower(mask, *shapes).compile().as_text()
    assert str(text).count('custom_call_target="tpu_custom_call"') == 2
