"""Bandwidth between the members of a collective, over the links of a torus of chips."""

from collections.abc import Sequence

import numpy as np

from t2t.planning.chips import Chip

Coordinates = tuple[int, ...]  # of a chip in its torus


def find_bandwidth(
    members: Sequence[int], coordinates: Sequence[Coordinates] | None, chip: Chip
) -> float:
    """Bytes per second that each member of a collective can send to the others.

    A collective uses the links of the torus dimensions in which its members differ. Per dimension a
    chip has two usable links if the members form a ring, and one if they form a line, since all
    traffic crosses the link in its middle. Members `step` positions apart share the links with
    `step` - 1 other groups.

    Args:
        members: Indices of the devices that take part.
        coordinates: Torus coordinates of all devices; None: the result is the chip's whole
            bandwidth.
        chip: The kind of device.
    """
    if coordinates is None:
        return chip.network_bandwidth
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
