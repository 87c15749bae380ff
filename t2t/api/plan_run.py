"""`plan`: what a recipe needs on devices that this machine does not have."""

from typing import Any, NamedTuple

from t2t.config.fields import Config
from t2t.planning.plan_report import describe, describe_meshes, to_json
from t2t.planning.planner import plan_mesh, search_meshes
from t2t.planning.topology import open_topology


class Plan(NamedTuple):
    """The plan of a recipe: for its mesh, or for the best of all meshes."""

    fits: bool  # whether the training step fits into the devices' memory
    text: str  # of several lines
    figures: dict[str, Any]  # as JSON; those of a step are per device


def plan(
    config: Config,
    topology: str,
    *,
    slices: int = 1,
    mean_length: float = 27.0,
    all_shapes: bool = False,
    search: bool = False,
) -> Plan:
    """Compiles the sharded training step for a topology, and reads its memory and least time.

    JAX's compilation cache must be off: it cannot load programs that were compiled for devices
    which this machine does not have.

    Args:
        config: the recipe.
        topology: the devices, such as v5e:16x16, h100:8x4 or cpu:8.
        slices: of TPUs, which the data centre's network joins.
        mean_length: of source sentences, in sub-words.
        all_shapes: whether to compile all batch shapes, or only the most expensive one.
        search: whether to try all meshes whose fsdp and tensor are powers of two.

    Raises:
        ConfigError: the topology is unknown, its compiler is not installed, or the mesh or the
            batch does not fit the devices.
    """
    devices = open_topology(topology, slices)
    parts, extra = [], {}
    if search:
        plans, refused = search_meshes(
            config, devices, mean_length=mean_length, all_shapes=all_shapes
        )
        parts = [describe_meshes(plans)]
        extra = {"search": [to_json(one, devices) for one in plans], "refused": refused}
    else:
        plans = [plan_mesh(config, devices, mean_length=mean_length, all_shapes=all_shapes)]
    text = "\n\n".join([*parts, describe(plans[0], devices)])
    return Plan(plans[0].fits, text, to_json(plans[0], devices) | extra)
