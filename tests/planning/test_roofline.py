"""The roofline of a program with one product and one all-reduce."""

import dataclasses

import pytest

from t2t.planning.chips import CHIPS, Chip, Tpu
from t2t.planning.compile_step import CompiledStep, DeviceMemory
from t2t.planning.roofline import CYCLES_ERROR, Estimate, estimate

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

# One second each for FLOPs, memory and network; a cycle is a tenth of a second.
BALANCED = Tpu("test", FLOPS, 100, HBM_BYTES, SENT_BYTES, 1, 1, None)


def read(cycles: int | None = None) -> CompiledStep:
    written = f', backend_config={{"estimated_cycles":"{cycles}"}}' if cycles else ""
    return CompiledStep(PROGRAM.replace("CYCLES", written), MEMORY)


def run(cycles: int | None = None, chip: Chip = BALANCED) -> Estimate:
    return estimate(read(cycles), chip, FLOPS, (64, 64))


def test_memory_is_the_sum_of_its_parts() -> None:
    assert MEMORY.total == 21


def test_work_is_read_off_the_program() -> None:
    found = run()
    assert (found.flops, found.hbm_bytes) == (FLOPS, HBM_BYTES)
    assert found.collectives == {
        "all-reduce": {
            "count": 1, "bytes": 60, "sent_bytes": 90, "seconds": 1.0, "overlapped_seconds": 0.0
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    ("slow", "factor"),
    [("flops", 2.0), ("memory_bandwidth", 3.0), ("network_bandwidth", 5.0)],
)
def test_slowest_part_bounds_the_step(slow: str, factor: float) -> None:
    chip = dataclasses.replace(BALANCED, **{slow: getattr(BALANCED, slow) / factor})
    found = run(chip=chip)
    assert found.step_seconds_lower_bound == pytest.approx(factor)
    assert found.step_seconds_estimate == pytest.approx(factor + 2)


def test_compilers_cycles_make_the_estimate_and_the_network_comes_after() -> None:
    found = run(cycles=25)
    assert found.estimated_cycles == 25
    assert found.step_seconds_estimate == pytest.approx(2.5 + 1)
    assert found.remarks == []


def test_estimate_does_not_undercut_the_bound() -> None:
    chip = dataclasses.replace(BALANCED, memory_bandwidth=HBM_BYTES / 9)
    assert run(cycles=1, chip=chip).step_seconds_estimate == pytest.approx(9)


def test_estimate_without_cycles_says_so() -> None:
    assert "no cycles" in run().remarks[0]


def test_range_hides_asynchronous_collectives_at_its_lower_end() -> None:
    def find_range(text: str) -> tuple[float, float] | None:
        program = dataclasses.replace(read(cycles=25), text=text)
        return estimate(program, BALANCED, FLOPS, (64, 64)).step_seconds_range

    text = read(cycles=25).text
    lower, upper = 1 - CYCLES_ERROR, 1 + CYCLES_ERROR
    assert find_range(text) == pytest.approx((lower * 3.5, upper * 3.5))
    started = text.replace("all-reduce(%dot)", "all-reduce-start(%dot)")
    assert find_range(started) == pytest.approx((lower * 2.5, upper * 3.5))


def test_axis_of_a_torus_has_only_the_links_of_its_dimension() -> None:
    """Four of 16 x 16 chips in a line use one of a chip's four links: four times as slow."""
    coordinates = [(x, y) for x in range(16) for y in range(16)]
    program = dataclasses.replace(read(cycles=25), coordinates=coordinates)
    own = estimate(program, BALANCED, FLOPS, (64, 64))
    assert own.seconds["network"] == pytest.approx(4)


def test_compiler_that_computes_much_more_than_the_closed_form_is_reported() -> None:
    program = dataclasses.replace(read(cycles=25), flops=2.0 * FLOPS)
    (remark,) = estimate(program, BALANCED, FLOPS, (64, 64)).remarks
    assert remark.startswith("the compiler counts 2.00 times the closed form's FLOPs")


KERNEL = """HloModule test

ENTRY %main (a: f32[5]) -> f32[5] {
  %a = f32[5]{0} parameter(0)
  %out = f32[5]{0} custom-call(%a), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"cost_estimate":{"flops":"2000000000000"}}}
  ROOT %b = f32[5]{0} copy(%out), backend_config={"estimated_cycles":"0"}
}
"""


@pytest.mark.parametrize(
    ("chip", "widths", "share"),
    [
        ("v5e", (64, 64), 0.5),
        ("v6e", (64, 64), 0.25),  # its matrix units are 256 wide
        ("v5e", (128, 128), 1.0),
        ("v5e", (192, 192), 0.75),
        ("v5e", (64, 32), 0.375),
    ],
)
def test_kernel_reaches_the_share_of_the_peak_that_its_heads_fill(
    chip: str, widths: tuple[int, int], share: float
) -> None:
    tpu = CHIPS[chip]
    assert isinstance(tpu, Tpu)
    own = estimate(CompiledStep(KERNEL, MEMORY), tpu, 1.0, widths)
    assert own.estimated_cycles == round(2e12 / (share * tpu.flops_per_cycle))
    assert f"{share:.0%} of the chip's peak" in own.remarks[0]
