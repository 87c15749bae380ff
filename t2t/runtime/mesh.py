"""The device mesh, and the table that assigns logical array dimensions to mesh axes.

The mesh has explicit axes (`AxisType.Explicit`): shardings are part of an array's type and follow
from the parameters' and the batch's, so the model names a sharding only where an operation leaves a
choice (a look-up, or a sum over a sharded dimension). Without a mesh, `spec` is None and everything
is on one device.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from t2t.config.fields import Config, ConfigError, MeshConfig

Tree = TypeVar("Tree")

RULES: dict[str, tuple[str, ...] | str] = {
    "batch": ("data", "fsdp"),  # rows of a batch
    "copy": "data",  # rows of a batch whose devices hold one copy of the parameters together
    "d_model": "fsdp",  # parameters only: activations are not sharded in this dimension
    "heads": "tensor",
    "d_ff": "tensor",
    "experts": "tensor",
    "vocabulary": "tensor",
}


# A mesh with an axis for each logical name, so that shardings show the names themselves.
LOGICAL_MESH = AbstractMesh((1,) * len(RULES), (*RULES,), (AxisType.Explicit,) * len(RULES))


def spec(*names: str | None) -> PartitionSpec | None:
    """The PartitionSpec of an array whose dimensions have these logical names.

    A name that is None leaves its dimension unsharded. Returns None if there is no mesh.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return None
    if mesh == LOGICAL_MESH:
        return PartitionSpec(*names)
    return PartitionSpec(*(None if name is None else RULES[name] for name in names))


def count_parts(name: str) -> int:
    """Returns into how many parts the mesh divides a dimension with this logical name."""
    axes = RULES[name]
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape.get(axis, 1) for axis in ([axes] if isinstance(axes, str) else axes))


def _place(tree: Tree, sharding: PartitionSpec | NamedSharding | None) -> Tree:
    """Reshards all arrays of a tree; without a mesh it returns them unchanged."""
    if jax.sharding.get_abstract_mesh().empty:
        return tree
    return jax.sharding.reshard(tree, sharding)


def replicate_for_loop(weights: jax.Array) -> jax.Array:
    """Replicates weights that a loop uses, and sums their gradients over devices after the loop.

    Otherwise every iteration of the loop would gather the weights and sum the gradients.
    """
    # `reduced`: inside of the loop their gradients are not summed over these axes.
    reduced = frozenset(RULES["batch"])
    return _place(weights, PartitionSpec(*[None] * weights.ndim, reduced=reduced))


def keep_partial_gradient(weights: jax.Array) -> jax.Array:
    """Returns weights whose gradient stays a partial sum on each device, until it is resharded.

    So a loop can add up gradients before devices do. It holds on meshes without `fsdp`, over which
    weights and gradients are sharded; there it returns the weights unchanged. JAX supports such
    weights in products, but not in stacks and in elementwise operations with activations.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["fsdp"] > 1 or mesh.shape["data"] == 1:
        return weights
    axes = [None if axis == "fsdp" else axis for axis in jax.typeof(weights).sharding.spec]
    return jax.sharding.reshard(weights, PartitionSpec(*axes, reduced=frozenset(RULES["batch"])))


def zero_gradient(weights: jax.Array) -> jax.Array:
    """Returns zeros, sharded as the gradient of these weights, perhaps as partial sums."""
    spec = jax.typeof(weights).sharding.spec
    zeros = jnp.zeros(weights.shape, weights.dtype)
    return _place(zeros, PartitionSpec(*spec.partitions, unreduced=spec.reduced))


def shard_over_data(weights: jax.Array) -> jax.Array:
    """Shards an array over `data` too, if it is not yet, in the first dimension that allows it.

    Used for the optimiser's update, which would be the same on every copy of the weights: each
    device computes its part, in 1/data of the time and memory (Xu et al. 2020; ZeRO's first stage).
    A gradient of partial sums stays as it is.
    """
    count = jax.sharding.get_abstract_mesh().shape.get("data", 1)
    if count == 1:
        return weights
    sharding = jax.typeof(weights).sharding
    if sharding.spec.unreduced:
        return weights
    axes_of = _list_axes(weights)
    if any("data" in axes for axes in axes_of):
        return weights
    for dimension, size in enumerate(sharding.shard_shape(weights.shape)):
        if size % count == 0:
            axes_of[dimension] += ("data",)
            return jax.sharding.reshard(weights, PartitionSpec(*axes_of))
    return weights


def gather_over_data(weights: jax.Array) -> jax.Array:
    """Reverses `shard_over_data`; returns other arrays as they are."""
    axes_of = _list_axes(weights)
    if not any("data" in axes for axes in axes_of):
        return weights
    kept = [tuple(axis for axis in axes if axis != "data") for axes in axes_of]
    return jax.sharding.reshard(weights, PartitionSpec(*kept))


def _list_axes(x: jax.Array) -> list[tuple[str, ...]]:
    """Returns the mesh axes over which each dimension is sharded."""
    spec = jax.typeof(x).sharding.spec
    return [() if axes is None else (axes,) if isinstance(axes, str) else axes for axes in spec]


def reshard(tree: Tree, *names: str | None) -> Tree:
    """Reshards all arrays of a tree to `spec(*names)`; without a mesh it returns them unchanged.

    Without names, no dimension is sharded.
    """
    return _place(tree, spec(*names))


def reshard_like(x: jax.Array, other: jax.Array) -> jax.Array:
    """Reshards x as `other`, an array of the same shape."""
    return _place(x, jax.typeof(other).sharding)


def share_out(x: jax.Array) -> jax.Array:
    """Shards the first dimension over all devices; adds zeros where its size is no multiple."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    padded = jnp.pad(x, [(0, -len(x) % mesh.size)] + [(0, 0)] * (x.ndim - 1))
    return jax.sharding.reshard(padded, PartitionSpec(mesh.axis_names))


def platform() -> str:
    """Platform of the mesh's devices, `cpu`, `gpu` or `tpu`; they may be on another machine."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Makes a mesh (data, fsdp, tensor) of all devices; a size of -1 takes what the others leave.

    Of several TPU slices each gets an equal part of `data`, so that `fsdp` and `tensor` stay inside
    a slice: only the sum of gradients takes the slow network between slices.

    Raises:
        ConfigError: the product of the sizes is not the number of devices, or the slices cannot
            share `data`.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {"data": config.data, "fsdp": config.fsdp, "tensor": config.tensor}
    rest, remainder = divmod(len(devices), math.prod(s for s in sizes.values() if s != -1))
    filled = {axis: rest if size == -1 else size for axis, size in sizes.items()}
    if remainder or math.prod(filled.values()) != len(devices):
        raise ConfigError(
            f"mesh {sizes} does not cover {len(devices)} devices; "
            "choose sizes whose product is the number of devices, or -1 for one of them"
        )
    slices = split_into_slices(devices)
    if filled["data"] % len(slices):
        raise ConfigError(
            f"mesh.data={filled['data']} cannot be split over {len(slices)} TPU slices; choose a "
            f"multiple of {len(slices)}, and a smaller mesh.fsdp or mesh.tensor"
        )
    shape = (filled["data"] // len(slices), filled["fsdp"], filled["tensor"])
    types = (AxisType.Explicit,) * len(filled)
    # jax.make_mesh orders the devices of one slice along its torus; several slices it cannot join.
    parts = [jax.make_mesh(shape, tuple(filled), types, devices=part) for part in slices]
    return Mesh(np.concatenate([part.devices for part in parts]), tuple(filled), types)


def split_into_slices(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
    """Groups TPUs by slice, in the order of the slices; other devices are one group."""
    slices: dict[int, list[jax.Device]] = {}
    for device in devices:
        # On GPUs the attribute numbers hosts.
        number = getattr(device, "slice_index", 0) if device.platform == "tpu" else 0
        slices.setdefault(number, []).append(device)
    return [slices[number] for number in sorted(slices)]


def check_divisibility(config: Config, mesh: Mesh) -> None:
    """Checks that every dimension that `RULES` shards is divisible by its mesh axis.

    Raises:
        ConfigError: some are not; the message names the nearest sizes that are.
    """
    model = config.model
    heads = "model.num_heads" if model.num_kv_heads is None else "model.num_kv_heads"
    dimensions = [
        ("model.d_model", model.d_model, "d_model"),
        ("tokenizer.vocab_size", config.tokenizer.vocab_size, "vocabulary"),
    ]
    if model.kind != "rnn":  # in a recurrent model `tensor` shards only the vocabulary
        dimensions += [(heads, model.kv_heads, "heads")]
        if model.feed_forward == "moe":
            dimensions += [("model.num_experts", model.num_experts, "experts")]
        else:
            dimensions += [("model.d_ff", model.d_ff, "d_ff")]
    problems = []
    for field, size, name in dimensions:
        axis = RULES[name]
        parts = mesh.shape[axis]
        if size % parts:
            lower, higher = size // parts * parts, math.ceil(size / parts) * parts
            fits = f"{lower} or {higher}" if lower else str(higher)
            problems.append(
                f"{field}={size} cannot be split into mesh.{axis}={parts} equal parts; use {fits}, "
                f"or a mesh.{axis} that divides {size}"
            )
    if problems:
        raise ConfigError("\n".join(problems))


def put_like(tree: Any, like: Any) -> Any:
    """Places arrays that every process holds in full on the current mesh, sharded as in `like`."""
    specs = jax.tree.map(lambda x: x.sharding.spec, like)
    return jax.device_put(jax.device_get(tree), specs)
