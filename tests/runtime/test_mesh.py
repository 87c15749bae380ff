"""The mesh, its sharding rules, and models that compute the same on every mesh."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from t2t.config.fields import Config, ConfigError, MeshConfig, ModelConfig, TokenizerConfig
from t2t.data.batch import Batch, HostBatch
from t2t.data.loader import find_row_shards, put_batch
from t2t.model.interface import Params, merge
from t2t.model.loss import smoothed_cross_entropy
from t2t.ops.build_model import describe_model, init_model
from t2t.runtime.mesh import (
    RULES,
    check_divisibility,
    make_mesh,
    reshard_like,
    shard_over_data,
    spec,
)
from t2t.training.losses import CrossEntropy
from tests.model.small_models import SMALL, VARIANTS, combine_variants, name_fields

# Every kind of parameter, and dropout in every place.
MODELS = {
    "transformer": ModelConfig(
        num_layers=1,
        d_model=16,
        d_ff=24,
        num_heads=8,
        num_kv_heads=4,
        position="relative",
        feed_forward="swiglu",
        tie_embeddings="decoder",
        dropout=0.1,
        attention_dropout=0.2,
        feed_forward_dropout=0.3,
        dtype="float32",
    ),
    "rnn": ModelConfig(
        kind="rnn",
        rnn_cell="lstm",
        num_layers=1,
        d_model=16,
        tie_embeddings="decoder",
        dropout=0.1,
        dtype="float32",
    ),
}
VOCAB_SIZE = 20
ALL_AXES = "data 2, fsdp 2, tensor 2"
MESHES = {
    "data 8": MeshConfig(data=8),
    "fsdp 8": MeshConfig(data=1, fsdp=8),
    ALL_AXES: MeshConfig(data=2, fsdp=2, tensor=2),
    "data 2, tensor 4": MeshConfig(data=2, tensor=4),
}

each_mesh = pytest.mark.parametrize(
    "mesh",
    [pytest.param(name, marks=[] if name == ALL_AXES else [pytest.mark.slow]) for name in MESHES],
)

each_kind = pytest.mark.parametrize(
    "kind", ["transformer", pytest.param("rnn", marks=pytest.mark.slow)]
)

# Logical names of the first dimensions of every parameter that is sharded.
TABLES: dict[str, tuple[str | None, ...]] = {
    "tgt_embedding": ("vocabulary", "d_model"),
    "src_embedding": ("vocabulary", "d_model"),
}
DIMENSIONS_OF_TRANSFORMER: dict[str, tuple[str | None, ...]] = TABLES | {
    "query_key_value": ("d_model", "heads", None),
    "query": ("d_model", "heads", None),
    "key_value": ("d_model", "heads", None),
    "output": ("heads", None, "d_model"),
    "inner": (None, "d_model", "d_ff"),
    "inner.bias": (None, "d_ff"),
    "outer": ("d_ff", "d_model"),
    "src_position": (None, "heads"),
    "tgt_position": (None, "heads"),
}
DIMENSIONS_OF_RNN: dict[str, tuple[str | None, ...]] = TABLES | {
    "input": ("d_model",),
    "key": ("d_model",),
    "readout": (None, "d_model"),
}
DIMENSIONS = {"transformer": DIMENSIONS_OF_TRANSFORMER, "rnn": DIMENSIONS_OF_RNN}


class Outcome(NamedTuple):
    params: Params
    hidden: Float[Array, "B T D"]
    loss: Float[Array, ""]
    gradients: Params


@functools.cache
def compute(kind: str, mesh: str) -> Outcome:
    """Returns initial parameters, and a batch's outputs, loss and gradients with dropout."""
    placed = None if mesh == "one device" else make_mesh(MESHES[mesh])
    with jax.set_mesh(placed) if placed else contextlib.nullcontext():
        batch = put_batch(draw_batch(), placed) if placed else draw_batch()
        outcome: Outcome = jax.jit(make_run(kind))(batch, jax.random.key(1))
    return outcome


@functools.cache
def trace(kind: str, mesh: str) -> Outcome:
    """Returns the shapes and shardings of the same, which need no compilation."""
    placed = make_mesh(MESHES[mesh])
    with jax.set_mesh(placed):
        described: Outcome = jax.eval_shape(
            make_run(kind), put_batch(draw_batch(), placed), jax.random.key(1)
        )
    return described


def make_run(kind: str) -> Callable[[Batch[Any], jax.Array], Outcome]:
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
@each_mesh
def test_parameters_outputs_and_gradients_under_dropout_are_the_same_on_any_mesh(
    kind: str, mesh: str
) -> None:
    found, wanted = compute(kind, mesh), compute(kind, "one device")
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(compare, found.params, wanted.params)
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(compare, found[1:], wanted[1:])
    described = trace(kind, mesh).params
    jax.tree.map(
        lambda a, b: np.testing.assert_equal(part_of(a), part_of(b)), found.params, described
    )


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
@pytest.mark.parametrize("mesh", ["one device", pytest.param(ALL_AXES, marks=pytest.mark.slow)])
def test_shardings_of_every_variant_fit_together(changes: dict[str, Any], mesh: str) -> None:
    """Traces the variants: JAX checks shardings during tracing, so nothing is compiled."""
    config = dataclasses.replace(SMALL, **changes)
    sizes = MeshConfig(data=1) if mesh == "one device" else MESHES[mesh]
    if config.kind != "rnn" and config.kv_heads % sizes.tensor:
        sizes = MeshConfig(data=4, fsdp=2)
    count = sizes.data * sizes.fsdp * sizes.tensor
    with jax.set_mesh(make_mesh(sizes, jax.devices()[:count])):
        structure, params = describe_model(config, VOCAB_SIZE, VOCAB_SIZE)

        def sum_losses(params: Params, batch: Batch[jax.Array]) -> jax.Array:
            return CrossEntropy(Config())(merge(structure, params), batch, jax.random.key(0))[0]

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


@pytest.mark.parametrize("kind", MODELS)
@each_mesh
def test_parameters_and_gradients_are_cut_as_the_rules_say(kind: str, mesh: str) -> None:
    sizes = make_mesh(MESHES[mesh]).shape
    outcome = trace(kind, mesh)
    for path, leaf in jax.tree.leaves_with_path(outcome.params):
        keys = jax.tree_util.keystr(path, simple=True, separator=".").split(".")
        *_, owner, name = ["the model", *keys]
        named = (
            f"{owner}.bias" if name == "bias" else owner if name in ("table", "weight") else name
        )
        dimensions = DIMENSIONS[kind].get(named, ())
        dimensions = (*dimensions, *(None,) * (leaf.ndim - len(dimensions)))
        cuts = [1 if dimension is None else sizes[RULES[dimension]] for dimension in dimensions]
        wanted = tuple(size // cut for size, cut in zip(leaf.shape, cuts, strict=True))
        assert part_of(leaf) == wanted, path
    shardings, of_gradients = (
        jax.tree.map(lambda x: x.sharding, tree) for tree in (outcome.params, outcome.gradients)
    )
    assert shardings == of_gradients


@pytest.mark.parametrize(
    ("shape", "names", "part"),
    [
        ((20, 16), ("vocabulary", "d_model"), (5, 8)),
        ((3, 16), (None, "d_model"), (3, 4)),  # 3 is not divisible by 2
        ((16,), (None,), (8,)),
    ],
)
def test_update_is_sharded_over_copies(
    shape: tuple[int, ...], names: tuple[str | None, ...], part: tuple[int, ...]
) -> None:
    with jax.set_mesh(make_mesh(MESHES[ALL_AXES])):
        weights = jnp.zeros(shape, out_sharding=spec(*names))
        shared = shard_over_data(weights)
        assert shared.sharding.shard_shape(shape) == part
        assert reshard_like(shared, weights).sharding == weights.sharding


def test_mesh_gives_the_rest_to_the_open_axis() -> None:
    mesh = make_mesh(MeshConfig(data=-1, fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert set(mesh.axis_types) == {AxisType.Explicit}
    assert find_row_shards(mesh) == (4, (0, 1, 2, 3))


@pytest.mark.parametrize(
    "config", [MeshConfig(data=3), MeshConfig(data=4), MeshConfig(fsdp=3), MeshConfig(tensor=16)]
)
def test_mesh_that_does_not_cover_the_devices_is_refused(config: MeshConfig) -> None:
    with pytest.raises(ConfigError, match="does not cover 8 devices; choose sizes"):
        make_mesh(config)


@pytest.fixture
def two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices with even numbers are one slice, the others another."""
    monkeypatch.setattr(
        "t2t.runtime.mesh.split_into_slices", lambda devices: [devices[::2], devices[1::2]]
    )


@pytest.mark.usefixtures("two_slices")
def test_slices_share_data_and_keep_the_other_axes_inside() -> None:
    mesh = make_mesh(MeshConfig(fsdp=2))
    slices = [[device.id % 2 for device in row.flat] for row in mesh.devices]
    assert slices == [[0, 0], [0, 0], [1, 1], [1, 1]]


@pytest.mark.usefixtures("two_slices")
def test_slices_that_cannot_share_data_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"mesh\.data=1 cannot be split over 2 TPU slices"):
        make_mesh(MeshConfig(fsdp=8))


def test_batch_is_unchanged_by_the_mesh() -> None:
    batch, mesh = draw_batch(), make_mesh(MESHES["data 2, fsdp 2, tensor 2"])
    placed = put_batch(batch, mesh)
    jax.tree.map(np.testing.assert_array_equal, placed, batch)
    assert {x.dtype for x in placed} == {jnp.dtype("int32"), jnp.dtype("float32")}
    rows = [shard.data.shape[0] for shard in placed.src.addressable_shards]
    assert rows == [2] * 8  # four parts, each on the two devices of `tensor`


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
            MeshConfig(tensor=4),
            {"num_kv_heads": 6, "num_heads": 12},
            "num_kv_heads=6 .* use 4 or 8",
        ),
        (MeshConfig(fsdp=8), {"d_model": 20}, "model.d_model=20 .* mesh.fsdp=8 .* use 16 or 24, "),
        (
            MeshConfig(tensor=8),
            {"d_ff": 100},
            r"(?s)vocab_size=36 .*\nmodel.d_ff=100 .* 96 or 104, ",
        ),
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
    config = Config(
        model=dataclasses.replace(ModelConfig(), **values), tokenizer=TokenizerConfig(vocab_size=36)
    )
    with pytest.raises(ConfigError, match=message):
        check_divisibility(config, make_mesh(mesh))


def test_heads_that_a_recurrent_model_does_not_have_need_not_fit_the_mesh() -> None:
    model = ModelConfig(kind="rnn", num_heads=3)
    check_divisibility(Config(model=model), make_mesh(MeshConfig(tensor=8)))
