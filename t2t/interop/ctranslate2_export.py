"""Exports models to CTranslate2 4.x, a fast engine for serving, with int8 on CPUs."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import jax
import jax.numpy as jnp
import numpy as np

from t2t.config.field_types import Role
from t2t.config.fields import Config, ConfigError, ModelConfig, fields_with
from t2t.config.rules import list_unused
from t2t.config.variants import GATED
from t2t.interop.standard_form import drop_factors, fold_factors
from t2t.model.parameters import Params
from t2t.model.position import encode_sinusoidal

Activation = ctranslate2.specs.common_spec.Activation
ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELUTanh,
    "silu": Activation.SWISH,
    "swiglu": Activation.SWISH,
    "geglu": Activation.GELUTanh,
}
SUPPORTED = {
    "parametrization": ("standard",),
    "kind": ("transformer",),
    "attention": ("dot_product",),
    "position": (
        *("sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq"),
        *("learned", "rotary"),
    ),
    "norm": ("layer", "rms"),
    "norm_position": ("post", "pre"),
    "feed_forward": tuple(ACTIVATIONS),
    "residual": (True,),
    "attention_scale": (True,),
    "decoder_start": ("bos",),
    "embedding_scale": (True,),
    "embedding_norm": (False,),
}
# Fields that determine the shapes of the parameters, or that `write_model` reads.
EXPORTED = (
    "num_layers encoder_layers decoder_layers d_model d_ff num_heads num_kv_heads d_k d_v "
    "max_positions tie_embeddings attention_bias feed_forward_bias norm_epsilon output_bias"
).split()
MAX_POSITIONS = 2048  # positions whose sinusoids are written


def check_support(config: ModelConfig) -> None:
    """Raises `ConfigError` if CTranslate2 does not support the model, in its standard form.

    A field that is in none of the lists above must have its default value: the export does not
    handle it, and would silently write a different model.
    """
    config = drop_factors(config)
    ignored = {
        *fields_with(Role.REGULARIZATION, Role.COMPUTATION),
        *list_unused(Config(model=config)),
        *(f"model.{name}" for name in EXPORTED),
    }
    problems = []
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        allowed = SUPPORTED.get(name, (field.default,))
        if value not in allowed and f"model.{name}" not in ignored:
            problems.append(
                f"model.{name}={value!r} is not supported by CTranslate2; "
                f"it supports {', '.join(map(str, allowed))}"
            )
    if config.kv_heads != config.num_heads:
        problems.append(
            "model.num_kv_heads must equal model.num_heads: CTranslate2 does not support shared "
            "keys and values in cross-attention"
        )
    if config.key_width != config.value_width:
        problems.append(f"model.d_k and d_v={config.value_width} must be equal for CTranslate2")
    if problems:
        raise ConfigError("\n".join(problems))


def write_model(
    config: ModelConfig,
    params: Params,
    pieces: tuple[Sequence[str], Sequence[str]],
    directory: Path,
    quantization: str | None = None,
) -> None:
    """Writes a model for `ctranslate2.Translator(directory)`; its tokens are SentencePiece pieces.

    CTranslate2 adds the EOS of the sources.

    Args:
        config: of the model; see `check_support`.
        params: of the model.
        pieces: the SentencePiece pieces of all ids of the source and of the target vocabulary.
        directory: an existing folder.
        quantization: of the weights: None, int8, int16, float16, bfloat16, int8_float32, ...
    """
    # Copies: CTranslate2 quantises in place.
    params = jax.tree.map(np.array, fold_factors(config, params))
    config = drop_factors(config)
    spec = _make_spec(config)
    tied, own_output = config.tie_embeddings, params.get("own_output_embedding")
    source = "tgt" if tied in ("all", "input") else "src"
    spec.encoder.embeddings[0].weight = params[f"{source}_embedding"]["table"]
    spec.decoder.embeddings.weight = params["tgt_embedding"]["table"]
    spec.decoder.projection.weight = (own_output or params["tgt_embedding"])["table"]
    if config.output_bias:
        spec.decoder.projection.bias = params["output_bias"]
    for side, stack in (("src", spec.encoder), ("tgt", spec.decoder)):
        if hasattr(stack, "position_encodings"):
            stack.position_encodings.encodings = _find_encodings(config, params, side)
        if config.norm_position == "pre":
            norm = params["encoder_norm" if side == "src" else "decoder_norm"]
            _write_norm(stack.layer_norm, norm)
    targets = *spec.encoder.layer, *spec.decoder.layer
    layers = *params["encoder"].values(), *params["decoder"].values()
    for target, layer in zip(targets, layers, strict=True):
        _write_attention(target.self_attention, layer, "self")
        if "cross_attention" in layer:
            _write_attention(target.attention, layer, "cross")
        _write_feed_forward(target.ffn, layer)
    spec.register_source_vocabulary(list(pieces[0]))
    spec.register_target_vocabulary(list(pieces[1]))
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(directory))


def _make_spec(config: ModelConfig) -> Any:
    """Creates a model without parameters."""
    specs = ctranslate2.specs
    rotary = config.position == "rotary"
    options: dict[str, Any] = {
        "num_heads": config.num_heads,
        "pre_norm": config.norm_position == "pre",
        "activation": ACTIVATIONS[config.feed_forward],
        "ffn_glu": config.feed_forward in GATED,
        "rms_norm": config.norm == "rms",
        "head_dim": config.key_width,
        "rotary_dim": 0 if rotary else None,
        "rotary_interleave": False,
    }
    encoder_depth, decoder_depth = config.depth
    return specs.TransformerSpec(
        specs.TransformerEncoderSpec(encoder_depth, **options),
        specs.TransformerDecoderSpec(decoder_depth, **options),
    )


def _find_encodings(config: ModelConfig, params: Params, side: str) -> np.ndarray:
    """The position encodings that are added to the embeddings; zeros for rotary positions."""
    match config.position:
        case "sinusoidal" | "sinusoidal_halves" | "sinusoidal_fairseq" as kind:
            return np.asarray(encode_sinusoidal(jnp.arange(MAX_POSITIONS), config.d_model, kind))
        case "learned":
            table: np.ndarray = params[f"{side}_position"]["table"]
            scaled: np.ndarray = table * np.sqrt(config.d_model).astype(table.dtype)
            return scaled
        case _:
            return np.zeros((MAX_POSITIONS, config.d_model), np.float32)


def _write_attention(target: Any, layer: Params, kind: str) -> None:
    """Writes an attention with its norm; `kind` is self or cross.

    Projections are [D, H, K] here, and [HK, D] in CTranslate2: (out, in).
    """
    attention = layer[f"{kind}_attention"]
    projections = {"query_key_value": 3} if kind == "self" else {"query": 1, "key_value": 2}
    *inputs, output = target.linear
    for linear, (name, parts) in zip(inputs, projections.items(), strict=True):
        split = np.split(attention[name]["weight"], parts, axis=-1)
        linear.weight = np.concatenate([part.reshape(len(part), -1).T for part in split])
        if (biases := attention[name].get("bias")) is not None:
            split = np.split(biases, parts, axis=-1)
            linear.bias = np.concatenate([part.reshape(-1) for part in split])
    weight = attention["output"]["weight"]
    output.weight = weight.reshape(-1, weight.shape[-1]).T
    if "bias" in attention["output"]:
        output.bias = attention["output"]["bias"]
    _write_norm(target.layer_norm, layer[f"{kind}_residual"]["norm"])


def _write_norm(target: Any, norm: Params) -> None:
    target.gamma = norm["scale"]
    if "bias" in norm:
        target.beta = norm["bias"]


def _write_feed_forward(target: Any, block: Params) -> None:
    inner, outer = (block["feed_forward"][name] for name in ("inner", "outer"))
    halves = [target.linear_0]
    if len(inner["weight"]) == 2:
        halves.append(target.linear_0_noact)
    for number, half in enumerate(halves):
        half.weight, half.bias = inner["weight"][number].T, _find_bias(inner)[number]
    target.linear_1.weight, target.linear_1.bias = outer["weight"].T, _find_bias(outer)
    _write_norm(target.layer_norm, block["feed_forward_residual"]["norm"])


def _find_bias(linear: Params) -> np.ndarray:
    """The bias of a product; zeros, which CTranslate2 needs, if it has none."""
    weights = linear["weight"]
    zeros = np.zeros((*weights.shape[:-2], weights.shape[-1]), weights.dtype)
    bias: np.ndarray = linear.get("bias", zeros)
    return bias
