"""Creates a model's compute policy: its dtypes, and the implementation of each operation.

`choose_policy` is called when a model is built. It depends on `model.kernels`, `model.dtype`,
`model.attention` and the platform of the mesh:

    model.kernels=textbook  the formulas of t2t/model and t2t/training/loss.py
    model.kernels=auto      their faster versions in t2t/ops ("twins")

    model.dtype=auto        bfloat16, but float32 on CPUs
    model.dtype=mixed       float32 activations; products with weights have bfloat16 operands
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2t.config.fields import ModelConfig
from t2t.config.variants import check_call, describe_value, find_variant, make_variant_error
from t2t.model import attention, dropout, matmul, norm, position
from t2t.model.compute_policy import Operations, Policy
from t2t.model.interface import Params
from t2t.model.kv_cache import KeyValue, KVCache
from t2t.ops import (
    cached_attention,
    chunked_loss,
    chunked_r_drop,
    cudnn_attention,
    gpu_loss,
    gradient_norm,
    gradient_order,
    recomputed_attention,
    relu,
    rotary,
    tpu_attention,
)
from t2t.ops import dropout as fast_dropout
from t2t.ops import matmul as fast_matmul
from t2t.ops import norm as fast_norm
from t2t.runtime.mesh import platform
from t2t.training import loss


def keep_xla_order(module: nnx.Module, x: Array) -> tuple[nnx.Module, Float[Array, "B T D"]]:
    """Returns (module, x); XLA decides in which order their gradients are computed."""
    return module, x


TEXTBOOK = Operations(
    attention=attention.dot_product_attention,
    multiply=matmul.multiply,
    project=matmul.project,
    standardize=norm.standardize,
    relu=jax.nn.relu,
    rotate=position.rotate,
    dropout=dropout.dropout,
    order_gradients=keep_xla_order,
    smoothed_cross_entropy=loss.smoothed_cross_entropy,
    r_drop_cross_entropy=loss.r_drop_cross_entropy,
    sentence_losses=loss.sentence_losses,
)


def fast_attention(
    query: Float[Array, "B T H K"],
    key_value: KeyValue | KVCache,
    mask: Bool[Array, "#B 1 #T S"],
    bias: Float[Array, "H T S"] | None = None,
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
    *,
    scaled: bool = True,
) -> Float[Array, "B T H U"]:
    """As `t2t.model.attention.dot_product_attention`, by the twin that supports the operands."""
    others = mask, bias, dropout_rate, key
    if isinstance(key_value, KVCache):
        return cached_attention.dot_product_attention(query, key_value, *others, scaled=scaled)
    rate = 0.0 if key is None else dropout_rate
    if tpu_attention.supports(query, key_value, bias, rate):
        return tpu_attention.dot_product_attention(query, key_value, *others, scaled=scaled)
    if cudnn_attention.supports(query, key_value, bias, rate):
        return cudnn_attention.dot_product_attention(query, key_value, *others, scaled=scaled)
    return recomputed_attention.dot_product_attention(query, key_value, *others, scaled=scaled)


FAST = Operations(
    attention=fast_attention,
    multiply=fast_matmul.multiply,
    project=fast_matmul.project,
    standardize=fast_norm.standardize,
    relu=relu.relu,
    rotate=rotary.rotate,
    dropout=fast_dropout.dropout,
    order_gradients=gradient_order.weights_first,
    smoothed_cross_entropy=chunked_loss.smoothed_cross_entropy,
    r_drop_cross_entropy=chunked_r_drop.r_drop_cross_entropy,
    sentence_losses=chunked_loss.sentence_losses,
)


FAST_ON_GPU = dataclasses.replace(
    FAST,
    dropout=dropout.dropout,  # on GPUs XLA stores no masks, even with the formula
    smoothed_cross_entropy=gpu_loss.smoothed_cross_entropy,
    r_drop_cross_entropy=loss.r_drop_cross_entropy,  # the twin was not measured on GPUs
)

# Options of XLA for the training step, by platform. On GPUs XLA would merge the products that make
# queries, keys and values into one, and then cut the result into the parts that cuDNN needs. With
# this option it does not, and a step moves 0.95 times as many bytes (benchmarks/LOG.md).
COMPILER_OPTIONS = {"gpu": {"xla_gpu_dot_merger_threshold_mb": "0"}}


Attention = Callable[..., Float[Array, "B T H U"]]


def choose_policy(config: ModelConfig) -> Policy:
    """Creates the policy of a model on the current mesh."""
    match config.kernels:
        case "textbook":
            operations = TEXTBOOK
        case "auto":
            operations = FAST_ON_GPU if platform() == "gpu" else FAST
        case other:
            raise ValueError(f"model.kernels={other!r} is unknown")
    if config.attention != "dot_product":  # a registered variant has no twin
        variant = find_variant("model.attention", config.attention)
        checked = _check_attention(config.attention, variant)
        operations = dataclasses.replace(operations, attention=checked)
    dtype = choose_dtype(config)
    product_dtype = jnp.dtype("bfloat16") if config.dtype == "mixed" else dtype
    return Policy(dtype, product_dtype, operations)


@functools.cache
def _check_attention(name: str, variant: Attention) -> Attention:
    """Returns a registered attention that checks, when it is compiled, its signature and result."""
    field = "model.attention"

    @functools.wraps(variant)
    def check_attention(
        query: Float[Array, "B T H K"], key_value: KeyValue | KVCache, *others: Any, **named: Any
    ) -> Float[Array, "B T H U"]:
        check_call(field, name, variant, query, key_value, *others, **named)
        result = variant(query, key_value, *others, **named)
        expected = *query.shape[:3], key_value.values.shape[-1]
        if getattr(result, "shape", None) != expected:
            fault = f"returned {describe_value(result)} instead of {expected}"
            raise make_variant_error(field, name, fault)
        return result

    return check_attention


def choose_gradient_norm(config: ModelConfig) -> Callable[[Params], Float[Array, ""]]:
    """Returns the function that computes the L2 norm of a gradient."""
    fast = config.kernels == "auto" and platform() == "gpu"
    return gradient_norm.norm if fast else optax.tree.norm


def choose_dtype(config: ModelConfig) -> jnp.dtype:
    """Returns the dtype of activations; `auto` is float32 on CPUs, bfloat16 elsewhere."""
    match config.dtype:
        case "auto":
            return jnp.dtype("float32" if platform() == "cpu" else "bfloat16")
        case "mixed":
            return jnp.dtype("float32")
        case name:
            return jnp.dtype(name)


def _name_module(function: Callable[..., object]) -> str:
    """Names the module that has a function; JAX's are private, and move."""
    module = function.__module__
    return "jax" if module.startswith("jax.") else module.removeprefix("t2t.")


def describe_choice(config: ModelConfig) -> dict[str, str]:
    """Returns operation -> module that implements it, in words for logs and records."""
    operations = choose_policy(config).operations
    names = [field.name for field in dataclasses.fields(Operations)]
    if config.kind == "rnn":
        names = ["dropout", "smoothed_cross_entropy", "r_drop_cross_entropy", "sentence_losses"]
    else:
        unused = {
            "rotate": config.position != "rotary",
            "relu": config.feed_forward != "relu",
            "standardize": config.norm == "none",
        }
        names = [name for name in names if not unused.get(name)]
    modules = {name: _name_module(getattr(operations, name)) for name in names}
    if config.kernels == "textbook":
        return modules
    if operations.attention is fast_attention and "attention" in names:
        training = "ops.recomputed_attention"
        kernel = "ops.tpu_attention" if platform() == "tpu" else "ops.cudnn_attention"
        if platform() == "tpu" or cudnn_attention.supports_device():
            training = (
                f"{kernel} (bfloat16, no bias, no dropout, supported shapes), else {training}"
            )
        modules["attention"] = f"{training}; ops.cached_attention in decoding"
    return modules
