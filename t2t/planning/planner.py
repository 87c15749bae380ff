"""Plans a recipe on a topology: compiles its step on one mesh or several, and bounds its time."""

import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence

from jax.sharding import Mesh

from t2t.config.fields import Config, ConfigError, MeshConfig
from t2t.planning.batch_shapes import PlannedShape, plan_shapes, share_examples
from t2t.planning.compile_step import OutOfMemoryError, compile_step
from t2t.planning.roofline import Roofline, compute_roofline
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
    roofline: Roofline | None  # None: out of memory, not compiled
    compile_seconds: float


@dataclasses.dataclass(frozen=True)
class RecipeBound:
    """The least time of all training steps of a recipe."""

    steps: int
    tokens_per_step: float  # target tokens without padding, mean over all steps
    bound_by: str  # what bounds the step of the heaviest shape
    hours_lower_bound: float
    accelerator_hours_lower_bound: float
    tokens_per_second_upper_bound: float


@dataclasses.dataclass(frozen=True)
class MeshPlan:
    """The plan of a recipe on one mesh."""

    mesh: dict[str, int]  # axis -> size
    shapes: tuple[PlannedShape, ...]  # all batch shapes, the one with the most FLOPs first
    compiled: tuple[ShapePlan, ...]  # of the first shape, or of all
    recipe: RecipeBound | None  # None: it does not fit
    tasks: dict[str, float]  # the share of each task of all examples (`share_examples`)

    @property
    def heaviest(self) -> ShapePlan:
        """The plan of the shape with the most FLOPs."""
        return self.compiled[0]

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
    recipe = _bound_recipe(config.training.steps, shapes, compiled, topology)
    tasks = share_examples(config)
    return MeshPlan(dict(mesh.shape), tuple(shapes), compiled, recipe, tasks)


def search_meshes(
    config: Config, topology: Topology, *, mean_length: float = 27.0, all_shapes: bool = False
) -> tuple[list[MeshPlan], dict[str, str]]:
    """Plans the recipe on all meshes (data, fsdp, tensor) whose fsdp and tensor are powers of two.

    Returns (plans, refused). Plans that fit come first, sorted by the lower bound of the recipe,
    which several meshes may share, and then by the sum of the roofline's times. `refused` maps a
    mesh to the reason why it is invalid.

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
    plans.sort(key=_rate)
    return plans, refused


def _rate(plan: MeshPlan) -> tuple[float, float]:
    own = plan.heaviest.roofline
    if plan.recipe is None or own is None:
        return math.inf, math.inf
    return plan.recipe.hours_lower_bound, sum(own.seconds.values())


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
    roofline, found = None, "does not fit"
    try:
        program = compile_step(config, mesh, *sizes)
    except OutOfMemoryError as error:
        needed = error.num_bytes
    else:
        needed = program.memory.total
        flops = shape.padded_flops / len(topology.devices)
        roofline = compute_roofline(program, topology.chip, flops)
        found = f"at least {1000 * roofline.step_seconds_lower_bound:.4g} ms per step"
    seconds = time.perf_counter() - started
    _log.info("  %s, after %.0f s of compiling", found, seconds)
    return ShapePlan(
        shape=shape,
        fits=roofline is not None and roofline.memory.total <= topology.chip.memory_bytes,
        memory_bytes=needed,
        model_flops=shape.model_flops / len(topology.devices),
        roofline=roofline,
        compile_seconds=seconds,
    )


def _bound_recipe(
    steps: int,
    shapes: Sequence[PlannedShape],
    compiled: Sequence[ShapePlan],
    topology: Topology,
) -> RecipeBound | None:
    """Bounds the time of all steps; shapes that were not compiled count with their FLOPs alone."""
    known = {one.shape: one.roofline for one in compiled if one.fits and one.roofline}
    if len(known) < len(compiled):
        return None
    peak = len(topology.devices) * topology.chip.flops
    seconds = sum(
        shape.share
        * (known[shape].step_seconds_lower_bound if shape in known else shape.padded_flops / peak)
        for shape in shapes
    )
    tokens = sum(shape.share * shape.tgt_tokens for shape in shapes)
    hours = steps * seconds / 3600
    return RecipeBound(
        steps=steps,
        tokens_per_step=tokens,
        bound_by=known[shapes[0]].bound_by,
        hours_lower_bound=hours,
        accelerator_hours_lower_bound=hours * len(topology.devices),
        tokens_per_second_upper_bound=tokens / seconds,
    )
