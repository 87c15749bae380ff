"""Creates a model's compute policy: its dtypes, and the implementation of each operation.

`choose_policy` is called when a model is built. It depends on `model.kernels`, `model.dtype`,
`model.attention` and the platform of the mesh:

    model.kernels=textbook  the formulas of t2t/model
    model.kernels=auto      their faster versions in t2t/ops ("twins")
    model.kernels=fused_norm  auto, and on GPUs dropout, residual connection and norm in one kernel,
                            which no GPU has timed

    model.dtype=auto        bfloat16, but float32 on CPUs; on some CPUs a new run has `mixed` in its
                            place (t2t/training/resume.py)
    model.dtype=mixed       float32 activations; products with weights have bfloat16 operands
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t.config.fields import ModelConfig
from t2t.config.variants import CHOICES, find_variant
from t2t.model import attention, experts, layers, linear, loss, position, stack
from t2t.model.compute_policy import Policy
from t2t.model.kv_cache import KeyValue, KVCache
from t2t.ops import (
    cached_attention,
    chunked_loss,
    chunked_r_drop,
    cudnn_attention,
    fast_layers,
    fast_linear,
    fused_norm,
    gpu_loss,
    recomputed_attention,
    sorted_experts,
    tpu_attention,
)
from t2t.runtime.mesh import platform

# The formulas, by their fields of `Policy`.
TEXTBOOK: dict[str, Callable[..., Any]] = {
    "attention": attention.dot_product_attention,
    "causal_attention": attention.dot_product_attention,
    "multiply": linear.multiply,
    "affine": linear.affine,
    "multiply_parts": linear.multiply_parts,
    "standardize": layers.standardize,
    "apply_experts": experts.apply_experts,
    "relu": jax.nn.relu,
    "rotate": position.rotate,
    "dropout": layers.dropout,
    "add_and_norm": stack.add_and_norm,
    "order_gradients": stack.keep_order,
    "smoothed_cross_entropy": loss.smoothed_cross_entropy,
    "r_drop_cross_entropy": loss.r_drop_cross_entropy,
    "sentence_losses": loss.sentence_losses,
}


def fast_attention(
    query: Float[Array, "B T H K"],
    key_value: KeyValue | KVCache,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "*#B #H #T #S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """As `t2t.model.attention.dot_product_attention`, by the twin that supports the operands."""
    others = mask, bias, dropout_rate, key
    if isinstance(key_value, KVCache):
        return cached_attention.cached_attention(query, key_value, *others, scaled=scaled)
    rate = 0.0 if key is None else dropout_rate
    attend = recomputed_attention.recomputed_attention
    if tpu_attention.supports(query, key_value, bias, rate):
        attend = tpu_attention.tpu_attention
    elif cudnn_attention.supports(query, key_value, bias, rate):
        attend = cudnn_attention.cudnn_attention
    return attend(query, key_value, *others, scaled=scaled)


def fast_causal_attention(
    query: Float[Array, "B T H K"],
    key_value: KeyValue | KVCache,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "*#B #H #T #S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """As `fast_attention`, for a mask that hides all keys to the right of their query.

    Only cuDNN computes less then.
    """
    others = mask, bias, dropout_rate, key
    rate = 0.0 if key is None else dropout_rate
    if isinstance(key_value, KVCache) or not cudnn_attention.supports(query, key_value, bias, rate):
        return fast_attention(query, key_value, *others, scaled=scaled)
    return cudnn_attention.cudnn_attention(query, key_value, *others, scaled=scaled, causal=True)


FAST: dict[str, Callable[..., Any]] = {
    "attention": fast_attention,
    "causal_attention": fast_causal_attention,
    "multiply": fast_linear.multiply,
    "affine": fast_linear.affine,
    "multiply_parts": fast_linear.multiply_parts,
    "standardize": fast_layers.standardize,
    "apply_experts": sorted_experts.apply_experts,
    "relu": fast_layers.relu,
    "rotate": fast_layers.rotate,
    "dropout": fast_layers.dropout,
    "add_and_norm": stack.add_and_norm,  # of the twins of dropout and norm
    "order_gradients": fast_layers.weights_first,
    "smoothed_cross_entropy": chunked_loss.smoothed_cross_entropy,
    "r_drop_cross_entropy": chunked_r_drop.r_drop_cross_entropy,
    "sentence_losses": chunked_loss.sentence_losses,
}

FAST_ON_GPU = FAST | {
    "affine": fast_linear.affine_on_gpu,
    # Masks are computed again in the backward pass, but for those after feed-forwards and
    # embeddings, which XLA stores, one byte per element. The twin, which computes all of them
    # again, takes more kernels (benchmarks/LOG.md).
    "dropout": layers.dropout,
    "smoothed_cross_entropy": gpu_loss.smoothed_cross_entropy,
    "r_drop_cross_entropy": loss.r_drop_cross_entropy,  # the twin was not measured on GPUs
}

# operations with a dtype of operands
PRODUCTS = "multiply", "affine", "multiply_parts", "apply_experts"

# Options of XLA for the training step, by platform. On GPUs XLA would merge the products that make
# queries, keys and values into one, and then cut the result into the parts that cuDNN needs. With
# this option it does not, and a step moves 0.95 times as many bytes (benchmarks/LOG.md).
COMPILER_OPTIONS = {"gpu": {"xla_gpu_dot_merger_threshold_mb": "0"}}


def choose_policy(config: ModelConfig) -> Policy:
    """Creates the policy of a model on the current mesh."""
    match config.kernels:
        case "textbook":
            operations = TEXTBOOK
        case "auto" | "fused_norm":
            operations = FAST_ON_GPU if uses_gpu_twins(config) else FAST
            if config.kernels == "fused_norm" and platform() == "gpu":
                operations = operations | {"add_and_norm": fused_norm.add_and_norm}
        case other:
            raise ValueError(f"model.kernels={other!r} is unknown")
    # A registered attention has no twin. A whole sub-layer uses the library's.
    is_own = config.attention in CHOICES["model.attention"]
    if not is_own and attention.find_sub_layer(config.attention) is attention.MultiHeadAttention:
        own = find_variant("model.attention", config.attention)
        operations = operations | {"attention": own, "causal_attention": own}
    match config.dtype:
        case "auto":
            dtype = product_dtype = "float32" if platform() == "cpu" else "bfloat16"
        case "mixed":
            dtype, product_dtype = "float32", "bfloat16"
        case dtype:
            product_dtype = dtype
    bound = {name: bind_dtype(operations[name], product_dtype) for name in PRODUCTS}
    return Policy(jnp.dtype(dtype), jnp.dtype(product_dtype), **(operations | bound))


def uses_gpu_twins(config: ModelConfig) -> bool:
    """Returns whether the current mesh is of GPUs, and the config allows twins."""
    return config.kernels != "textbook" and platform() == "gpu"


@functools.cache  # equal policies have equal functions
def bind_dtype(product: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    """Returns a function of products, with the dtype of their operands."""
    return functools.partial(product, dtype=jnp.dtype(dtype))


def list_kernels(config: ModelConfig) -> dict[str, str]:
    """Returns operation -> module that implements it, for logs and the ledger.

    Attention has several: the first that supports its operands computes it, causal or not.
    """
    policy, names = choose_policy(config), [*TEXTBOOK]
    names.remove("causal_attention")
    if config.feed_forward != "moe":
        names.remove("apply_experts")
    if config.kind == "rnn":
        names = ["dropout", "smoothed_cross_entropy", "r_drop_cross_entropy", "sentence_losses"]
    modules = {}
    for name in names:
        operation = getattr(policy, name)
        module = getattr(operation, "func", operation).__module__.removeprefix("t2t.")
        modules[name] = "jax" if module.startswith("jax.") else module  # JAX's are private
    if modules.get("attention") == "ops.select_kernels":
        kernels = ["ops.cached_attention", "ops.recomputed_attention"]
        if platform() == "tpu":
            kernels.insert(1, "ops.tpu_attention")
        elif cudnn_attention.supports_device():
            kernels.insert(1, "ops.cudnn_attention")
        modules["attention"] = ", ".join(kernels)
    return modules
