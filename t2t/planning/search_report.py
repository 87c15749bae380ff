"""Formats a search over meshes as text and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from t2t.planning.plan_report import (
    flatten_shape,
    flatten_training,
    show_range,
    show_time,
    to_json,
)
from t2t.planning.planner import MeshPlan, rank_plans
from t2t.planning.roofline import CYCLES_ERROR, Estimate
from t2t.planning.topology import Topology
from t2t.runtime.text_tables import format_table
from t2t.runtime.units import show_bytes

_MESH = ["data", "fsdp", "tensor"]
_RANKED = f"""\
Meshes of equal rank cannot be told apart: their ranges overlap. A range covers asynchronous
collectives hidden or not, and an error of {CYCLES_ERROR:.0%} in the cycles, which no run on a TPU \
has tested."""
_BOUNDED = """\
Meshes are sorted by the lower bound of the heaviest batch shape. They have no rank: a step takes
longer than its bound, and how much longer differs between meshes."""


def to_search_json(
    plans: Sequence[MeshPlan], refused: Mapping[str, str], topology: Topology
) -> dict[str, Any]:
    """The figures of the first plan, then of all plans in order, and the refused meshes."""
    entries = [
        {
            "mesh": plan.mesh,
            "rank": rank,
            **flatten_shape(plan.heaviest),
            "recipe": flatten_training(plan.training),
        }
        for plan, rank in zip(plans, rank_plans(plans), strict=True)
    ]
    return {**to_json(plans[0], topology), "search": entries, "refused": dict(refused)}


def describe_search(plans: Sequence[MeshPlan]) -> str:
    """Formats a table of meshes, the fastest first.

    With estimates, ranks are equal within the error; without, meshes are sorted by lower bound.
    """
    bounded = any(plan.training and plan.training.time is None for plan in plans)
    return _describe_bounds(plans) if bounded else _describe_ranks(plans)


def _describe_ranks(plans: Sequence[MeshPlan]) -> str:
    header = ["rank", *_MESH, "memory", "sent", "estimate", "range", "tokens/s"]
    rows = [
        [rank or "-", *(plan.mesh[axis] for axis in _MESH), *_list_figures(plan)]
        for plan, rank in zip(plans, rank_plans(plans), strict=True)
    ]
    return f"{format_table(rows, header, align='r' * len(header))}\n{_RANKED}"


def _list_figures(plan: MeshPlan) -> list[str]:
    one, own = plan.heaviest, plan.heaviest.estimate
    memory = show_bytes(one.memory_bytes)
    if plan.training is None or plan.training.time is None or own is None:
        return [memory, "does not fit"]
    assert own.step_seconds_estimate is not None
    assert own.step_seconds_range is not None
    return [
        memory,
        _show_sent(own),
        show_time(own.step_seconds_estimate),
        show_range(own.step_seconds_range),
        f"{plan.training.time.tokens_per_second:,.0f}",
    ]


def _describe_bounds(plans: Sequence[MeshPlan]) -> str:
    header = [*_MESH, "memory", "sent", "lower bound", "limit"]
    rows = [
        [*(plan.mesh[axis] for axis in _MESH), *_list_bounds(plan.heaviest.estimate, plan)]
        for plan in plans
    ]
    return f"{format_table(rows, header, align='r' * len(header))}\n{_BOUNDED}"


def _list_bounds(own: Estimate | None, plan: MeshPlan) -> list[str]:
    memory = show_bytes(plan.heaviest.memory_bytes)
    if not plan.fits or own is None:
        return [memory, "does not fit"]
    limit = max(own.seconds, key=own.seconds.__getitem__)
    return [memory, _show_sent(own), show_time(own.step_seconds_lower_bound), limit]


def _show_sent(own: Estimate) -> str:
    return show_bytes(sum(kind["sent_bytes"] for kind in own.collectives.values()))
