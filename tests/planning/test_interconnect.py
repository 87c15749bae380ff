"""Bandwidth of collectives on slices of TPUs and hosts of GPUs of real shapes."""

import itertools

import pytest

from t2t.planning.chips import CHIPS
from t2t.planning.hlo_collectives import Collective
from t2t.planning.interconnect import find_link


def make(kind: str, *groups: tuple[int, ...]) -> Collective:
    return Collective(kind, 1000, groups, times=1, overlaps=False)


def find_share(chip: str, sizes: tuple[int, ...], *taken: slice) -> float:
    """Share of the chip's bandwidth for the members at these coordinates of a slice of chips."""
    coordinates = list(itertools.product(*(range(size) for size in sizes)))
    members = tuple(
        number
        for number, place in enumerate(coordinates)
        if all(at in range(size)[own] for at, size, own in zip(place, sizes, taken, strict=True))
    )
    own = CHIPS[chip]
    link = find_link(make("all-reduce", members), coordinates, own)
    assert link.name == "network"
    return link.bandwidth / own.network_bandwidth


ALL, ONE = slice(None), slice(0, 1)


@pytest.mark.parametrize(
    ("chip", "sizes", "taken", "links"),
    [
        ("v5e", (16, 16), (ALL, ALL), 4),
        ("v5e", (16, 16), (ONE, ALL), 2),  # an axis of 16: one dimension of the torus
        ("v5e", (16, 16), (ALL, ONE), 2),
        ("v5e", (16, 16), (ONE, slice(0, 4)), 1),  # a line
        ("v5e", (16, 16), (ONE, slice(None, None, 4)), 0.5),  # a ring shared by four groups
        ("v5e", (16, 16), (ONE, slice(None, None, 15)), 1),  # neighbours around the ring
        ("v5e", (8, 8), (ALL, ALL), 2),  # a part of the pod is no torus
        ("v5e", (2, 2), (ALL, ALL), 2),
        ("v5e", (2, 4), (ONE, ALL), 1),
        ("v6e", (16, 16), (ONE, ALL), 2),
    ],
)
def test_collective_uses_the_links_of_its_own_dimensions(
    chip: str, sizes: tuple[int, int], taken: tuple[slice, slice], links: float
) -> None:
    assert find_share(chip, sizes, *taken) == pytest.approx(links / 4)


@pytest.mark.parametrize(
    ("sizes", "taken", "links"),
    [
        ((4, 4, 4), (ALL, ALL, ALL), 6),
        ((4, 4, 8), (ONE, ONE, ALL), 2),
        ((2, 2, 4), (ONE, ONE, ALL), 1),  # smaller than a cube of 4 x 4 x 4: no torus
        ((2, 2, 1), (ALL, ALL, ONE), 2),
    ],
)
def test_cubes_are_closed_in_three_dimensions(
    sizes: tuple[int, int, int], taken: tuple[slice, slice, slice], links: float
) -> None:
    assert find_share("v5p", sizes, *taken) == pytest.approx(links / 6)


def test_without_coordinates_a_device_has_its_whole_bandwidth() -> None:
    chip = CHIPS["cpu"]
    link = find_link(make("all-reduce", tuple(range(4))), None, chip)
    assert link == ("network", chip.network_bandwidth)


HOSTS = [(0, host, gpu) for host in range(4) for gpu in range(8)]  # h100:8x4


@pytest.mark.parametrize(
    ("chip", "kind", "groups", "link"),
    [
        ("h100", "all-reduce", [tuple(range(8)), tuple(range(8, 16))], ("NVLink", 450e9)),
        ("h100", "all-reduce", [tuple(range(32))], ("network", 8 * 50e9)),  # eight rings
        ("h100", "all-reduce", [tuple(range(0, 32, 8))], ("network", 50e9)),  # one GPU of a host
        ("h100", "all-gather", [tuple(range(0, 32, 4))], ("network", 2 * 50e9)),
        ("h100", "reduce-scatter", [(0, 1, 2, 8)], ("network", 50e9)),  # the fewest of a host
        ("h100", "collective-permute", [(0, 1), (7, 8), (15, 16)], ("network", 50e9)),
        # Of 15 parts 8 leave the host, all by the sender's own card.
        ("h100", "all-to-all", [tuple(range(16))], ("network", 50e9 * 15 / 8)),
        ("h100", "all-to-all", [tuple(range(4))], ("NVLink", 450e9)),
        ("a100", "all-reduce", [tuple(range(32))], ("network", 8 * 25e9)),
        ("b200", "all-reduce", [tuple(range(8))], ("NVLink", 900e9)),
    ],
)
def test_slowest_link_between_gpus_decides(
    chip: str, kind: str, groups: list[tuple[int, ...]], link: tuple[str, float]
) -> None:
    assert find_link(make(kind, *groups), HOSTS, CHIPS[chip]) == link


def test_rings_are_no_faster_than_nvlink_feeds_them() -> None:
    hosts = [(0, host, gpu) for host in range(2) for gpu in range(16)]
    link = find_link(make("all-reduce", tuple(range(32))), hosts, CHIPS["h100"])
    assert link == ("network", 450e9)
