"""The speed of training on this machine, without JAX: a rough figure to plan with."""

import functools
import os
import time

import numpy as np

from t2t.runtime.jax_settings import has_gpu

# Share of the speed of a large float32 product by NumPy that steps of small models reach: 50 of 170
# GFLOP/s on a core with AVX-512, and less on two.
_SHARE = 0.25
_GPU = 250e12, 0.005  # an H100 (docs/gpu.md)


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
    return _SHARE * 2 * left.size * len(right) / min(seconds), 0.0
