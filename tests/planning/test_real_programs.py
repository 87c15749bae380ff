"""Reads train steps that compilers for TPUs and GPUs compiled earlier (make_programs.py)."""

import functools
import lzma
import math
from collections import Counter
from pathlib import Path

import pytest

from t2t.planning.chips import CHIPS
from t2t.planning.compile_step import CompiledStep, DeviceMemory
from t2t.planning.hlo_parser import HloModule, parse_module
from t2t.planning.hlo_traffic import Cost, measure_cost
from t2t.planning.roofline import Roofline, compute_roofline

FOLDER = Path(__file__).parent / "programs"
PROGRAMS = sorted(path.name.removesuffix(".hlo.xz") for path in FOLDER.glob("*.xz"))
GPU_PROGRAMS = [name for name in PROGRAMS if name.startswith("h100")]


@functools.cache
def read(name: str) -> str:
    return lzma.decompress((FOLDER / f"{name}.hlo.xz").read_bytes()).decode()


@functools.cache
def measure(name: str) -> Cost:
    return measure_cost(read(name))


@functools.cache
def parse(name: str) -> HloModule:
    return parse_module(read(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_everything_is_understood(name: str) -> None:
    assert not measure(name).remarks
    lines = [line for line in read(name).splitlines() if " = " in line]
    assert sum(map(len, parse(name).computations.values())) == len(lines)


def compute(name: str, axes: tuple[int, int]) -> Roofline:
    """The roofline on a mesh with axes (data, fsdp); two GPUs are a host."""
    chip = CHIPS[name.partition("-")[0]]
    sizes = {"data": axes[0], "fsdp": axes[1], "tensor": 1}
    hosts = [number // 2 for number in range(math.prod(axes))]
    program = CompiledStep(read(name), DeviceMemory(1, 2, 3, 4, 5, 6), sizes, hosts)
    return compute_roofline(program, chip, 1e9)


@pytest.mark.parametrize(
    ("name", "hbm_bytes", "gathered", "scattered", "reduced"),
    [
        ("v5e-2x2", 3_196_232, 1_164_288, 196_608, 1_785_740),
        ("v5e-4x4-accumulation", 1_210_204, 2_654_208, 1_376_256, 2_682_044),
        ("h100-2", 269_181_594, 524_288, 720_896, 7_220),
        ("h100-2x2-accumulation", 319_484_352, 1_445_888, 1_441_792, 1_455_774),
    ],
)
def test_traffic_stays_as_it_was_read(
    name: str, hbm_bytes: int, gathered: int, scattered: int, reduced: int
) -> None:
    cost, sent = measure(name), Counter[str]()
    for one in cost.collectives:
        sent[one.kind] += one.times * one.sent_bytes
    assert cost.hbm_bytes == hbm_bytes
    assert sent == {"all-gather": gathered, "reduce-scatter": scattered, "all-reduce": reduced}
    assert (cost.cycles is None, cost.uncounted_flops == 0) == (name in GPU_PROGRAMS,) * 2


@pytest.mark.parametrize("name", GPU_PROGRAMS)
def test_kernels_of_a_gpu_are_all_instructions_that_move_data(name: str) -> None:
    """Counts the lines of the entry, and those of each loop as often as it runs."""
    free = "parameter get-tuple-element tuple bitcast constant partition-id while".split()

    def count(computation: str) -> int:
        lines = parse(name).computations[computation].values()
        kernels = [i for i in lines if not (i.opcode in free or i.opcode.endswith("-done"))]
        loops = [i for i in lines if i.opcode == "while"]
        inner = sum(
            int(loop.attribute(r'known_trip_count":\{"n":"(\d+)') or 0)
            * count(loop.called("body")[0])
            for loop in loops
        )
        return len(kernels) + inner

    cost = measure(name)
    assert sum(kind.count for kind in cost.kernels.values()) == count(parse(name).entry)
    assert sum(kind.hbm_bytes for kind in cost.kernels.values()) == cost.hbm_bytes
    assert set(cost.kernels) >= {"matrix products", "cuDNN", "reductions", "elementwise"}
    assert "custom calls" not in cost.kernels
    sums = cost.list_kernels()["collectives"]
    assert sums["count"] == sum(one.times for one in cost.collectives)


def test_collectives_of_gpus_take_nvlink_inside_a_host_and_the_network_between_hosts() -> None:
    own = compute("h100-2x2-accumulation", (2, 2))
    assert own.kernels == measure("h100-2x2-accumulation").list_kernels()
    assert own.step_seconds_lower_bound == own.seconds[own.bound_by] == max(own.seconds.values())
    assert {kind: sums["sent_bytes"] for kind, sums in own.collectives.items()} == {
        "reduce-scatter (fsdp, NVLink)": 1_441_792,
        "all-gather (fsdp, NVLink)": 1_048_576,
        "all-reduce (data, network)": 1_441_848,
        "all-gather (data, network)": 397_312,
        "all-reduce (data+fsdp, network)": 13_926,
    }


def test_what_crosses_slices_takes_the_network_of_the_data_centre() -> None:
    """Parameters and gradients are cut in two inside a slice; the update is cut in four, by data.

    So a chip sends the sum of its gradients and its part of the new parameters to other slices.
    """
    own = compute("v5e-2x2-slices", (4, 2))
    kinds = {"all-reduce (data, slices)", "all-gather (data, slices)"}
    assert {kind for kind in own.collectives if "slices" in kind} == kinds
    sent = sum(own.collectives[kind]["sent_bytes"] for kind in kinds)
    assert own.seconds["slices"] == pytest.approx(sent / 3.125e9)
    inside = [one for one in measure("v5e-2x2-slices").collectives if not one.between_slices]
    assert max(device for one in inside for device in one.groups[0]) == 3
