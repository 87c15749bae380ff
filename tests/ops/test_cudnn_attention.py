"""The arguments and conditions of cuDNN's attention; running it needs a GPU, compiling does not."""

import importlib.util
import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from t2t.config.fields import Config, MeshConfig
from t2t.data.batch import EOS_ID
from t2t.data.loader import make_batch
from t2t.model import attention
from t2t.model.kv_cache import KeyValue
from t2t.model.parameters import Params, merge
from t2t.ops import cudnn_attention, select_kernels
from t2t.planning.topology import open_topology
from t2t.runtime.mesh import make_mesh, spec
from t2t.training.losses import make_loss
from tests.model.small_models import SMALL, Structure, draw_params

BATCH, QUERIES, KEYS, HEADS, WIDTH = 8, 6, 4, 4, 8
needs_plugin = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="the extra cuda is not installed"
)


def draw(groups: int, keys: int = KEYS) -> tuple[Array, KeyValue, Array]:
    """Query, keys and values, and a mask by which the last query of each row sees no key."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return jnp.asarray(random.standard_normal(shape), "float32")

    memory = KeyValue(normal(BATCH, keys, groups, WIDTH), normal(BATCH, keys, groups, WIDTH))
    mask = random.random((BATCH, 1, QUERIES, keys)) < 0.6
    mask[..., 0] = True
    mask[..., -1, :] = False
    return normal(BATCH, QUERIES, HEADS, WIDTH), memory, jnp.asarray(mask)


@pytest.fixture
def by_xla(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """Computes what cuDNN would, by the same function of JAX with its other implementation.

    Collects the masks of the calls.
    """
    original, masks = jax.nn.dot_product_attention, []

    def run(*arrays: Array, implementation: str, **options: Any) -> Array:
        assert implementation == "cudnn"
        masks.append(options["mask"])
        found: Array = original(*arrays, implementation="xla", **options)
        return found

    monkeypatch.setattr(jax.nn, "dot_product_attention", run)
    return masks


@pytest.mark.parametrize(
    ("keys", "groups", "scaled"), [(KEYS, 2, True), (192, HEADS, True), (192, 2, False)]
)
def test_queries_that_see_a_key_get_equation_1_and_its_gradients(
    keys: int, groups: int, scaled: bool, by_xla: list[Array]
) -> None:
    """cuDNN's gradients are not finite for some numbers of keys, nor for queries without keys."""
    query, memory, mask = draw(groups, keys)
    # One row of the mask for all queries, as in attention over the source.
    for seen in (mask, mask[:, :, :1]):

        def differentiate(function: Any, seen: Array = seen) -> Any:
            def sees(query: Array, memory: KeyValue) -> Array:
                own: Array = function(query, memory, seen, scaled=scaled)
                return jnp.where(seen.any(axis=-1)[:, 0, :, None, None], own, 0)

            own, pull_back = jax.vjp(sees, query, memory)
            return own, *pull_back(jnp.cos(jnp.arange(own.size)).reshape(own.shape))

        own, expected = (
            differentiate(each)
            for each in (cudnn_attention.cudnn_attention, attention.dot_product_attention)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), own, expected)
    assert all(called.any(axis=-1).all() for called in by_xla)
    assert {called.shape[3] % 128 for called in by_xla} == {keys % 64}


@pytest.mark.parametrize("keys", [QUERIES, 64])
def test_a_promised_causal_mask_changes_nothing(keys: int, by_xla: list[Array]) -> None:
    """It also hides the keys that fill a tile."""
    query, memory, mask = draw(HEADS, keys)
    mask = jnp.tril(mask.at[..., 0].set(True))
    wanted = attention.dot_product_attention(query, memory, mask)
    found = cudnn_attention.cudnn_attention(query, memory, mask, causal=True)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert by_xla[0].shape[3] == (keys if keys == QUERIES else 128)


@pytest.mark.usefixtures("by_xla")
def test_call_on_a_mesh_is_the_same() -> None:
    query, memory, mask = draw(HEADS)
    expected = cudnn_attention.cudnn_attention(query, memory, mask)
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        heads = spec("batch", None, "heads", None)
        placed = [jax.device_put(x, heads) for x in (query, *memory)]
        mask = jax.device_put(mask, spec("batch", None, None, None))
        own = jax.jit(cudnn_attention.cudnn_attention)(placed[0], KeyValue(*placed[1:]), mask)
    np.testing.assert_allclose(own, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "supported"),
    [
        ({}, True),
        ({"dtype": "float16"}, True),
        ({"dtype": "float32"}, False),
        ({"queries": 5}, False),
        ({"keys": 3}, False),
        ({"width": 12}, False),
        ({"value_width": 16}, False),
        ({"rate": 0.1}, False),
        ({"biased": True}, False),
        ({"platform": "cpu"}, False),
        ({"capability": "10.3"}, True),
        ({"capability": "7.5"}, False),
        ({"capability": "gfx942"}, False),  # of ROCm
        ({"xla_flags": "--a=1 --xla_gpu_exclude_nondeterministic_ops=True --b"}, False),
        ({"xla_flags": "--xla_gpu_deterministic_ops=1 --xla_gpu_deterministic_ops=0"}, True),
        ({"xla_flags": "--xla_gpu_deterministic_ops='false'"}, True),
        ({"xla_flags": "--xla_gpu_enable_scatter_determinism_expander=true"}, True),
    ],
)
def test_supported_operands(
    changes: dict[str, Any], supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[str, Any] = {"queries": 6, "keys": 4, "width": 8, "dtype": "bfloat16"} | changes
    gpu = types.SimpleNamespace(platform="gpu", device_kind="X")
    gpu.compute_capability = own.get("capability", "9.0")
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    monkeypatch.setenv("XLA_FLAGS", own.get("xla_flags", ""))
    for module in (select_kernels, cudnn_attention):
        monkeypatch.setattr(module, "platform", lambda: own.get("platform", "gpu"))
    query = jnp.zeros((2, own["queries"], 2, own["width"]), own["dtype"])
    keys = jnp.zeros((2, own["keys"], 2, own["width"]), own["dtype"])
    values = jnp.zeros((2, own["keys"], 2, own.get("value_width", own["width"])), own["dtype"])
    bias = jnp.zeros((2, own["queries"], own["keys"])) if "biased" in own else None
    found = cudnn_attention.supports(query, KeyValue(keys, values), bias, own.get("rate", 0.0))
    assert found is supported
    if changes.keys() <= {"platform", "capability", "xla_flags"}:  # records tell it, too
        assert ("cudnn" in select_kernels.list_kernels(SMALL)["attention"]) is supported


def test_nothing_uses_the_results_of_queries_that_see_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So with cuDNN they may see all keys."""
    all_see: list[bool] = []

    def fill(query: Array, memory: KeyValue, mask: Array, *others: Any, **options: Any) -> Array:
        own = attention.dot_product_attention(query, memory, mask, *others, **options)
        shape = own.shape[0], 1, own.shape[1], mask.shape[3]
        sees = jnp.broadcast_to(mask, shape).any(axis=-1)[:, 0, :, None, None]
        jax.debug.callback(lambda every: all_see.append(bool(every)), sees.all())
        return jnp.where(sees, own, 7.0).astype(own.dtype)

    # A row of two sentence pairs, a row of one, and an empty one.
    src = np.array([[5, 6, EOS_ID, 7, EOS_ID, 0], [8, 9, EOS_ID, 0, 0, 0], [0] * 6], np.int32)
    tgt = np.array([[5, EOS_ID, 7, 8, EOS_ID, 0], [8, EOS_ID, 0, 0, 0, 0], [0] * 6], np.int32)
    batch = jax.tree.map(jnp.asarray, make_batch(src, tgt))
    found = []
    for function in (attention.dot_product_attention, fill):
        monkeypatch.setitem(select_kernels.FAST, "attention", function)
        structure, params = draw_params(SMALL)

        def sum_losses(params: Params, structure: Structure = structure) -> Array:
            return make_loss(Config()).sum_losses(merge(structure, params), batch)[0]

        found.append(jax.jit(jax.value_and_grad(sum_losses))(params))
    jax.tree.map(np.testing.assert_array_equal, *found)
    jax.effects_barrier()
    assert not all(all_see)


@pytest.mark.slow
@needs_plugin
@pytest.mark.usefixtures("nothing_cached")
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("keys", [QUERIES, KEYS, 64])
@pytest.mark.parametrize(
    "attend", [select_kernels.fast_attention, select_kernels.fast_causal_attention]
)
def test_forward_and_backward_pass_compile_to_cudnn(attend: Any, devices: int, keys: int) -> None:
    topology = open_topology(f"h100:{devices}")
    with jax.set_mesh(make_mesh(MeshConfig(), topology.devices)):
        heads, rows = spec("batch", None, "heads", None), spec("batch", None, None, None)

        def describe(*shape: int, dtype: str = "bfloat16", sharding: Any = heads) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

        query = describe(BATCH, QUERIES, HEADS, WIDTH)
        memory = KeyValue(*[describe(BATCH, keys, HEADS, WIDTH)] * 2)
        mask = describe(BATCH, 1, QUERIES, keys, dtype="bool", sharding=rows)

        def total(query: Array, memory: KeyValue, mask: Array) -> Array:
            return attend(query, memory, mask).astype(jnp.float32).sum()

        text = jax.jit(jax.grad(total, (0, 1))).lower(query, memory, mask).compile().as_text()
    assert text is not None
    is_causal = attend is select_kernels.fast_causal_attention
    assert set(re.findall(r'"mask_type": ?"(\w+)"', text)) == {"CAUSAL" if is_causal else "NO_MASK"}
    assert "__cudnn$fmhaScaleBias" in text
    assert "__cudnn$fmhaScaleBiasSoftmaxBackward" in text
