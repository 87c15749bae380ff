"""Data-sheet figures of accelerators, per JAX device, which is one chip.

TPU figures: docs.cloud.google.com/tpu/docs/v4, v5e, v5p and v6e, "key specifications", read in
November 2026. The memory that a program may use is slightly less than on the data sheet: it is the
size that the compiler (libtpu 0.0.42.1) reports as available when a program does not fit. The
network bandwidth is the sum over all links of a chip in one direction, half of the data sheet's
"bidirectional" figure.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """The figures of one kind of device."""

    name: str
    flops: float  # per second, bfloat16 products with float32 accumulation
    matrix_units: int
    matrix_width: int  # a unit does width x width multiply-adds per cycle
    memory_bytes: float  # available to a program
    memory_bandwidth: float  # bytes per second between memory (HBM) and chip
    network_bandwidth: float  # bytes per second that a chip can send, over all its links
    dimensions: int = 2  # of the torus of chips; a chip has two links in each
    ring: int = 16  # a dimension is a closed ring if its size is a multiple of this
    topology_options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def flops_per_cycle(self) -> float:
        """Floating-point operations per cycle of all matrix units together."""
        return self.matrix_units * 2 * self.matrix_width**2

    @property
    def clock(self) -> float:
        """Cycles per second, so that the matrix units reach the peak `flops`.

        The compiler's own estimates agree: by them a product of 4,096 x 4,096 matrices reaches 97%
        (v5e), 96% (v5p), 88% (v4) and 87% (v6e) of `flops_per_cycle`.
        """
        return self.flops / self.flops_per_cycle

    def fill(self, widths: Sequence[int]) -> float:
        """Share of the peak that products of these widths can reach.

        A width of 64 fills half of a matrix unit of width 128.
        """
        passes = sum(math.ceil(width / self.matrix_width) for width in widths)
        return sum(widths) / (passes * self.matrix_width)


CHIPS = {
    chip.name: chip
    for chip in (
        # 400 GB/s in both directions; only the whole pod of 16 x 16 is a torus.
        Chip("v5e", 197e12, 4, 128, 15.75 * _GIB, 819e9, 200e9),
        # 2 cores of 4 units, one device in JAX; 1,200 GB/s in both directions.
        Chip("v5p", 459e12, 8, 128, 95.74 * _GIB, 2765e9, 600e9, 3, 4),
        # 4 units, inferred from the compiler's estimates; 800 GB/s in both directions.
        Chip("v6e", 918e12, 4, 256, 31.25 * _GIB, 1638e9, 400e9),
        # 2 cores of 4 units, one device with the option below; 2,400 Gbit/s in one direction.
        Chip(
            "v4", 275e12, 8, 128, 30.75 * _GIB, 1200e9, 300e9, 3, 4,
            {"chip_config_name": "megacore"},
        ),
        # Nominal figures of one server core, to compare meshes without a TPU compiler: 16 GiB,
        # 100 GFLOP/s, 10 GB/s of memory and 1 GB/s of network bandwidth.
        Chip("cpu", 100e9, 1, 4, 16 * _GIB, 10e9, 1e9),
    )
}  # fmt: skip
