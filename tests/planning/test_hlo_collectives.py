"""Kinds, groups and sizes of collectives in HLO text."""

import pytest

from t2t.planning.hlo_traffic import Collective, measure_cost


def read_all(line: str) -> list[Collective]:
    text = f"""HloModule test, num_partitions=8

ENTRY %main (p: f32[6,4]) -> f32[6,4] {{
  %p = f32[6,4]{{1,0}} parameter(0)
  %own = {line}
  ROOT %root = f32[6,4]{{1,0}} copy(%p)
}}
"""
    return measure_cost(text).collectives


def read(line: str) -> Collective:
    (found,) = read_all(line)
    return found


@pytest.mark.parametrize(
    ("groups", "members"),  # of the first group
    [
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", (0, 4)),
        ("replica_groups=[2,4]<=[8]", (0, 1, 2, 3)),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6)),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", (0, 1)),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", (0, 2, 4, 6)),
        ("replica_groups=mesh['a'=2,'b'=2,'c'=2], device_ids=([8]T(0)) {'a','c'}", (0, 1, 4, 5)),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", (0, 4)),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", (0, 1, 2, 3)),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", (0, 4)),
        ("replica_groups={}", tuple(range(8))),
        ("channel_id=1", tuple(range(8))),
    ],
)
def test_group_is_read_from_all_its_forms(groups: str, members: tuple[int, ...]) -> None:
    found = read(f"f32[6,4]{{1,0}} all-reduce(%p), channel_id=1, {groups}, to_apply=%add")
    assert (found.groups[0], found.num_bytes, found.times) == (members, 96, 1)
    assert sorted(device for group in found.groups for device in group) == [*range(8)]


def test_several_arrays_that_are_sent_together_are_one_collective() -> None:
    found = read(
        "((f32[6,4], f32[6,4]), (f32[48,4], f32[48,4])) all-gather-start(%p, %p), dimensions={0}"
    )
    assert found.num_bytes == 2 * 768


@pytest.mark.parametrize(
    ("line", "kind", "num_bytes", "sent"),
    [
        ("f32[6,4] all-reduce(%p)", "all-reduce", 96, 2 * 84),
        ("f32[48,4] all-gather(%p), dimensions={0}", "all-gather", 768, 672),
        ("f32[6,4] reduce-scatter(%p), dimensions={0}", "reduce-scatter", 96, 84),
        ("f32[6,4] all-to-all(%p), dimensions={0}", "all-to-all", 96, 84),
        (
            "f32[6,4] collective-permute(%p), source_target_pairs={{0,1},{1,0}}",
            "collective-permute", 96, 96,
        ),
        (
            "(f32[6,4], f32[48,4]) all-gather-start(%p), replica_groups=[1,8]<=[8]",
            "all-gather", 768, 672,
        ),
    ],
)  # fmt: skip
def test_ring_sends_what_the_others_lack(line: str, kind: str, num_bytes: int, sent: int) -> None:
    found = read(line)
    assert (found.kind, found.num_bytes, found.sent_bytes) == (kind, num_bytes, sent)


def test_nothing_is_sent_to_oneself() -> None:
    assert not read_all("f32[6,4] all-reduce(%p), replica_groups=[8,1]<=[8]")
    permute = "f32[6,4] collective-permute(%p), source_target_pairs="
    assert not read_all(f"{permute}{{{{0,0}},{{1,1}}}}")
    assert read(f"{permute}{{{{0,0}},{{1,4}},{{4,1}}}}").groups == ((1, 4), (4, 1))


@pytest.mark.parametrize(
    ("kind", "target", "slices", "sent"),
    [
        ("ALL_REDUCE", "{1,2}x{0:3}", (1, 2), 96),  # of 96 bytes: 2 x 1/2
        ("ALL_GATHER", "{1,2}x{0:3}", (1, 2), 96),  # its own 96 bytes
        ("REDUCE_SCATTER", "{1:4}x{0:255}", (1, 2, 3, 4), 72),
    ],
)
def test_transfer_between_slices_is_read(
    kind: str, target: str, slices: tuple[int, ...], sent: int
) -> None:
    text = f"""HloModule test, num_partitions=8

ENTRY %main (p: f32[6,4]) -> f32[6,4] {{
  %p = f32[6,4]{{1,0}} parameter(0)
  %token = token[] after-all()
  %send = (f32[6,4]{{1,0}}, u32[], token[]) send(%p, %token), channel_id=1, is_host_transfer=true, \
frontend_attributes={{_xla_megascale_target="{target}",_xla_megascale_transfer_type="{kind}"}}
  %other = (f32[6,4]{{1,0}}, u32[], token[]) send(%p, %token), channel_id=2
  ROOT %root = f32[6,4]{{1,0}} copy(%p)
}}
"""
    (found,) = measure_cost(text).collectives  # %other is none
    assert (found.kind, found.groups, found.sent_bytes) == (
        kind.lower().replace("_", "-"), (slices,), sent,
    )  # fmt: skip
    assert found.between_slices
