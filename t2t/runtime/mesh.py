"""The device mesh, and the one table that says which array dimensions lie on which mesh axis.

The mesh is explicit: shardings are part of an array's type and follow from the parameters' and
the batch's, so the model names a sharding only where an operation leaves a choice (a look-up, or
a sum over a sharded dimension). Without a mesh, `spec` is None and everything is on one device.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, PartitionSpec

from t2t.config.fields import Config, ConfigError, MeshConfig

RULES: dict[str, tuple[str, ...] | str] = {
    "batch": ("data", "fsdp"),  # rows of a batch
    "d_model": "fsdp",  # parameters only: activations are whole in this dimension
    "heads": "tensor",
    "d_ff": "tensor",
    "vocabulary": "tensor",
}


def spec(*names: str | None) -> PartitionSpec | None:
    """Partition of an array whose dimensions have these logical names; None: not partitioned."""
    if jax.sharding.get_abstract_mesh().empty:
        return None
    return PartitionSpec(*(None if name is None else RULES[name] for name in names))


def keep_whole(weights: jax.Array) -> jax.Array:
    """Weights for a loop: whole on each device, and the devices' gradients summed once, after it.

    Without this both would be sent in each of its rounds.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return weights
    whole = PartitionSpec(*[None] * weights.ndim, reduced=frozenset(RULES["batch"]))
    gathered: jax.Array = jax.sharding.reshard(weights, whole)
    return gathered


def share(weights: jax.Array) -> jax.Array:
    """Cut over `data` as well, if it is not yet, along the first dimension that allows it.

    For what would be computed on each copy of the weights alike, their update: each device makes
    its part, which takes 1/data of the time and of the memory (Xu et al. 2020; ZeRO's first stage).
    """
    count = jax.sharding.get_abstract_mesh().shape.get("data", 1)
    if count == 1:
        return weights
    sharding = jax.typeof(weights).sharding
    cut = [() if x is None else (x,) if isinstance(x, str) else x for x in sharding.spec]
    if any("data" in axes for axes in cut):
        return weights
    for axis, size in enumerate(sharding.shard_shape(weights.shape)):
        if size % count == 0:
            cut[axis] += ("data",)
            shared: jax.Array = jax.sharding.reshard(weights, PartitionSpec(*cut))
            return shared
    return weights


def reshard_like(x: jax.Array, other: jax.Array) -> jax.Array:
    """Placed on the devices as the other is, which has the same shape."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    placed: jax.Array = jax.sharding.reshard(x, jax.typeof(other).sharding)
    return placed


def platform() -> str:
    """`cpu`, `gpu` or `tpu`: of the mesh's devices, which need not be this machine's own."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh (data, fsdp, tensor) over all devices; a size of -1 takes what the others leave.

    Raises:
        ConfigError: the sizes do not multiply to the number of devices.
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
    return jax.make_mesh(
        tuple(filled.values()),
        tuple(filled),
        axis_types=(AxisType.Explicit,) * len(filled),
        devices=devices,
    )


def check_divisibility(config: Config, mesh: Mesh) -> None:
    """Every dimension that `RULES` cut has to fall into equal parts.

    Raises:
        ConfigError: one does not; the message has the nearest sizes that would.
    """
    model = config.model
    heads = "model.num_heads" if model.num_kv_heads is None else "model.num_kv_heads"
    dimensions = [
        ("model.d_model", model.d_model, "d_model"),
        ("tokenizer.vocab_size", config.tokenizer.vocab_size, "vocabulary"),
    ]
    if model.kind == "transformer":  # of a recurrent model, `tensor` cuts the tables alone
        dimensions += [(heads, model.kv_heads, "heads"), ("model.d_ff", model.d_ff, "d_ff")]
    problems = []
    for field, size, name in dimensions:
        axis = RULES[name]
        parts = mesh.shape[axis]
        if size % parts:
            lower, higher = size // parts * parts, math.ceil(size / parts) * parts
            fits = f"{lower} or {higher}" if lower else str(higher)
            problems.append(
                f"{field}={size} cannot be cut into mesh.{axis}={parts} equal parts; use {fits}, "
                f"or a mesh.{axis} that divides {size}"
            )
    if problems:
        raise ConfigError("\n".join(problems))


def put_like(tree: Any, like: Any) -> Any:
    """Arrays that every process has whole, on the mesh in use, cut as those of `like` are."""
    specs = jax.tree.map(lambda x: x.sharding.spec, like)
    return jax.device_put(jax.device_get(tree), specs)
