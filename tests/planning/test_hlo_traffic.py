"""Sizes, bytes, cycles, kernels, loops and collectives, in hand-written HLO."""

import textwrap

import pytest

from t2t.planning.hlo_parser import parse_module
from t2t.planning.hlo_traffic import Collective, Cost, measure_cost


def measure(body: str, *computations: str, shape: str = "1000", partitions: int = 4) -> Cost:
    """Measures an entry computation with the parameters %table, 4,000 bytes, and %index."""
    others = "\n".join(textwrap.dedent(one).strip() + "\n" for one in computations)
    lines = textwrap.indent(textwrap.dedent(body).strip(), "  ")
    return measure_cost(f"""HloModule test, num_partitions={partitions}

{others}
ENTRY %main (table: f32[{shape}], index: s32[]) -> f32[{shape}] {{
  %table = f32[{shape}] parameter(0)
  %index = s32[]{{:T(128)}} parameter(1)
{lines}
}}
""")


BODY = """
    %body (in: (s32[], f32[1000])) -> (s32[], f32[1000]) {
      %in = (s32[], f32[1000]{0}) parameter(0)
      %i = s32[] get-tuple-element(%in), index=0
      %x = f32[1000]{0} get-tuple-element(%in), index=1
      %y = f32[1000]{0} negate(%x)
      ROOT %out = (s32[], f32[1000]{0}) tuple(%i, %y)
    }
"""
CONDITION = """
    %condition (in.1: (s32[], f32[1000])) -> pred[] {
      %in.1 = (s32[], f32[1000]{0}) parameter(0)
      %limit = s32[]{:T(128)} constant(7)
      %i.1 = s32[] get-tuple-element(%in.1), index=0
      ROOT %less = pred[] compare(%i.1, %limit), direction=LT
    }
"""
LOOP = """
    %start = (s32[], f32[1000]{0}) tuple(%index, %table)
    ROOT %loop = (s32[], f32[1000]{0}) while(%start), condition=%condition, body=%body
"""


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("bf16[2,5]{1,0:T(8,128)(2,1)}", 20),
        ("s4[10]", 5),
        ("f32[<=6,2]", 48),
        ("token[]", 0),
    ],
)
def test_size_of_an_array(text: str, num_bytes: int) -> None:
    line = f"  %p.1 = {text} parameter(1)"
    module = parse_module("ENTRY %m () -> f32[] {\n" + line + "\n}")
    assert module.computations["m"]["p.1"].num_bytes == num_bytes


def test_kernel_without_cycles_counts_the_flops_that_it_states() -> None:
    line = 'ROOT %out = f32[1000]{0} custom-call(%table), custom_call_target="tpu_custom_call"'
    opaque = measure(line)
    (remark,) = opaque.remarks
    assert remark.startswith("calls of tpu_custom_call count only with their HBM traffic")
    stated = '"cost_estimate":{"flops":"700","transcendentals":"10","bytes_accessed":"8000"}'
    line += f', backend_config={{"custom_call_config":{{"body":"T2Y=",{stated}}}}}'
    cost = measure(line)
    assert (cost.uncounted_flops, cost.cycles, cost.hbm_bytes) == (700, None, 2 * 4000)
    assert (opaque.cycles, opaque.hbm_bytes, cost.remarks) == (None, 2 * 4000, set())
    profiled = measure(line.replace("backend_config={", 'backend_config={"estimated_cycles":"90",'))
    assert (profiled.uncounted_flops, profiled.cycles) == (0, 90)


def test_loop_of_unknown_length_is_reported() -> None:
    cost = measure(LOOP, BODY, CONDITION.replace("constant(7)", "copy(%in.1)"))
    assert cost.hbm_bytes == 2 * 4000
    assert cost.remarks == {"loops of unknown length count as one iteration"}


INNER = """
    %inner (x: f32[1000]) -> f32[1000] {
      %x = f32[1000]{0} parameter(0)
      ROOT %y = f32[1000]{0} all-reduce(%x), channel_id=1, replica_groups=[1,4]<=[4]
    }
"""


def test_computation_that_is_called_twice_sends_twice() -> None:
    cost = measure(
        """
        %once = f32[1000]{0} call(%table), to_apply=%inner
        ROOT %twice = f32[1000]{0} call(%once), to_apply=%inner
        """,
        INNER,
    )
    assert cost.hbm_bytes == 2 * 2 * 4000
    assert [one.sent_bytes for one in cost.collectives] == [6000, 6000]


@pytest.mark.parametrize(
    "branches",
    ["branch_computations={%cheap, %inner}", "true_computation=%inner, false_computation=%cheap"],
)
def test_conditional_counts_all_branches_and_says_so(branches: str) -> None:
    cheap = """
        %cheap (z: f32[1000]) -> f32[1000] {
          %z = f32[1000]{0} parameter(0)
          ROOT %w = f32[1000]{0} negate(%z)
        }
    """
    cost = measure(
        f"ROOT %out = f32[1000]{{0}} conditional(%index, %table, %table), {branches}", cheap, INNER
    )
    assert len(cost.collectives) == 1
    assert cost.hbm_bytes == 4 * 4000
    assert cost.remarks == {"a conditional counts as if all its branches were taken"}


def test_unknown_dtype_is_reported() -> None:
    cost = measure("""
        %odd = q9[1000]{0} convert(%table)
        ROOT %out = f32[1000]{0} convert(%odd)
    """)
    assert cost.hbm_bytes == 2 * 4000
    (remark,) = cost.remarks
    assert remark == "arrays of dtype q9, whose size is unknown, are not counted"


def test_update_in_place_writes_only_the_update() -> None:
    fused = """
        %fused (t: f32[1000], i: s32[]) -> f32[1000] {
          %t = f32[1000]{0} parameter(0)
          %i = s32[] parameter(1)
          %new = f32[10]{0} constant({...})
          ROOT %out = f32[1000]{0} dynamic-update-slice(%t, %new, %i)
        }
    """
    line = "ROOT %f = f32[1000]{0} fusion(%table, %index), kind=kLoop, calls=%fused"
    assert measure(line, fused).hbm_bytes == 4 + 40


def test_collective_cut_into_a_chain_of_fusions_counts_once() -> None:
    """The TPU compiler writes asynchronous collectives like this: fusions pass a buffer on."""
    link = """
        %link{n} (p{n}: f32[250], q{n}: f32[1000]) -> (f32[250], f32[1000]) {{
          %p{n} = f32[250]{{0}} parameter(0)
          %q{n} = f32[1000]{{0}} parameter(1)
          %g{n} = f32[1000]{{0}} all-gather(%p{n}), channel_id=9, replica_groups=[1,4]<=[4],\
 frontend_attributes={{chain_id="0"}}
          ROOT %t{n} = (f32[250]{{0}}, f32[1000]{{0}}) tuple(%p{n}, %g{n})
        }}
    """
    alias = "output_to_operand_aliasing={{0}: (0, {}), {1}: (1, {})}"
    body = f"""
        %own = f32[250]{{0:S(1)}} slice(%table), slice={{[0:250]}}
        %a = (f32[250]{{0:S(1)}}, f32[1000]{{0}}) fusion(%own, %table), calls=%link1, {alias}
        %a.0 = f32[250]{{0:S(1)}} get-tuple-element(%a), index=0
        %a.1 = f32[1000]{{0}} get-tuple-element(%a), index=1
        ROOT %b = (f32[250]{{0:S(1)}}, f32[1000]{{0}}) fusion(%a.0, %a.1), calls=%link2, {alias}
    """
    cost = measure(body, link.format(n=1), link.format(n=2))
    (gather,) = cost.collectives
    assert (gather.kind, gather.num_bytes, gather.sent_bytes) == ("all-gather", 4000, 3000)
    assert cost.hbm_bytes == 1000 + 4000  # the slice once, and the buffer once


def read_all(*lines: str) -> list[Collective]:
    """The collectives of eight devices; %table has 96 bytes."""
    body = "\n".join([*lines, "ROOT %root = f32[6,4] copy(%table)"])
    return measure(body, shape="6,4", partitions=8).collectives


def read(line: str) -> Collective:
    (found,) = read_all(f"%own = {line}")
    return found


@pytest.mark.parametrize(
    ("groups", "members"),  # of the first group
    [
        ("replica_groups=[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6)),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", (0, 2, 4, 6)),
        ("replica_groups=mesh['a'=2,'b'=2,'c'=2], device_ids=([8]T(0)) {'a','c'}", (0, 1, 4, 5)),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", (0, 4)),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", (0, 4)),
        ("channel_id=1", tuple(range(8))),
    ],
)
def test_group_is_read_from_all_its_forms(groups: str, members: tuple[int, ...]) -> None:
    found = read(f"f32[6,4]{{1,0}} all-reduce(%table), channel_id=1, {groups}, to_apply=%add")
    assert (found.groups[0], found.num_bytes, found.times) == (members, 96, 1)
    assert sorted(device for group in found.groups for device in group) == [*range(8)]


@pytest.mark.parametrize(
    ("line", "kind", "num_bytes", "sent"),
    [
        ("f32[6,4] all-to-all(%table), dimensions={0}", "all-to-all", 96, 84),
        (
            "f32[6,4] collective-permute(%table), source_target_pairs={{0,1},{1,0}}",
            "collective-permute", 96, 96,
        ),
        (
            "(f32[6,4], f32[48,4]) all-gather-start(%table), replica_groups=[1,8]<=[8]",
            "all-gather", 768, 672,
        ),
    ],
)  # fmt: skip
def test_ring_sends_what_the_others_lack(line: str, kind: str, num_bytes: int, sent: int) -> None:
    found = read(line)
    assert (found.kind, found.num_bytes, found.sent_bytes) == (kind, num_bytes, sent)


def test_nothing_is_sent_to_oneself() -> None:
    assert not read_all("%own = f32[6,4] all-reduce(%table), replica_groups=[8,1]<=[8]")
    permute = "f32[6,4] collective-permute(%table), source_target_pairs="
    assert not read_all(f"%own = {permute}{{{{0,0}},{{1,1}}}}")
    assert read(f"{permute}{{{{0,0}},{{1,4}},{{4,1}}}}").groups == ((1, 4), (4, 1))


@pytest.mark.parametrize(
    ("kind", "target", "slices", "sent"),
    [
        ("ALL_GATHER", "{1,2}x{0:3}", (1, 2), 96),  # its own 96 bytes
        ("REDUCE_SCATTER", "{1:4}x{0:255}", (1, 2, 3, 4), 72),
    ],
)
def test_transfer_between_slices_is_read(
    kind: str, target: str, slices: tuple[int, ...], sent: int
) -> None:
    target = f'_xla_megascale_target="{target}",_xla_megascale_transfer_type="{kind}"'
    (found,) = read_all(
        "%token = token[] after-all()",
        "%send = (f32[6,4], u32[], token[]) send(%table, %token), channel_id=1, "
        f"is_host_transfer=true, frontend_attributes={{{target}}}",
        "%other = (f32[6,4], u32[], token[]) send(%table, %token), channel_id=2",  # none
    )
    assert (found.kind, found.groups, found.sent_bytes) == (
        kind.lower().replace("_", "-"), (slices,), sent,
    )  # fmt: skip
    assert found.between_slices
