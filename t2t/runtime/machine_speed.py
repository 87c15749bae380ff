"""The CPU's kind, and a rough figure of the speed of a training step on this machine.

JAX is imported only where the machine has an accelerator.
"""

import functools
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from t2t.runtime.jax_settings import enable_compilation_cache, has_gpu, has_tpu, list_plugins

if TYPE_CHECKING:
    import jax

_log = logging.getLogger(__name__)

# Share of the speed of a large float32 product by NumPy that steps of small models reach: 50 of 170
# GFLOP/s on a core with AVX-512, and less on two.
_SHARE = 0.25
_SHARE_MIXED = 0.4  # of the same product, on CPUs whose new runs compute in `mixed`
# On accelerators the product is one of bfloat16: base reaches 23 to 35% of it on an H100
# (docs/gpu.md). Other kinds were not measured.
_SHARE_ACCELERATOR = 0.3
_LAUNCH = 0.005  # seconds that a step of a small model takes beside its products, on an H100
_CPU = Path("/proc/cpuinfo")
_BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # instructions that multiply in bfloat16
_MOST = re.compile(r"--xla_cpu_max_isa=(\w+)")  # the newest instructions that XLA may use


def may_have_accelerator() -> bool:
    """Returns whether JAX may compute elsewhere than on the CPU; it is not imported."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return False
    return has_gpu() or has_tpu() or bool(list_plugins())


@functools.cache
def measure_speed() -> tuple[float, float]:
    """Measures the devices that JAX uses, and starts JAX if they may be accelerators.

    Returns:
        The FLOPs per second of a training step, and the seconds that each step adds.
    """
    if may_have_accelerator():
        import jax

        enable_compilation_cache()  # which JAX reads once, when the first program is compiled
        if (device := jax.devices()[0]).platform != "cpu":
            speed, count = _measure_device(device), jax.device_count()
            _log.info(
                "%s multiplies %.3g TFLOP/s; it is assumed that training reaches %.0f%% of that on "
                "each of %d, and that a step takes %g ms more",
                device.device_kind, speed / 1e12, 100 * _SHARE_ACCELERATOR, count, 1000 * _LAUNCH,
            )  # fmt: skip
            return _SHARE_ACCELERATOR * speed * count, _LAUNCH
    left, right = np.ones((1024, 512), np.float32), np.ones((512, 512), np.float32)
    share = _SHARE_MIXED if multiplies_bfloat16() else _SHARE
    return share * 2 * left.size * len(right) / _time(lambda: left @ right, 50), 0.0


def _measure_device(device: "jax.Device", size: int = 4096) -> float:
    """Returns the FLOPs per second of large products of bfloat16 on a device."""
    import jax
    import jax.numpy as jnp

    count = 16  # about 2 TFLOP, so that the time to start them does not count

    @jax.jit
    def multiply(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, product: product @ x, x)

    x = jax.device_put(jnp.eye(size, dtype=jnp.bfloat16), device)
    multiply(x).block_until_ready()  # compiles
    return 2 * size**3 * count / _time(lambda: multiply(x).block_until_ready(), 3)


def _time(run: Callable[[], object], count: int) -> float:
    """Returns the seconds of the fastest of several runs."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def read_cpu(field: str) -> str:
    """Returns what Linux says of the first processor, such as "model name"; "" if nothing."""
    lines = _CPU.read_text("utf-8").splitlines() if _CPU.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def multiplies_bfloat16() -> bool:
    """Returns whether this CPU has instructions for products of bfloat16, and XLA may use them."""
    most = _MOST.search(os.environ.get("XLA_FLAGS", ""))
    is_allowed = most is None or most[1].startswith(("AVX512_BF16", "AMX"))
    return is_allowed and not _BFLOAT16.isdisjoint(read_cpu("flags").split())
