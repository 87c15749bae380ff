"""The CPU's kind, and a rough figure of the speed of a training step on this machine.

JAX is imported only where the machine has an accelerator.
"""

import functools
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from t2t.runtime.jax_settings import (
    enable_compilation_cache,
    find_xla_flag,
    has_gpu,
    has_tpu,
    list_plugins,
)

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


def may_have_accelerator() -> bool:
    """Returns whether JAX may compute elsewhere than on the CPU; it is not imported."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return False
    return has_gpu() or has_tpu() or bool(list_plugins())


@functools.cache
def measure_speed() -> tuple[float, float]:
    """Measures the devices that JAX uses.

    Returns:
        The FLOPs per second of a training step, and the seconds that each step adds.
    """
    if may_have_accelerator():
        name, flops = _ask_another_process() or measure_devices()
        if flops:
            _log.info(
                "%s: products of bfloat16 reach %.3g TFLOP/s; assumed that training reaches %.0f%% "
                "of it, and that each step takes %g ms more",
                name, flops / 1e12, 100 * _SHARE_ACCELERATOR, 1000 * _LAUNCH,
            )  # fmt: skip
            return _SHARE_ACCELERATOR * flops, _LAUNCH
    left, right = np.ones((1024, 512), np.float32), np.ones((512, 512), np.float32)
    share = _SHARE_MIXED if multiplies_bfloat16() else _SHARE
    return share * 2 * left.size * len(right) / _time(lambda: left @ right, 50), 0.0


def _ask_another_process() -> tuple[str, float] | None:
    """Returns the result of `measure_devices` in a process of its own; None if it fails there.

    This process may only start others that need the devices, as a sweep does, and JAX keeps their
    memory. If JAX has started here, TPUs are not free for another process.
    """
    code = "from t2t.runtime import machine_speed as m; print(*m.measure_devices(), sep='\\n')"
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment, capture_output=True, check=True, encoding="utf-8", timeout=120,
        )  # fmt: skip
        *_, name, flops = done.stdout.splitlines()
        return name, float(flops)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def measure_devices(size: int = 4096) -> tuple[str, float]:
    """Measures large products of bfloat16 on the devices that JAX uses; it starts JAX.

    Returns:
        The kind of the devices, and the FLOPs per second of all of them; 0 for CPUs.
    """
    import jax
    import jax.numpy as jnp

    device, repeated = jax.devices()[0], 16  # so that the time to start does not count
    if device.platform == "cpu":
        return device.device_kind, 0.0
    enable_compilation_cache()  # before the first program is compiled

    @jax.jit
    def multiply(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, repeated, lambda _, product: product @ x, x)

    x = jnp.eye(size, dtype=jnp.bfloat16)
    multiply(x).block_until_ready()  # compiles
    seconds = _time(lambda: multiply(x).block_until_ready(), 3)
    return device.device_kind, 2 * size**3 * repeated / seconds * jax.device_count()


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
    most = find_xla_flag("xla_cpu_max_isa")  # the newest instructions that XLA may use
    is_allowed = most is None or most.upper().startswith(("AVX512_BF16", "AMX"))
    return is_allowed and not _BFLOAT16.isdisjoint(read_cpu("flags").split())
