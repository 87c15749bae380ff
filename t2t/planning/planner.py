"""Plans a recipe on a topology: compiles and estimates it on one mesh or on several."""

import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence

from jax.sharding import Mesh

from t2t.config.fields import Config, ConfigError, MeshConfig
from t2t.planning.batch_shapes import PlannedShape, plan_shapes
from t2t.planning.compile_step import OutOfMemoryError, compile_step
from t2t.planning.roofline import Estimate, estimate
from t2t.planning.topology import Topology
from t2t.runtime.mesh import RULES, check_divisibility, make_mesh

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ShapePlan:
    """The plan of one batch shape on one mesh; FLOPs and bytes are per device and step."""

    shape: PlannedShape
    fits: bool
    memory_bytes: int | None  # None: too large for the compiler to say
    model_flops: float  # by the closed form, without padding
    estimate: Estimate | None  # None: out of memory, not compiled
    compile_seconds: float


@dataclasses.dataclass(frozen=True)
class TrainingTime:
    """The estimated time of a whole training run."""

    mean_step_seconds: float
    tokens_per_second: float
    hours: float
    accelerator_hours: float


@dataclasses.dataclass(frozen=True)
class TrainingEstimate:
    """The estimate of a whole training run."""

    steps: int
    tokens_per_step: float  # target tokens without padding, mean over all steps
    time: TrainingTime | None  # None: no estimate of the time of a step


@dataclasses.dataclass(frozen=True)
class MeshPlan:
    """The plan of a recipe on one mesh."""

    mesh: dict[str, int]  # axis -> size
    shapes: tuple[PlannedShape, ...]  # all batch shapes, the one with the most FLOPs first
    compiled: tuple[ShapePlan, ...]  # of the first shape, or of all
    training: TrainingEstimate | None  # None: it does not fit

    @property
    def heaviest(self) -> ShapePlan:
        """The plan of the shape with the most FLOPs."""
        return self.compiled[0]

    @property
    def step_seconds_range(self) -> tuple[float, float] | None:
        """Range of the mean step time, with the relative error of the heaviest shape.

        None if the recipe does not fit, or without an estimate.
        """
        own = self.heaviest.estimate
        if own is None or own.step_seconds_estimate is None or own.step_seconds_range is None:
            return None
        if self.training is None or self.training.time is None:
            return None
        scale = self.training.time.mean_step_seconds / own.step_seconds_estimate
        low, high = own.step_seconds_range
        return scale * low, scale * high

    @property
    def compared_seconds(self) -> float:
        """The mean step time or, without an estimate, the lower bound of the heaviest shape.

        Infinite if the recipe does not fit.
        """
        if self.training is None or self.heaviest.estimate is None:
            return math.inf
        if self.training.time is None:
            return self.heaviest.estimate.step_seconds_lower_bound
        return self.training.time.mean_step_seconds

    @property
    def fits(self) -> bool:
        """True if all compiled shapes fit into memory."""
        return all(one.fits for one in self.compiled)


def plan_mesh(
    config: Config, topology: Topology, *, mean_length: float = 27.0, all_shapes: bool = False
) -> MeshPlan:
    """Plans the recipe on `config.mesh`; compiles the heaviest batch shape, or all of them.

    Raises:
        ConfigError: the mesh does not match the number of devices or the sizes of the model.
    """
    mesh = make_mesh(config.mesh, topology.devices)
    check_divisibility(config, mesh)
    row_shards = math.prod(mesh.shape[axis] for axis in RULES["batch"])
    shapes = plan_shapes(config, row_shards, mean_length)
    chosen = shapes if all_shapes else shapes[:1]
    compiled = tuple(_compile_shape(config, topology, mesh, shape) for shape in chosen)
    training = _estimate_training(config, shapes, compiled, len(topology.devices))
    return MeshPlan(dict(mesh.shape), tuple(shapes), compiled, training)


def search_meshes(
    config: Config, topology: Topology, *, mean_length: float = 27.0, all_shapes: bool = False
) -> tuple[list[MeshPlan], dict[str, str]]:
    """Plans the recipe on all meshes (data, fsdp, tensor) whose fsdp and tensor are powers of two.

    Returns (plans, refused). Plans that fit come first, sorted by `MeshPlan.compared_seconds`; the
    order of plans with equal rank (`rank_plans`) has no meaning. `refused` maps a mesh to the
    reason why it is invalid.

    Raises:
        ConfigError: all meshes are invalid.
    """
    plans, refused = [], {}
    for mesh in list_meshes(len(topology.devices)):
        own = dataclasses.replace(config, mesh=mesh)
        try:
            plans.append(plan_mesh(own, topology, mean_length=mean_length, all_shapes=all_shapes))
        except ConfigError as error:
            refused[describe_mesh(dataclasses.asdict(mesh))] = str(error)
    if not plans:
        first, reason = next(iter(refused.items()))
        raise ConfigError(f"none of the {len(refused)} meshes is valid; {first}: {reason}")
    plans.sort(key=lambda plan: plan.compared_seconds)
    return plans, refused


def rank_plans(plans: Sequence[MeshPlan]) -> list[int | None]:
    """Ranks sorted plans; a rank is None if the plan does not fit or has no range.

    Plans have equal rank if their ranges overlap with the range of the first plan of that rank.
    """
    ranks: list[int | None] = []
    rank, slowest = 0, -math.inf
    for number, plan in enumerate(plans, start=1):
        if plan.step_seconds_range is None:
            ranks.append(None)
            continue
        low, high = plan.step_seconds_range
        if low > slowest:
            rank, slowest = number, high
        ranks.append(rank)
    return ranks


def list_meshes(num_devices: int) -> list[MeshConfig]:
    """Lists all meshes (data, fsdp, tensor) whose fsdp and tensor are powers of two."""
    powers = [2**i for i in range(num_devices.bit_length()) if num_devices % 2**i == 0]
    return [
        MeshConfig(num_devices // (fsdp * tensor), fsdp, tensor)
        for tensor in powers
        for fsdp in powers
        if num_devices % (fsdp * tensor) == 0
    ]


def describe_mesh(mesh: Mapping[str, int]) -> str:
    """Formats a mesh as `data 4, fsdp 2, tensor 1`."""
    return ", ".join(f"{axis} {size}" for axis, size in mesh.items())


def _compile_shape(
    config: Config, topology: Topology, mesh: Mesh, shape: PlannedShape
) -> ShapePlan:
    sizes = (shape.rows, shape.src_length, shape.tgt_length)
    on = describe_mesh(dict(mesh.shape))
    _log.info("compiling %d rows of %d source and %d target positions, mesh %s", *sizes, on)
    started = time.perf_counter()
    own: Estimate | None = None
    try:
        program = compile_step(config, mesh, *sizes)
    except OutOfMemoryError as error:
        needed = error.num_bytes
    else:
        needed = program.memory.total
        flops, model = shape.padded_flops / len(topology.devices), config.model
        own = estimate(program, topology.chip, flops, (model.key_width, model.value_width))
    plan = ShapePlan(
        shape=shape,
        fits=own is not None and own.memory.total <= topology.chip.memory_bytes,
        memory_bytes=needed,
        model_flops=shape.model_flops / len(topology.devices),
        estimate=own,
        compile_seconds=time.perf_counter() - started,
    )
    _log.info("  %s, after %.0f s of compiling", _summarise(own), plan.compile_seconds)
    return plan


def _summarise(own: Estimate | None) -> str:
    if own is None:
        return "does not fit"
    if own.step_seconds_estimate is None:
        return f"at least {1000 * own.step_seconds_lower_bound:.4g} ms per step"
    return f"{1000 * own.step_seconds_estimate:.4g} ms per step"


def _estimate_training(
    config: Config,
    shapes: Sequence[PlannedShape],
    compiled: Sequence[ShapePlan],
    num_devices: int,
) -> TrainingEstimate | None:
    known = {one.shape: one.estimate for one in compiled if one.fits and one.estimate}
    if len(known) < len(compiled):
        return None
    tokens = sum(shape.share * shape.tgt_tokens for shape in shapes)
    steps = config.training.steps
    times = {shape: own.step_seconds_estimate for shape, own in known.items()}
    return TrainingEstimate(
        steps, tokens, _estimate_time(steps, tokens, shapes, times, num_devices)
    )


def _estimate_time(
    steps: int,
    tokens: float,
    shapes: Sequence[PlannedShape],
    known: Mapping[PlannedShape, float | None],
    num_devices: int,
) -> TrainingTime | None:
    """Estimates the time; scales the heaviest shape's by FLOPs for shapes not compiled."""
    times = {shape: seconds for shape, seconds in known.items() if seconds is not None}
    if len(times) < len(known):
        return None
    rate = times[shapes[0]] / shapes[0].padded_flops
    seconds = sum(s.share * times.get(s, rate * s.padded_flops) for s in shapes)
    hours = steps * seconds / 3600
    return TrainingTime(
        mean_step_seconds=seconds,
        tokens_per_second=tokens / seconds,
        hours=hours,
        accelerator_hours=hours * num_devices,
    )
