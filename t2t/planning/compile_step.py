"""Compiles the train step ahead of time for devices that this machine need not have.

Only shapes and shardings are used; no array is allocated.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t2t.config.fields import Config
from t2t.data.batch import Batch
from t2t.runtime.mesh import RULES
from t2t.training.optimizer import make_optimizer, make_run_optimizer
from t2t.training.sharing import Sharing
from t2t.training.state import TrainState, abstract_state, pick_state
from t2t.training.step import make_train_step


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """Bytes on each device while a step runs."""

    parameters: int
    optimizer: int  # state of the optimiser, moving average, teachers, counters, random key
    batch: int
    activations: int  # and gradients, and all other temporaries of a step
    code: int
    other: int  # metrics, and padding of the arrays above to whole tiles

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A compiled train step."""

    text: str  # optimised HLO
    memory: DeviceMemory
    axes: Mapping[str, int]  # of the mesh: name -> size
    hosts: Sequence[int]  # of the devices, in the order of the mesh
    flops: float | None = None  # by XLA's analysis, which counts the body of a loop once


class OutOfMemoryError(RuntimeError):
    """The step does not fit into memory; `num_bytes` is its size, if the compiler says it."""

    def __init__(self, message: str):
        super().__init__(message)
        self.num_bytes = _read_size(message)


def compile_step(
    config: Config, mesh: Mesh, rows: int, src_length: int, tgt_length: int
) -> CompiledStep:
    """Compiles the train step for batches of this shape and the devices of the mesh.

    Raises:
        OutOfMemoryError: the step does not fit into the memory of the devices.
    """
    lowered, state, batch = lower_step(config, mesh, rows, src_length, tgt_length)
    with jax.set_mesh(mesh):
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise OutOfMemoryError(str(error)) from None
        memory = divide_memory(compiled, state, batch)
        if not Sharing(config).is_plain:
            memory = _add_unused(memory, config, state)
    return CompiledStep(
        text=compiled.as_text() or "",
        memory=memory,
        axes=dict(mesh.shape),
        hosts=[device.process_index for device in mesh.devices.flat],
        flops=(compiled.cost_analysis() or {}).get("flops"),
    )


def lower_step(
    config: Config, mesh: Mesh, rows: int, src_length: int, tgt_length: int
) -> tuple[jax.stages.Lowered, TrainState, Batch[jax.ShapeDtypeStruct]]:
    """Traces the train step; returns it, and the shapes of its arguments, state and batch.

    If tasks have their own stacks, they are those of the first task.
    """
    sharing = Sharing(config)
    route = next(iter(sharing.tasks))
    with jax.set_mesh(mesh):
        name_of = functools.partial(sharing.name_of, route=route)
        optimizer = make_optimizer(config, name_of)
        structure, whole = _describe_state(config)
        state = pick_state(whole, sharing, route)
        batch = abstract_batch(mesh, rows, src_length, tgt_length)
        step = make_train_step(structure, config, optimizer, name_of)
        return step.lower(state, batch), state, batch  # type: ignore[attr-defined]


def _describe_state(config: Config) -> tuple[Any, TrainState]:
    """Returns a plain model's structure, and the shapes of the state of the run."""
    size = config.tokenizer.vocab_size
    return abstract_state(config, make_run_optimizer(config), size, size)


def _add_unused(memory: DeviceMemory, config: Config, used: TrainState) -> DeviceMemory:
    """Adds the stacks of other tasks, which stay in memory while a step runs."""
    _, whole = _describe_state(config)
    parameters = count_bytes(whole.params) - count_bytes(used.params)
    return dataclasses.replace(
        memory,
        parameters=memory.parameters + parameters,
        optimizer=memory.optimizer + count_bytes(whole) - count_bytes(used) - parameters,
    )


def abstract_batch(
    mesh: Mesh, rows: int, src_length: int, tgt_length: int
) -> Batch[jax.ShapeDtypeStruct]:
    """Returns the shapes and shardings of a batch."""
    sharding = NamedSharding(mesh, PartitionSpec(RULES["batch"]))

    def describe(length: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, length), dtype, sharding=sharding)

    return Batch(
        src=describe(src_length),
        tgt_in=describe(tgt_length),
        tgt_out=describe(tgt_length),
        weights=describe(tgt_length, jnp.float32),
    )


def count_bytes(tree: Any) -> int:
    """Bytes on one device of arrays with these shapes and shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def divide_memory(
    compiled: jax.stages.Compiled, state: TrainState, batch: Batch[jax.ShapeDtypeStruct]
) -> DeviceMemory:
    """Returns the memory of a compiled step, by the compiler's analysis."""
    stats = compiled.memory_analysis()
    assert stats is not None
    parameters = count_bytes(state.params)
    optimizer = count_bytes(state) - parameters
    own = parameters + optimizer + count_bytes(batch)
    held = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return DeviceMemory(
        parameters=parameters,
        optimizer=optimizer,
        batch=count_bytes(batch),
        activations=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
        other=held - own,
    )


def _read_size(message: str) -> int | None:
    """Reads the bytes from `Used 20.5G of 15.75G hbm` or `HLO temporaries (64.00G)`."""
    found = re.search(r"(?:Used |temporaries \()([\d.]+)([KMGT])", message)
    return round(float(found[1]) * 1024 ** (" KMGT".index(found[2]))) if found else None
