"""Data-sheet figures of accelerators, per JAX device, which is one chip.

TPUs: docs.cloud.google.com/tpu/docs/v4, v5e, v5p and v6e, "key specifications", read in November
2026. The memory that a program may use is slightly less than on the data sheet: it is the size that
the compiler (libtpu 0.0.42.1) reports as available when a program does not fit. Between slices:
"data center network bandwidth" of the same pages, v5e and v6e per pod of 256 chips, v5p per chip.

GPUs: FLOP/s and NVLink from NVIDIA's data sheets (dense bfloat16, without sparsity); all else from
XLA's own specifications (openxla/xla, xla/backends/gpu/target_config/specs, read 2026-11-22).

Network bandwidths are in one direction, half of a data sheet's "bidirectional" figure.
"""

import dataclasses
from collections.abc import Mapping

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """The figures of one kind of device."""

    name: str
    flops: float  # per second, bfloat16 products with float32 accumulation
    memory_bytes: float  # available to a program
    memory_bandwidth: float  # bytes per second between memory (HBM) and chip
    # bytes per second that a chip can send: over all links of a TPU, or over a GPU's NVLink
    network_bandwidth: float


@dataclasses.dataclass(frozen=True)
class Tpu(Chip):
    """A TPU chip; its compiler estimates cycles."""

    flops_per_cycle: int  # of all matrix units; each does width x width multiply-adds
    # bytes per second that a chip can send to other slices; None: the data sheet states none
    slice_bandwidth: float | None
    topology_options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def clock(self) -> float:
        """Cycles per second, so that the matrix units reach the peak `flops`.

        The compiler's own estimates agree: by them a product of 4,096 x 4,096 matrices reaches 97%
        (v5e), 96% (v5p), 88% (v4) and 87% (v6e) of `flops_per_cycle`.
        """
        return self.flops / self.flops_per_cycle


@dataclasses.dataclass(frozen=True)
class Gpu(Chip):
    """An NVIDIA GPU; its compiler states no time.

    `memory_bytes` is all of its memory here; `topology.py` takes the share that JAX takes.
    """

    product: str
    host_bandwidth: float  # bytes per second that a GPU can send to GPUs of other hosts
    capability: int  # CUDA compute capability, the major number
    cores: int  # streaming multiprocessors
    units_per_core: int  # float32 units
    l2_bytes: int
    clock_ghz: float
    shared_bytes: int  # shared memory per core; a block can use 1 KiB less

    def target_config(self) -> str:
        """The device as XLA's GpuTargetConfigProto, in text format."""
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024
              threads_per_warp: 32
              shared_memory_per_block: 49152
              shared_memory_per_block_optin: {self.shared_bytes - 1024}
              shared_memory_per_core: {self.shared_bytes}
              threads_per_core_limit: 2048
              core_count: {self.cores}
              fpus_per_core: {self.units_per_core}
              block_dim_limit_x: 2147483647
              block_dim_limit_y: 65535
              block_dim_limit_z: 65535
              memory_bandwidth: {round(self.memory_bandwidth)}
              l2_cache_size: {self.l2_bytes}
              clock_rate_ghz: {self.clock_ghz}
              device_memory_size: {round(self.memory_bytes)}
              cuda_compute_capability {{ major: {self.capability} minor: 0 }}
              registers_per_core_limit: 65536
              registers_per_block_limit: 65536
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 10 }}
            runtime_version {{ major: 12 minor: 9 patch: 0 }}
            device_description_str: "{self.product}"
        """


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        # 4 units; 400 GB/s in both directions.
        Tpu("v5e", 197e12, 15.75 * _GIB, 819e9, 200e9, 4 * 2 * 128**2, 3.125e9),
        # 2 cores of 4 units, one device in JAX; 1,200 GB/s in both directions.
        Tpu("v5p", 459e12, 95.74 * _GIB, 2765e9, 600e9, 8 * 2 * 128**2, 6.25e9),
        # 4 units, inferred from the compiler's estimates; 800 GB/s in both directions.
        Tpu("v6e", 918e12, 31.25 * _GIB, 1638e9, 400e9, 4 * 2 * 256**2, 12.5e9),
        # 2 cores of 4 units, one device with the option below; 2,400 Gbit/s in one direction.
        Tpu(
            "v4", 275e12, 30.75 * _GIB, 1200e9, 300e9, 8 * 2 * 128**2, None,
            {"chip_config_name": "megacore"},
        ),
        # DGX A100: NVLink 3, 600 GB/s in both directions; a network card of 200 Gbit/s per GPU.
        Gpu(
            "a100", 312e12, 85_100_068_864, 2039.04e9, 300e9, "NVIDIA A100-SXM4-80GB",
            host_bandwidth=25e9, capability=8, cores=108, units_per_core=64,
            l2_bytes=41_943_040, clock_ghz=1.41, shared_bytes=167_936,
        ),
        # DGX H100 and H200: NVLink 4, 900 GB/s in both directions; 400 Gbit/s per GPU.
        Gpu(
            "h100", 989.4e12, 84_942_979_072, 3352.32e9, 450e9, "NVIDIA H100 80GB HBM3",
            host_bandwidth=50e9, capability=9, cores=132, units_per_core=128,
            l2_bytes=52_428_800, clock_ghz=1.98, shared_bytes=233_472,
        ),
        Gpu(
            "h200", 989.4e12, 151_397_597_184, 4800e9, 450e9, "NVIDIA H200 141GB HBM3e",
            host_bandwidth=50e9, capability=9, cores=132, units_per_core=128,
            l2_bytes=52_428_800, clock_ghz=1.98, shared_bytes=233_472,
        ),
        # DGX B200: NVLink 5, 1,800 GB/s in both directions; 400 Gbit/s per GPU.
        Gpu(
            "b200", 2250e12, 191_514_411_008, 7672.32e9, 900e9, "NVIDIA B200",
            host_bandwidth=50e9, capability=10, cores=148, units_per_core=128,
            l2_bytes=132_644_864, clock_ghz=1.965, shared_bytes=233_472,
        ),
        # Nominal figures of one server core, to compare meshes without an accelerator's compiler:
        # 100 GFLOP/s, 16 GiB, 10 GB/s of memory and 1 GB/s of network bandwidth.
        Chip("cpu", 100e9, 16 * _GIB, 10e9, 1e9),
    )
}  # fmt: skip
