"""Equation 1 by cuDNN, NVIDIA's library: one kernel per pass, which never writes the weights.

`jax.nn.dot_product_attention` calls it. The mask is added to the logits, as 0 or a large negative
number. On an H100, cuDNN's backward pass gives NaN as the gradient of a query whose logits have a
logsumexp below -88.7, if the number of keys is 64 more than a multiple of 128. The kernel takes 128
keys at a time, and counts the missing ones as logits of 0: exp(0 + 88.7) overflows
(github.com/pytorch/pytorch/issues/196678, github.com/NVIDIA/cudnn-frontend/pull/628). Therefore

- a query that sees no key, whose logits would all be large and negative, sees all keys. Its result
  differs from the formula's 0. Only padding sees no key, and its results are used by nothing
  (tests/ops/test_cudnn_attention.py);
- such a number of keys becomes a multiple of 128, by 64 keys that no query sees.
"""

import re

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t.model.kv_cache import KeyValue
from t2t.runtime.jax_settings import find_xla_flag
from t2t.runtime.mesh import platform, spec

CAPABILITY = 8.0  # the least that cuDNN's kernels need: A100 and later
TILE = 128  # keys that a kernel takes at a time
# With either flag XLA fails at the first step of a model with several layers ("IndexError ... at"):
# it passes the flag to one of several equal backward passes (github.com/openxla/xla/pull/46500).
DETERMINISM = "xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops"


def supports(
    query: Float[Array, "B T H K"],
    key_value: KeyValue,
    bias: Float[Array, "*#B #H #T #S"] | None,
    dropout_rate: float,
) -> bool:
    """Returns whether cuDNN supports these operands of attention on this platform.

    It needs a device as in `supports_device`, operands that are all bfloat16 or all float16, no
    bias, no dropout of the weights, T and S divisible by 2, and equal widths K and U, a multiple of
    8 and at most 128.
    """
    _, queries, _, width = query.shape
    _, keys, _, value_width = key_value.values.shape
    return (
        supports_device()
        and query.dtype in (jnp.bfloat16, jnp.float16)
        and query.dtype == key_value.keys.dtype == key_value.values.dtype
        and bias is None
        and dropout_rate == 0
        and queries % 2 == keys % 2 == 0
        and width == value_width
        and width % 8 == 0
        and width <= 128
    )


def supports_device() -> bool:
    """Returns whether the mesh's devices are NVIDIA GPUs of compute capability 8.0 or higher.

    None is while XLA's flags set one of `DETERMINISM`. AMD's GPUs name an architecture instead,
    such as gfx942. A device that this process does not have is one of `t2t/planning/chips.py`,
    which all support it.
    """
    if platform() != "gpu":
        return False
    if any((find_xla_flag(name) or "0").lower() not in ("false", "0") for name in DETERMINISM):
        return False
    kind = getattr(jax.sharding.get_abstract_mesh().abstract_device, "device_kind", None)
    for device in jax.devices():
        if device.platform == "gpu" and kind in (None, device.device_kind):
            capability = re.fullmatch(r"\d+\.\d+", str(device.compute_capability))
            return capability is not None and float(capability[0]) >= CAPABILITY
    return True


def cudnn_attention(
    query: Float[Array, "B T H K"],
    key_value: KeyValue,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "*#B #H #T #S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
    causal: bool = False,
) -> Float[Array, "B T H U"]:
    """As `t2t.model.attention.dot_product_attention`, without bias and without dropout.

    A query that sees no key sees all of them instead. `causal` promises that the mask hides all
    keys to the right of their query, so that cuDNN can leave out tiles of them.
    """
    assert bias is None
    assert key is None or dropout_rate == 0
    shape = query.shape[0], 1, query.shape[1], mask.shape[3]
    mask |= ~mask.any(axis=-1, keepdims=True)
    mask = jnp.broadcast_to(mask, shape, out_sharding=spec("batch", None, None, None))

    def attend(query: Array, keys: Array, values: Array, mask: Array) -> Array:
        if keys.shape[1] % TILE == TILE // 2:
            more = [(0, 0), (0, TILE // 2), (0, 0), (0, 0)]
            keys, values = jnp.pad(keys, more), jnp.pad(values, more)
            mask = jnp.pad(mask, [(0, 0)] * 3 + [(0, TILE // 2)])
        return jax.nn.dot_product_attention(
            query, keys, values, mask=mask, is_causal=causal, scale=None if scaled else 1.0,
            implementation="cudnn",
        )  # fmt: skip

    heads = spec("batch", None, "heads", None)
    if heads is None:
        return attend(query, *key_value, mask)
    return jax.shard_map(attend, out_specs=heads, check_vma=False)(query, *key_value, mask)
