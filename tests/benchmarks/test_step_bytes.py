"""The figure of a step's bytes: each kernel in one group, and a figure of the recorded ones."""

import json
from pathlib import Path

from benchmarks.step_bytes import GROUPS, OUTPUT, count, draw

STEP = """HloModule step, num_partitions=1

%exp (logits: bf16[32768,37000]) -> bf16[32768,37000] {
  %logits = bf16[32768,37000] parameter(0)
  ROOT %out = bf16[32768,37000] exponential(%logits)
}

ENTRY %main (x: bf16[128,256,512], w: bf16[512,512], z: bf16[32768,37000], m: f32[512]) -> f32[] {
  %x = bf16[128,256,512] parameter(0)
  %w = bf16[512,512] parameter(1)
  %z = bf16[32768,37000] parameter(2)
  %m = f32[512] parameter(3)
  %p = bf16[128,256,512] dot(%x, %w), metadata={op_name="jit(train_step)/jvp()/dot_general"}
  %n = bf16[128,256,512] add(%x, %p), metadata={op_name="jit(train_step)/jvp()/add"}
  %e = bf16[32768,37000] fusion(%z), kind=kLoop, calls=%exp
  %c = bf16[512,512] copy(%w), metadata={op_name="jit(train_step)/jvp()/convert_element_type"}
  ROOT %u = f32[512] multiply(%m, %m), metadata={op_name="jit(train_step)/jit(_where)/mul"}
}
"""


def test_each_kernel_is_in_the_group_of_its_largest_arrays() -> None:
    found = count(STEP)
    rows, matrix = 2 * 32_768 * 512, 2 * 512 * 512
    sizes = [2 * rows + matrix, 0, 2 * 2 * 32_768 * 37_000, 0, 3 * rows, 3 * 4 * 512, 2 * matrix]
    assert [found["groups"][name]["hbm_bytes"] for name in GROUPS] == sizes
    assert [found["groups"][name]["kernels"] for name in GROUPS] == [1, 0, 1, 0, 1, 1, 1]
    assert (found["hbm_bytes"], found["kernels"]) == (sum(sizes), 5)


def test_recorded_bytes_are_drawn(tmp_path: Path) -> None:
    found = json.loads(OUTPUT.read_text("utf-8"))
    draw(found, tmp_path / "bytes.svg")
    assert "<svg" in (tmp_path / "bytes.svg").read_text("utf-8")
    for step in (found["before"], found["after"]):
        assert step["hbm_bytes"] == sum(group["hbm_bytes"] for group in step["groups"].values())
