"""Links that carry a collective, and the bandwidth that each of its members has on them.

TPUs are a torus of chips, a slice; the network of the data centre joins slices. GPUs of a host are
joined by NVLink, and hosts by a network.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from t2t.planning.chips import Chip, Gpu, Tpu
from t2t.planning.hlo_collectives import Collective

Coordinates = tuple[int, ...]  # of a TPU in its torus; of a GPU: (slice, host, number in the host)


SLICES = "slices"  # the data centre's network, between TPU slices


class Link(NamedTuple):
    """The slowest link that a collective takes."""

    name: str  # one of `Chip.links`, or SLICES
    bandwidth: float  # bytes per second that each member can send to the others


def find_link(
    collective: Collective, coordinates: Sequence[Coordinates] | None, chip: Chip
) -> Link:
    """Finds the link that limits a collective.

    Args:
        collective: Its groups number the devices as `coordinates` does.
        coordinates: Of all devices; None: the result is the chip's whole bandwidth.
        chip: The kind of device.
    """
    match chip:
        case Tpu() if collective.between_slices:
            assert chip.slice_bandwidth  # open_topology refuses several slices without it
            return Link(SLICES, chip.slice_bandwidth)
        case Tpu() if coordinates is not None:
            return Link(
                "network",
                min(find_torus_bandwidth(group, coordinates, chip) for group in collective.groups),
            )
        case Gpu() if coordinates is not None:
            hosts = [place[:-1] for place in coordinates]
            links = [
                _find_gpu_link(collective.kind, [hosts[member] for member in group], chip)
                for group in collective.groups
            ]
            return min(links, key=lambda link: link.bandwidth)
        case _:
            return Link(chip.links[0], chip.network_bandwidth)


def find_torus_bandwidth(
    members: Sequence[int], coordinates: Sequence[Coordinates], chip: Tpu
) -> float:
    """Bytes per second that each member of a collective can send to the others.

    A collective uses the links of the torus dimensions in which its members differ. Per dimension a
    chip has two usable links if the members form a ring, and one if they form a line, since all
    traffic crosses the link in its middle. Members `step` positions apart share the links with
    `step` - 1 other groups.
    """
    torus = np.max(coordinates, axis=0)[: chip.dimensions] + 1
    # 3D slices have closed rings in all dimensions (multiples of 4 x 4 x 4) or in none.
    closed = torus % chip.ring == 0
    closed = closed if chip.dimensions == 2 else np.full(3, closed.all())
    links = 0.0
    places = np.array([coordinates[member] for member in members]).T
    for size, is_closed, along in zip(torus, closed, places, strict=False):
        taken = np.unique(along)
        if len(taken) > 1:
            step = (taken[-1] - taken[0]) / (len(taken) - 1)
            step = min(step, size - step) if is_closed else step
            is_ring = is_closed and len(taken) * step == size
            links += (2 if is_ring else 1) / step
    return float(links) * chip.network_bandwidth / (2 * chip.dimensions)


def _find_gpu_link(kind: str, hosts: Sequence[Coordinates], chip: Gpu) -> Link:
    """Finds the slowest link of one group, whose members are on these hosts.

    Inside a host every GPU has the whole bandwidth of NVLink. A group with k members on each host
    forms k rings through all of its members, and each ring leaves a host by the network card of
    another GPU: all k cards carry the traffic of each member, as far as NVLink can feed them. In an
    all-to-all a GPU sends by its own card what is for other hosts.
    """
    counts = collections.Counter(hosts)
    if len(counts) == 1:
        return Link("NVLink", chip.network_bandwidth)
    size, fewest = len(hosts), min(counts.values())
    cards = (size - 1) / (size - fewest) if "all-to-all" in kind else fewest
    return Link("network", min(chip.network_bandwidth, cards * chip.host_bandwidth))
