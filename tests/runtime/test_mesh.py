"""The mesh, its sharding rules, and models that compute the same on every mesh."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from t2t.config.fields import Config, ConfigError, MeshConfig, ModelConfig, TokenizerConfig
from t2t.data.batch import Batch, HostBatch
from t2t.data.loader import find_row_shards, put_batch
from t2t.model.layers import Embedding
from t2t.model.loss import smoothed_cross_entropy
from t2t.model.parameters import Params, merge
from t2t.ops.build_model import abstract_model, init_model
from t2t.runtime.mesh import (
    RULES,
    check_divisibility,
    make_mesh,
)
from t2t.training.losses import make_loss
from tests.model.small_models import SMALL, VARIANTS, combine_variants, name_fields

# Every kind of parameter, and dropout in every place.
MODELS = {
    "transformer": dataclasses.replace(
        SMALL, num_heads=8, num_kv_heads=4, position="relative", feed_forward="swiglu",
        tie_embeddings="decoder", dropout=0.1, attention_dropout=0.2, feed_forward_dropout=0.3,
    ),
    "rnn": dataclasses.replace(
        SMALL, kind="rnn", rnn_cell="lstm", tie_embeddings="decoder", dropout=0.1
    ),
}  # fmt: skip
VOCAB_SIZE = 20
# Over all axes. `tests/test_meshes.py` trains on the others, with dropout.
MESH = MeshConfig(data=2, fsdp=2, tensor=2)

each_kind = pytest.mark.parametrize(
    "kind", ["transformer", pytest.param("rnn", marks=pytest.mark.slow)]
)

# Into how many parts the mesh cuts each parameter; it cuts no other.
PARTS = {
    "transformer": {
        "embedding": 4, "query_key_value": 4, "query": 4, "key_value": 4, "output": 4, "inner": 4,
        "inner.bias": 2, "outer": 4, "position": 2,
    },
    "rnn": {"embedding": 4, "input": 2, "key": 2, "readout": 2},
}  # fmt: skip


class Outcome(NamedTuple):
    params: Params
    hidden: Float[Array, "B T D"]
    loss: Float[Array, ""]
    gradients: Params


@functools.cache
def trace(kind: str) -> Outcome:
    """Returns the shapes and shardings of `make_run`, which need no compilation."""
    placed = make_mesh(MESH)
    with jax.set_mesh(placed):
        described: Outcome = jax.eval_shape(
            make_run(kind), put_batch(draw_batch(), placed), jax.random.key(1)
        )
    return described


def make_run(kind: str) -> Callable[[Batch[Any], jax.Array], Outcome]:
    """Initial parameters, and a batch's outputs, loss and gradients with dropout."""

    def run(batch: Batch[Any], key: jax.Array) -> Outcome:
        structure, params = init_model(MODELS[kind], VOCAB_SIZE, VOCAB_SIZE, jax.random.key(0))

        def sum_losses(params: Params) -> tuple[Float[Array, ""], Float[Array, "B T D"]]:
            model = merge(structure, params)
            hidden, table, targets, weights, _ = model.predict(batch, key)
            loss, _ = smoothed_cross_entropy(hidden, table, targets, weights, 0.1)
            return loss, hidden

        (loss, hidden), gradients = jax.value_and_grad(sum_losses, has_aux=True)(params)
        return Outcome(params, hidden, loss, gradients)

    return run


def draw_batch() -> HostBatch:
    random = np.random.default_rng(0)
    src, tgt_in, tgt_out = (
        random.integers(2, VOCAB_SIZE, (8, length)).astype(np.int32) for length in (6, 5, 5)
    )
    src[::2, 4:] = 0
    weights = (random.random(tgt_out.shape) < 0.8).astype(np.float32)
    return Batch(src, tgt_in, tgt_out, weights)


@pytest.mark.equality
@each_kind
def test_parameters_outputs_and_gradients_under_dropout_are_the_same_on_a_mesh(kind: str) -> None:
    run, key = jax.jit(make_run(kind)), jax.random.key(1)
    wanted = run(draw_batch(), key)
    with jax.set_mesh(mesh := make_mesh(MESH)):
        placed = put_batch(draw_batch(), mesh)
        found = run(placed, key)
    assert part_of(placed.src) == (2, 6)  # of 8 rows
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(compare, found.params, wanted.params)
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(compare, found[1:], wanted[1:])
    assert jax.tree.map(part_of, found.params) == jax.tree.map(part_of, trace(kind).params)


# The other combinations have no parameter or bias of another kind.
FEW = ("learned", "relative", "alibi", "lstm", "moe")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, marks=[] if {*FEW} & {*changes.values()} else [pytest.mark.slow])
        for changes in combine_variants(VARIANTS)
    ],
    ids=name_fields,
)
def test_shardings_of_every_variant_fit_together(changes: dict[str, Any]) -> None:
    """Traces the variants: JAX checks shardings during tracing, so nothing is compiled."""
    config = dataclasses.replace(SMALL, **changes)
    cannot_cut = config.kind != "rnn" and config.kv_heads % MESH.tensor
    with jax.set_mesh(make_mesh(MeshConfig(data=4, fsdp=2) if cannot_cut else MESH)):
        structure, params = abstract_model(config, VOCAB_SIZE, VOCAB_SIZE)

        def sum_losses(params: Params, batch: Batch[jax.Array]) -> jax.Array:
            model = merge(structure, params)
            return make_loss(Config()).sum_losses(model, batch, jax.random.key(0))[0]

        def take_step(params: Params, src: jax.Array) -> jax.Array:
            model = merge(structure, params)
            cache = model.init_cache(src, 2, 6)
            logits, _ = model.decode_step(src[:, :2], src[:, :2], cache)
            return logits

        ids = jax.ShapeDtypeStruct((8, 4), jnp.int32, sharding=row_sharding())
        weights = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=row_sharding())
        batch = Batch(ids, ids, ids, weights)
        gradients = jax.eval_shape(jax.grad(sum_losses), params, batch)
        assert jax.tree.map(place_of, gradients) == jax.tree.map(place_of, params)
        jax.eval_shape(take_step, params, ids)


def row_sharding() -> NamedSharding:
    return NamedSharding(jax.sharding.get_mesh(), PartitionSpec(RULES["batch"], None))


def place_of(leaf: jax.ShapeDtypeStruct) -> PartitionSpec:
    assert isinstance(leaf.sharding, NamedSharding)
    return leaf.sharding.spec


def part_of(leaf: Any) -> tuple[int, ...]:
    """The shape of a device's part."""
    part: tuple[int, ...] = leaf.sharding.shard_shape(leaf.shape)
    return part


def test_looked_up_rows_are_those_of_one_device_in_bfloat16() -> None:
    """With `fsdp` devices round rows before they exchange them."""
    ids = jax.random.randint(jax.random.key(1), (8, 5), 0, VOCAB_SIZE)

    def look_up(ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        embedding = Embedding(SMALL, VOCAB_SIZE, jax.random.key(0))
        return embedding.look_up(ids, jnp.dtype("bfloat16"))

    alone = jax.jit(look_up)(ids)
    with jax.set_mesh(make_mesh(MESH)):
        placed = jax.device_put(ids, row_sharding())
        rows = jax.jit(look_up)(placed)
    assert rows.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rows, alone)


@pytest.mark.parametrize("kind", MODELS)
def test_matrices_and_their_gradients_are_cut_by_the_mesh(kind: str) -> None:
    outcome = trace(kind)
    for path, leaf in jax.tree.leaves_with_path(outcome.params):
        *_, owner, name = ["", *jax.tree_util.keystr(path, simple=True, separator=".").split(".")]
        owner = owner.removeprefix("src_").removeprefix("tgt_")
        named = {"bias": f"{owner}.bias", "table": owner, "weight": owner}.get(name, name)
        assert math.prod(leaf.shape) // math.prod(part_of(leaf)) == PARTS[kind].get(named, 1), path
    assert jax.tree.map(place_of, outcome.gradients) == jax.tree.map(place_of, outcome.params)


def test_mesh_gives_the_rest_to_the_open_axis() -> None:
    mesh = make_mesh(MeshConfig(data=-1, fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert set(mesh.axis_types) == {AxisType.Explicit}
    assert find_row_shards(mesh) == (4, (0, 1, 2, 3))


@pytest.mark.parametrize("config", [MeshConfig(data=4), MeshConfig(fsdp=3)])
def test_mesh_that_does_not_cover_the_devices_is_refused(config: MeshConfig) -> None:
    with pytest.raises(ConfigError, match="does not cover 8 devices; choose sizes"):
        make_mesh(config)


def test_slices_share_data_and_keep_the_other_axes_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices with even numbers are one slice, the others another."""
    monkeypatch.setattr(
        "t2t.runtime.mesh.split_into_slices", lambda devices: [devices[::2], devices[1::2]]
    )
    mesh = make_mesh(MeshConfig(fsdp=2))
    slices = [[device.id % 2 for device in row.flat] for row in mesh.devices]
    assert slices == [[0, 0], [0, 0], [1, 1], [1, 1]]
    with pytest.raises(ConfigError, match=r"mesh\.data=1 cannot be split over 2 TPU slices"):
        make_mesh(MeshConfig(fsdp=8))


@pytest.mark.parametrize(
    ("mesh", "values", "message"),
    [
        (
            MeshConfig(tensor=4),
            {"num_heads": 2},
            "model.num_heads=2 cannot be split into mesh.tensor=4 equal parts; use 4, "
            "or a mesh.tensor that divides 2$",
        ),
        (
            MeshConfig(tensor=8),
            {"d_ff": 100, "num_heads": 24, "num_kv_heads": 12},
            r"(?s)vocab_size=36 .*\nmodel.num_kv_heads=12 .* use 8 or 16.*d_ff=100 .* 96 or 104, ",
        ),
        (MeshConfig(fsdp=8), {"d_model": 20}, "model.d_model=20 .* mesh.fsdp=8 .* use 16 or 24, "),
        (
            MeshConfig(tensor=4),
            {"feed_forward": "moe", "num_experts": 6, "d_ff": 100},
            r"^model.num_experts=6 .* use 4 or 8, or a mesh.tensor that divides 6$",
        ),
    ],
)
def test_model_that_the_mesh_cannot_cut_is_refused(
    mesh: MeshConfig, values: dict[str, Any], message: str
) -> None:
    config = Config(model=ModelConfig(**values), tokenizer=TokenizerConfig(vocab_size=36))
    with pytest.raises(ConfigError, match=message):
        check_divisibility(config, make_mesh(mesh))
    recurrent = dataclasses.replace(config, model=ModelConfig(kind="rnn", num_heads=3))
    check_divisibility(recurrent, make_mesh(MeshConfig(tensor=4)))
