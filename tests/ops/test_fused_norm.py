"""Dropout, residual connection and norm in one kernel, interpreted on a CPU, beside the formula."""

import dataclasses
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from t2t.config.fields import Config, ConfigError, MeshConfig, ModelConfig, TrainingConfig
from t2t.config.rules import validate
from t2t.data.loader import put_batch
from t2t.model import stack
from t2t.model.stack import Residual
from t2t.ops import fused_norm
from t2t.ops.select_kernels import choose_policy, list_kernels
from t2t.runtime.mesh import make_mesh, reshard, spec
from t2t.training.optimizer import make_optimizer
from t2t.training.state import init_state
from t2t.training.step import make_train_step
from tests.model.small_models import POLICY
from tests.tiny_training import change
from tests.training.test_step import VOCAB_SIZE, assert_close, make_batch

BATCH, LENGTH, WIDTH, USES = 8, 40, 16, 4
KEY = jax.random.key(7)


@dataclasses.dataclass(frozen=True)
class Site:
    """Where the operation stands in a model."""

    norm: str
    position: str
    rate: float

    def apply(self, function: Any, x: Any, y: Any, scale: Any, bias: Any) -> Any:
        """The result for each use, as one array."""
        config = ModelConfig(
            d_model=WIDTH, norm=self.norm, norm_position=self.position, dropout=self.rate
        )
        residual = Residual(config, POLICY)
        residual.norm.scale = nnx.Param(scale)  # type: ignore[attr-defined]
        if self.norm == "layer":
            residual.norm.bias = nnx.Param(bias)  # type: ignore[attr-defined]
        operands = (x,) if self.position == "pre" else (x, y, KEY)
        shared = function(residual, *operands)
        parts = shared.inputs * (1 if len(shared.inputs) > 1 else USES - 1)
        return jnp.stack([shared.residual, *parts])


SITES = [
    Site(norm, position, rate)
    for norm in ("layer", "rms")
    for position, rate in (("post", 0.0), ("post", 0.3), ("pre", 0.0))
]


def draw(dtype: str) -> list[jax.Array]:
    """x, y, scale and bias."""
    random = np.random.default_rng(0)
    rows = [random.standard_normal((BATCH, LENGTH, WIDTH)) for _ in range(2)]
    vectors = [center + 0.1 * random.standard_normal(WIDTH) for center in (1, 0)]
    return [*(jnp.asarray(x, dtype) for x in rows), *(jnp.asarray(x, "float32") for x in vectors)]


def differentiate(function: Any, site: Site, operands: Sequence[jax.Array]) -> Any:
    """The result, and gradients for a cotangent that differs for each use."""
    value, pull_back = jax.vjp(functools.partial(site.apply, function), *operands)
    cotangent = jnp.cos(1 + jnp.arange(value.size, dtype=jnp.float32)).reshape(value.shape)
    rounded = cotangent.astype(jnp.bfloat16).astype(value.dtype)  # the same in each dtype
    return value, pull_back(reshard(rounded, None, "batch", None, None))


def compare(found: Any, wanted: Any, near: float) -> None:
    for pair in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, other = (np.asarray(x, np.float32) for x in jax.device_get(pair))
        np.testing.assert_allclose(one, other, rtol=near, atol=near * np.abs(other).max())


@pytest.mark.equality
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("site", SITES, ids=str)
def test_kernel_has_the_values_and_gradients_of_the_formula(site: Site, dtype: str) -> None:
    """The formula is computed in float32: in bfloat16 JAX rounds each sum of gradients."""
    operands = draw(dtype)
    found = jax.jit(functools.partial(differentiate, fused_norm.add_and_norm, site))(operands)
    wide = [x.astype(jnp.float32) for x in operands]
    compare(
        found, differentiate(stack.add_and_norm, site, wide), 1e-5 if dtype == "float32" else 1e-2
    )
    value, gradients = found
    assert [x.dtype for x in (value, *gradients)] == [x.dtype for x in (operands[0], *operands)]


@pytest.mark.equality
@pytest.mark.parametrize("sizes", [(4, 1, 1), (1, 4, 1), (2, 2, 2)], ids=str)
def test_kernel_and_its_masks_are_the_same_on_any_mesh(sizes: tuple[int, int, int]) -> None:
    site, operands = Site("layer", "post", 0.3), draw("float32")
    run = jax.jit(functools.partial(differentiate, fused_norm.add_and_norm, site))
    wanted = jax.device_get(run(operands))
    mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])
    with jax.set_mesh(mesh):
        rows = spec("batch", None, None) or PartitionSpec()
        places = [NamedSharding(mesh, rows if x.ndim == 3 else PartitionSpec()) for x in operands]
        found = run([jax.device_put(*each) for each in zip(operands, places, strict=True)])
    compare(found, wanted, 1e-5)


def test_kernel_takes_any_number_of_positions() -> None:
    """With seven positions a tile of the kernel has one row."""
    site, operands = (
        Site("layer", "post", 0.3),
        [x[:1, :7] if x.ndim == 3 else x for x in draw("float32")],
    )
    found, wanted = (
        differentiate(f, site, operands) for f in (fused_norm.add_and_norm, stack.add_and_norm)
    )
    compare(found, wanted, 1e-5)


def test_gradients_of_all_uses_reach_the_kernel_one_by_one() -> None:
    """JAX adds none of them, and unused results take no part."""

    def use(x: jax.Array, number: int) -> jax.Array:
        shared = fused_norm.add_and_norm(Residual(ModelConfig(d_model=WIDTH), POLICY), x, x)
        return sum(
            (i * one.sum() for i, one in enumerate(shared.arrays[:number])), start=jnp.zeros(())
        )

    for number in (1, 2, USES):
        jaxpr = jax.make_jaxpr(jax.grad(lambda x, n=number: use(x, n)))(draw("float32")[0])
        *_, backward = (e for e in jaxpr.eqns if e.primitive.name == "pallas_call")
        sizes = [getattr(x.aval, "size", 0) for x in backward.invars]
        assert sizes.count(BATCH * LENGTH * WIDTH) == 1 + number


def test_kernel_has_the_signature_of_the_formula() -> None:
    formula, twin = (inspect.signature(f) for f in (stack.add_and_norm, fused_norm.add_and_norm))
    assert list(twin.parameters) == list(formula.parameters)


MODELS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm_position": "pre", "norm": "rms"},
    "scanned": {"scan_layers": True},
    "decoder_only": {"kind": "decoder_only"},
}


@pytest.mark.equality
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("post", (2, 2, 1)),
        *(
            pytest.param(name, (1, 1, 1), marks=pytest.mark.slow)
            for name in ("pre", "scanned", "decoder_only")
        ),
    ],
)
def test_step_with_the_kernel_is_that_of_the_formulas(
    name: str, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelConfig(
        num_layers=2, d_model=16, d_ff=16, num_heads=4, dropout=0.2, dtype="float32", **MODELS[name]
    )
    config = Config(model=model, training=TrainingConfig(warmup_steps=20))
    monkeypatch.setattr("t2t.ops.select_kernels.platform", lambda: "gpu")
    found = []
    for kernels in ("fused_norm", "textbook"):
        own = change(config, model={"kernels": kernels})
        mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])
        with jax.set_mesh(mesh):
            optimizer = make_optimizer(own)
            structure, state = init_state(own, optimizer, VOCAB_SIZE, VOCAB_SIZE)
            step = make_train_step(structure, own, optimizer)
            state, metrics = step(state, put_batch(make_batch(), mesh))
        found.append(jax.device_get((metrics, state.params)))
    assert_close(found[0][0], found[1][0], rtol=1e-4)
    assert_close(found[0][1], found[1][1], rtol=1e-2, atol=1e-4)


def test_kernel_is_chosen_on_gpus_alone_and_by_its_name_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = {kernels: ModelConfig(kernels=kernels) for kernels in ("auto", "fused_norm")}
    assert choose_policy(chosen["auto"]) == choose_policy(chosen["fused_norm"])
    monkeypatch.setattr("t2t.ops.select_kernels.platform", lambda: "gpu")
    named = {name: list_kernels(config)["add_and_norm"] for name, config in chosen.items()}
    assert named == {"auto": "model.stack", "fused_norm": "ops.fused_norm"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"norm": "none"}, "layer norm and RMS norm, not model.norm='none'"),
        ({"d_model": 24, "num_heads": 4}, "a power of two, unlike model.d_model=24"),
        ({"residual": False}, "a residual connection, which model.residual=False leaves out"),
        ({"kind": "rnn"}, "has no effect with model.kind='rnn'"),
    ],
)
def test_models_without_the_kernel_are_refused(values: dict[str, Any], message: str) -> None:
    config = change(Config(), model={"kernels": "fused_norm", **values})
    with pytest.raises(ConfigError, match=message) as refused:
        validate(config)
    assert "use model.kernels='auto'" in str(refused.value)
