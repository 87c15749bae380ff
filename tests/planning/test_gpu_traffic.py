"""Bytes and kernels of what only programs for GPUs contain, in hand-written HLO."""

import pytest

from t2t.planning.hlo_traffic import Work
from tests.planning.hlo_text import BODY, CONDITION, LOOP, measure


def test_slice_of_a_bitcast_counts_as_a_slice() -> None:
    fused = """
        %fused (t: f32[1000], i: s32[]) -> f32[10] {
          %t = f32[1000]{0} parameter(0)
          %b = f32[100,10]{1,0} bitcast(%t)
          %i = s32[] parameter(1)
          ROOT %out = f32[1,10]{1,0} dynamic-slice(%b, %i, %i), dynamic_slice_sizes={1,10}
        }
    """
    line = "ROOT %f = f32[1,10]{1,0} fusion(%table, %index), kind=kLoop, calls=%fused"
    assert measure(line, fused).hbm_bytes == 40 + 4 + 40


@pytest.mark.parametrize("library", ["__cublas$gemm", "__cublas$lt$matmul", "__cudnn$fmhaSoftmax"])
def test_library_call_moves_operands_and_results_but_no_scratch_space(library: str) -> None:
    cost = measure(f"""
        %out = (f32[500]{{0}}, s8[4194304]{{0}}) custom-call(%table), custom_call_target="{library}"
        ROOT %first = f32[500]{{0}} get-tuple-element(%out), index=0
    """)
    kind = "cuDNN" if "cudnn" in library else "matrix products"
    assert cost.kernels == {kind: Work(1, 4000 + 2000)}
    assert not cost.remarks


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        ("ROOT %d = f32[] dot(%t, %t), lhs_contracting_dims={0}", "matrix products"),
        ("ROOT %d = f32[] reduce(%t, %t), to_apply=%add", "reductions"),
        ("ROOT %d = f32[1000]{0} negate(%t)", "elementwise"),
    ],
)
def test_work_inside_of_a_fusion_decides_the_kind_of_its_kernel(work: str, kind: str) -> None:
    inner = f"""
        %inner (t: f32[1000]) -> f32[] {{
          %t = f32[1000]{{0}} parameter(0)
          {work}
        }}
    """
    outer = """
        %outer (u: f32[1000]) -> f32[] {
          %u = f32[1000]{0} parameter(0)
          ROOT %f = f32[] fusion(%u), kind=kCustom, calls=%inner
        }
    """
    cost = measure("ROOT %f = f32[] fusion(%table), kind=kCustom, calls=%outer", inner, outer)
    assert list(cost.kernels) == [kind]


def test_kernels_are_the_instructions_that_do_work() -> None:
    """An asynchronous one counts once, a loop once per iteration, a command buffer not at all."""
    buffer = """
        %buffer (z: f32[1000]) -> f32[1000] {
          %z = f32[1000]{0} parameter(0)
          ROOT %w = f32[1000]{0} negate(%z)
        }
    """
    body = (
        LOOP.replace("ROOT ", "")
        + """
    %x.1 = f32[1000]{0} get-tuple-element(%loop), index=1
    %y.1 = f32[1000]{0} call(%x.1), to_apply=%buffer
    %begin = (f32[1000]{0}, f32[4000]{0}) all-gather-start(%y.1), replica_groups=[1,4]<=[4]
    ROOT %end = f32[4000]{0} all-gather-done(%begin)
    """
    )
    kernels = measure(body, BODY, CONDITION, buffer).kernels
    assert sum(kind.count for kind in kernels.values()) == 7 + 1 + 1
