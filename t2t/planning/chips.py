"""What accelerators can do, by data sheet, per device: as JAX counts devices, one chip each.

TPU figures: docs.cloud.google.com/tpu/docs/v4, v5e, v5p and v6e, "key specifications", read in
November 2026. The memory that a program may use is a little less than the data sheet's: it is what
the compiler (libtpu 0.0.42.1) says that is available when a program does not fit. The network is
the sum of all links of a chip in one direction, half of the "bidirectional" figure there.
"""

import dataclasses
from collections.abc import Mapping

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device."""

    name: str
    flops: float  # per second, of bfloat16 products with float32 sums
    flops_per_cycle: float  # of all its matrix units
    memory_bytes: float  # that a program may use
    memory_bandwidth: float  # bytes per second, between that memory and the chip
    network_bandwidth: float  # bytes per second that it can send to its neighbours
    topology_options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def clock(self) -> float:
        """Cycles per second: that at which the matrix units reach the peak.

        The compiler's own estimates agree: a product of 4,096 x 4,096 matrices takes it 97% (v5e),
        96% (v5p), 88% (v4) and 87% (v6e) of `flops_per_cycle`.
        """
        return self.flops / self.flops_per_cycle


CHIPS = {
    chip.name: chip
    for chip in (
        # 4 matrix units of 128 x 128; 400 GB/s in both directions.
        Chip("v5e", 197e12, 4 * 2 * 128**2, 15.75 * _GIB, 819e9, 200e9),
        # 2 cores with 4 units of 128 x 128, which JAX sees as one device; 1,200 GB/s.
        Chip("v5p", 459e12, 8 * 2 * 128**2, 95.74 * _GIB, 2765e9, 600e9),
        # The compiler reckons with 4 x 2 * 256^2 FLOPs a cycle; 800 GB/s.
        Chip("v6e", 918e12, 4 * 2 * 256**2, 31.25 * _GIB, 1638e9, 400e9),
        # 2 cores with 4 units of 128 x 128, one device if the compiler is told so; links of
        # 2,400 Gbit/s in one direction.
        Chip(
            "v4", 275e12, 8 * 2 * 128**2, 30.75 * _GIB, 1200e9, 300e9,
            {"chip_config_name": "megacore"},
        ),
        # Nominal, so that meshes can be compared where there is no TPU compiler: a server's core
        # with 16 GiB, 100 GFLOP/s, 10 GB/s of memory and 1 GB/s of network.
        Chip("cpu", 100e9, 2 * 32, 16 * _GIB, 10e9, 1e9),
    )
}  # fmt: skip
