"""Links between chips: how fast the members of a collective can send to each other."""

from collections.abc import Sequence

import numpy as np

from t2t.planning.chips import Chip

Coordinates = tuple[int, ...]  # of a chip in its torus


def find_bandwidth(
    members: Sequence[int], coordinates: Sequence[Coordinates] | None, chip: Chip
) -> float:
    """Bytes per second that each member can send to the others; `coordinates` of all devices.

    A collective can use the links of those dimensions of the torus in which its members differ: two
    a chip where they close a ring, one where they are a line, along which everything goes through
    the link in its middle. Members that stand `step` apart share them with `step` - 1 other groups.
    Without coordinates the chip's whole bandwidth.
    """
    if coordinates is None:
        return chip.network_bandwidth
    torus = np.max(coordinates, axis=0)[: chip.dimensions] + 1
    # Slices of 4 x 4 x 4 and larger are closed in three dimensions, or in none.
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
