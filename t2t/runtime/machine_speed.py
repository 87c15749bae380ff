"""The CPU's kind, and a rough figure of its speed for plans; without JAX."""

import functools
import os
import time
from pathlib import Path

import numpy as np

from t2t.runtime.jax_settings import find_xla_flag, has_gpu

# Share of the speed of a large float32 product by NumPy that steps of small models reach: 50 of 170
# GFLOP/s on a core with AVX-512, and less on two.
_SHARE = 0.25
_SHARE_MIXED = 0.4  # of the same product, on CPUs whose new runs compute in `mixed`
_GPU = 250e12, 0.005  # an H100 (docs/gpu.md)
_CPU = Path("/proc/cpuinfo")
_BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # instructions that multiply in bfloat16


@functools.cache
def measure_speed() -> tuple[float, float]:
    """Returns the FLOPs per second of a training step, and the seconds that each step adds."""
    if has_gpu() and os.environ.get("JAX_PLATFORMS", "") != "cpu":
        return _GPU
    left, right = np.ones((1024, 512), np.float32), np.ones((512, 512), np.float32)
    seconds = []
    for _ in range(50):
        started = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - started)
    share = _SHARE_MIXED if multiplies_bfloat16() else _SHARE
    return share * 2 * left.size * len(right) / min(seconds), 0.0


def read_cpu(field: str) -> str:
    """Returns what Linux says of the first processor, such as "model name"; "" if nothing."""
    lines = _CPU.read_text("utf-8").splitlines() if _CPU.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def multiplies_bfloat16() -> bool:
    """Returns whether this CPU has instructions for products of bfloat16, and XLA may use them."""
    most = find_xla_flag("xla_cpu_max_isa")  # the newest instructions that XLA may use
    is_allowed = most is None or most.upper().startswith(("AVX512_BF16", "AMX"))
    return is_allowed and not _BFLOAT16.isdisjoint(read_cpu("flags").split())
