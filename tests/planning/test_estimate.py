"""The roofline of a program that is one product and one all-reduce."""

import dataclasses

import pytest

from t2t.planning.chips import Chip
from t2t.planning.compiled import Memory, Program
from t2t.planning.estimate import estimate

PROGRAM = """HloModule test, num_partitions=4

ENTRY %main (a: f32[5,7], b: f32[7,3]) -> f32[5,3] {
  %a = f32[5,7]{1,0} parameter(0)
  %b = f32[7,3]{1,0} parameter(1)
  %dot = f32[5,3]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}CYCLES
  ROOT %sum = f32[5,3]{1,0:S(1)} all-reduce(%dot), channel_id=1, replica_groups=[1,4]<=[4]
}
"""
MEMORY = Memory(parameters=1, optimizer=2, batch=3, activations=4, code=5, other=6)
FLOPS, HBM_BYTES, SENT_BYTES = 2 * 5 * 7 * 3, 4 * (35 + 21 + 15 + 15), 90

# One second each for FLOPs, memory and network; a cycle is a tenth of a second.
BALANCED = Chip("test", FLOPS, FLOPS / 10, 100, HBM_BYTES, SENT_BYTES)


def read(cycles: int | None = None) -> Program:
    written = f', backend_config={{"estimated_cycles":"{cycles}"}}' if cycles else ""
    return Program(PROGRAM.replace("CYCLES", written), MEMORY)


def test_memory_is_the_sum_of_its_parts() -> None:
    assert MEMORY.total == 21


def test_work_is_read_off_the_program() -> None:
    found = estimate(read(), BALANCED)
    assert (found.flops, found.hbm_bytes) == (FLOPS, HBM_BYTES)
    assert found.collectives == {
        "all-reduce": {"count": 1, "bytes": 60, "sent_bytes": 90, "overlapped_sent_bytes": 0}
    }


@pytest.mark.parametrize(
    ("slow", "factor"),
    [("flops", 2.0), ("memory_bandwidth", 3.0), ("network_bandwidth", 5.0)],
)
def test_slowest_part_bounds_the_step(slow: str, factor: float) -> None:
    chip = dataclasses.replace(BALANCED, **{slow: getattr(BALANCED, slow) / factor})
    found = estimate(read(), chip)
    assert found.step_seconds_lower_bound == pytest.approx(factor)
    assert found.step_seconds_estimate == pytest.approx(factor + 2)


def test_compilers_cycles_make_the_estimate_and_the_network_comes_after() -> None:
    found = estimate(read(cycles=25), BALANCED)
    assert found.estimated_cycles == 25
    assert found.step_seconds_estimate == pytest.approx(2.5 + 1)
    assert found.remarks == []


def test_estimate_does_not_undercut_the_bound() -> None:
    chip = dataclasses.replace(BALANCED, memory_bandwidth=HBM_BYTES / 9)
    assert estimate(read(cycles=1), chip).step_seconds_estimate == pytest.approx(9)


def test_estimate_without_cycles_says_so() -> None:
    assert "no cycles" in estimate(read(), BALANCED).remarks[0]
