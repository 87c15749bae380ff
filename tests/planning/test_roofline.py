"""The roofline of a program with one product and one all-reduce, and the links of collectives."""

import dataclasses

import pytest

from t2t.planning.chips import CHIPS, Chip, Tpu
from t2t.planning.compile_step import CompiledStep, DeviceMemory
from t2t.planning.hlo_traffic import Collective
from t2t.planning.roofline import Roofline, compute_roofline, find_link

PROGRAM = """HloModule test, num_partitions=4

ENTRY %main (a: f32[5,7], b: f32[7,3]) -> f32[5,3] {
  %a = f32[5,7]{1,0} parameter(0)
  %b = f32[7,3]{1,0} parameter(1)
  %dot = f32[5,3]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}CYCLES
  ROOT %sum = f32[5,3]{1,0:S(1)} all-reduce(%dot), channel_id=1, replica_groups=[1,4]<=[4]
}
"""
MEMORY = DeviceMemory(parameters=1, optimizer=2, batch=3, activations=4, code=5, other=6)
FLOPS, HBM_BYTES, SENT_BYTES = 20, 4 * (35 + 21 + 15 + 15), 90
AXES = {"data": 2, "fsdp": 2, "tensor": 1}

# One second each for FLOPs, memory and network.
BALANCED = Tpu("test", FLOPS, 100, HBM_BYTES, SENT_BYTES, 2, None)


def run(cycles: int | None = None, chip: Chip = BALANCED, flops: float | None = None) -> Roofline:
    written = f', backend_config={{"estimated_cycles":"{cycles}"}}' if cycles else ""
    program = PROGRAM.replace("CYCLES", written)
    return compute_roofline(CompiledStep(program, MEMORY, AXES, [0] * 4, flops), chip, FLOPS)


def test_work_is_read_off_the_program() -> None:
    found = run()
    assert (found.flops, found.hbm_bytes, found.estimated_cycles) == (FLOPS, HBM_BYTES, None)
    assert found.collectives == {
        "all-reduce (data+fsdp, network)": {
            "link": "network", "count": 1, "bytes": 60, "sent_bytes": 90, "seconds": 1.0
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    ("slow", "factor", "name"),
    [
        ("flops", 2.0, "compute"),
        ("memory_bandwidth", 3.0, "memory"),
        ("network_bandwidth", 5.0, "network"),
    ],
)
def test_slowest_part_bounds_the_step(slow: str, factor: float, name: str) -> None:
    chip = dataclasses.replace(BALANCED, **{slow: getattr(BALANCED, slow) / factor})
    found = run(chip=chip)
    assert found.step_seconds_lower_bound == pytest.approx(factor)
    assert found.bound_by == name


def test_what_the_compiler_does_not_say_or_says_otherwise_is_remarked() -> None:
    found = run(cycles=25)
    assert found.estimated_cycles == 25
    (remark,) = found.remarks
    assert "states no cycles of collectives" in remark
    (remark,) = run(flops=2.0 * FLOPS).remarks
    assert remark.startswith("the compiler counts 2.00 times the closed form's FLOPs")


HOSTS = [host for host in range(4) for _ in range(8)]  # h100:8x4


@pytest.mark.parametrize(
    ("chip", "groups", "link"),
    [
        ("h100", [range(8), range(8, 16)], ("NVLink", 450e9)),
        ("h100", [range(32)], ("network", 8 * 50e9)),  # eight rings
        ("h100", [range(0, 32, 8)], ("network", 50e9)),  # one GPU of a host
        ("h100", [(0, 1, 2, 8)], ("network", 50e9)),  # the fewest of a host
        ("v5e", [range(32)], ("network", 200e9)),
    ],
)
def test_slowest_link_decides(chip: str, groups: list[range], link: tuple[str, float]) -> None:
    one = Collective("all-reduce", 1000, tuple(tuple(group) for group in groups), times=1)
    assert find_link(one, HOSTS, CHIPS[chip]) == link
    wide = Collective("all-reduce", 1000, (tuple(range(32)),), times=1)
    nvlink = 450e9  # which feeds the rings between hosts of 16 GPUs
    assert find_link(wide, [0] * 16 + [1] * 16, CHIPS["h100"]) == ("network", nvlink)
