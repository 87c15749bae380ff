"""What accelerators can do, by data sheet, per device: as JAX counts devices, one chip each.

TPU figures: docs.cloud.google.com/tpu/docs/v4, v5e, v5p and v6e, "key specifications", read in
November 2026. The memory that a program may use is a little less than the data sheet's: it is what
the compiler (libtpu 0.0.42.1) says that is available when a program does not fit. The network is
the sum of all links of a chip in one direction, half of the "bidirectional" figure there.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device."""

    name: str
    flops: float  # per second, of bfloat16 products with float32 sums
    matrix_units: int
    matrix_width: int  # a unit multiplies width x width numbers in a cycle
    memory_bytes: float  # that a program may use
    memory_bandwidth: float  # bytes per second, between that memory and the chip
    network_bandwidth: float  # bytes per second that it can send to its neighbours, on all links
    dimensions: int = 2  # of the torus of chips, with two links in each
    ring: int = 16  # a dimension of so many chips, or a multiple, is closed to a ring
    topology_options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def flops_per_cycle(self) -> float:
        """Floating-point operations per cycle, of all matrix units together."""
        return self.matrix_units * 2 * self.matrix_width**2

    @property
    def clock(self) -> float:
        """Cycles per second: that at which the matrix units reach the peak.

        The compiler's own estimates agree: a product of 4,096 x 4,096 matrices takes it 97% (v5e),
        96% (v5p), 88% (v4) and 87% (v6e) of `flops_per_cycle`.
        """
        return self.flops / self.flops_per_cycle

    def fill(self, widths: Sequence[int]) -> float:
        """Share of the peak that products reach which are so wide: 64 fills half of 128."""
        passes = sum(math.ceil(width / self.matrix_width) for width in widths)
        return sum(widths) / (passes * self.matrix_width)


CHIPS = {
    chip.name: chip
    for chip in (
        # 400 GB/s in both directions; only the whole pod of 16 x 16 is a torus.
        Chip("v5e", 197e12, 4, 128, 15.75 * _GIB, 819e9, 200e9),
        # 2 cores with 4 units, which JAX sees as one device; 1,200 GB/s.
        Chip("v5p", 459e12, 8, 128, 95.74 * _GIB, 2765e9, 600e9, 3, 4),
        # 4 units by the compiler's reckoning; 800 GB/s.
        Chip("v6e", 918e12, 4, 256, 31.25 * _GIB, 1638e9, 400e9),
        # 2 cores with 4 units, one device if the compiler is told so; 2,400 Gbit/s one way.
        Chip(
            "v4", 275e12, 8, 128, 30.75 * _GIB, 1200e9, 300e9, 3, 4,
            {"chip_config_name": "megacore"},
        ),
        # Nominal, so that meshes can be compared where there is no TPU compiler: a server's core
        # with 16 GiB, 100 GFLOP/s, 10 GB/s of memory and 1 GB/s of network.
        Chip("cpu", 100e9, 1, 4, 16 * _GIB, 10e9, 1e9),
    )
}  # fmt: skip
