"""Marian (OPUS-MT) and NLLB models of `transformers`: config, and parameters in both directions.

Sources: `MarianMTModel` and `M2M100ForConditionalGeneration` of transformers 5.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from t2t.config.fields import ModelConfig
from t2t.interop.foreign_config import ForeignConfig, name_depths
from t2t.interop.hugging_face_folder import SourceError, Tensors
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.interop.parameter_map import (
    Link,
    ParameterPath,
    attention,
    matrix,
    output_bias,
    stacked,
    table,
    vector,
)
from t2t.model.position import encode_sinusoidal

_TABLE = "model.shared.weight"
# Other names of the one table, in files that repeat it.
_TIED = (
    "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
DERIVED = (*_TIED, *_POSITIONS)
_WITHOUT_EFFECT = (
    "max_position_embeddings", "num_hidden_layers", "init_std", "classif_dropout",
    "classifier_dropout", "encoder_layerdrop", "decoder_layerdrop", "pad_token_id", "eos_token_id",
    "bos_token_id", "extra_pos_embeddings",
)  # fmt: skip
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
_ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu_new": "gelu"}
# Values of fields that a model of the family can have; of other fields it can have one.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "feed_forward": ("relu", "silu", "gelu"),
    "position": ("sinusoidal_halves", "sinusoidal_fairseq", "sinusoidal"),  # `order_as_halves`
}
# Of configs that were written before transformers 4.12, with the only value that it implements.
_LEGACY = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "static_position_embeddings": True,
}


def read_m2m100_config(values: Mapping[str, Any]) -> tuple[ModelConfig, int]:
    """Returns the config of an NLLB model, and the rows of its table.

    Raises:
        SourceError: a field has a value that is not supported, or is not known.
    """
    given = ForeignConfig(values)
    given.require("architectures", ["M2M100ForConditionalGeneration"], ["M2M100Model"], None)
    given.require("decoder_start_token_id", values.get("eos_token_id", 2))
    vocab_size = given.take("vocab_size", int)
    model = _read_config(
        given,
        position="sinusoidal_fairseq",
        norm_position="pre",
        decoder_start="eos",
    )
    given.finish()
    return model, vocab_size


def read_marian_config(values: Mapping[str, Any]) -> tuple[ModelConfig, int]:
    """Returns the config of a Marian model, and the rows of its table.

    Raises:
        SourceError: a field has a value that is not supported, or is not known.
    """
    given = ForeignConfig(values)
    given.require("architectures", ["MarianMTModel"], ["MarianModel"], None)
    given.allow("share_encoder_decoder_embeddings", True)
    vocab_size = given.take("vocab_size", int)
    given.require("decoder_vocab_size", vocab_size, None)
    given.require("decoder_start_token_id", values.get("pad_token_id"))
    for name, value in _LEGACY.items():
        given.allow(name, value)
    model = _read_config(given, position="sinusoidal_halves", output_bias=True)
    given.finish()
    return model, vocab_size


def _read_config(given: ForeignConfig, **own: Any) -> ModelConfig:
    """Reads the fields that all models of the family have; `own` are what one of them has alone."""
    given.allow("tie_word_embeddings", True)
    given.require("scale_embedding", True)
    num_heads = given.take("encoder_attention_heads", int)
    d_ff = given.take("encoder_ffn_dim", int)
    given.require("decoder_attention_heads", num_heads)
    given.require("decoder_ffn_dim", d_ff)
    given.ignore(*_WITHOUT_EFFECT)
    depths = name_depths(given.take("encoder_layers", int), given.take("decoder_layers", int))
    return ModelConfig(
        **depths,
        d_model=given.take("d_model", int),
        d_ff=d_ff,
        num_heads=num_heads,
        attention_bias=True,
        norm_epsilon=1e-5,
        feed_forward=given.translate("activation_function", _ACTIVATIONS),
        dropout=given.take("dropout", float),
        attention_dropout=given.take("attention_dropout", float, 0.0),
        feed_forward_dropout=given.take("activation_dropout", float, 0.0),
        **own,
    )


def write_config(model: ModelConfig, vocab_size: int, pad: int, eos: int) -> dict[str, Any]:
    """Returns the values of config.json, as far as they follow from the model: the way back.

    Args:
        model: config of the run, whose kind of positions says whether it is Marian's or NLLB's.
        vocab_size: rows of the table.
        pad: row of `<pad>`.
        eos: row of `</s>`.
    """
    is_marian = model.position != "sinusoidal_fairseq"
    encoder_layers, decoder_layers = model.depth
    names = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    values = {
        "model_type": "marian" if is_marian else "m2m_100",
        "architectures": ["MarianMTModel" if is_marian else "M2M100ForConditionalGeneration"],
        "vocab_size": vocab_size,
        "d_model": model.d_model,
        "encoder_layers": encoder_layers,
        "decoder_layers": decoder_layers,
        **{f"{stack}_attention_heads": model.num_heads for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": model.d_ff for stack in ("encoder", "decoder")},
        "activation_function": names.get(model.feed_forward, "relu"),
        "scale_embedding": True,
        "tie_word_embeddings": True,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.feed_forward_dropout,
        "pad_token_id": pad,
        "eos_token_id": eos,
        "decoder_start_token_id": pad if is_marian else eos,
    }
    if is_marian:
        values |= {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": vocab_size}
    return values


def order_as_halves(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Reorders the d_model dimensions, so that the paper's sinusoids become Marian's halves.

    Dimensions 2i (sines) come first, then 2i + 1 (cosines). No layer depends on their order.
    """

    def reorder(name: str, tensor: np.ndarray) -> np.ndarray:
        if name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias", "fc1.bias", "logits_bias")):
            return tensor  # of another width
        axis = 0 if name.endswith(("out_proj.weight", "fc2.weight")) else -1
        width = tensor.shape[axis]
        return tensor.take([*range(0, width, 2), *range(1, width, 2)], axis)

    return {name: reorder(name, tensor) for name, tensor in tensors.items()}


def list_links(model: ModelConfig, rows: Rows) -> list[Link]:
    """Returns the link of each parameter."""
    links = [table(("tgt_embedding", "table"), _TABLE, rows)]
    if model.output_bias:
        links.append(output_bias(("output_bias",), "final_logits_bias", rows))
    for stack, depth in zip(("encoder", "decoder"), model.depth, strict=True):
        for number in range(depth):
            links += _list_block((stack, number), model, f"model.{stack}.layers.{number}")
        if model.norm_position == "pre":
            links += _list_norm((), f"model.{stack}.layer_norm", f"{stack}_norm")
    return links


def _list_block(path: ParameterPath, model: ModelConfig, name: str) -> list[Link]:
    """The links of one layer."""
    links = _list_attention((*path, "self_attention"), model, f"{name}.self_attn")
    links += _list_norm((*path, "self_residual"), f"{name}.self_attn_layer_norm")
    if path[0] == "decoder":
        links += _list_attention((*path, "cross_attention"), model, f"{name}.encoder_attn")
        links += _list_norm((*path, "cross_residual"), f"{name}.encoder_attn_layer_norm")
    inner = (*path, "feed_forward", "feed_forward")
    return [
        *links,
        stacked((*inner, "inner"), f"{name}.fc1.weight"),
        stacked((*inner, "inner_bias"), f"{name}.fc1.bias"),
        matrix((*inner, "outer"), f"{name}.fc2.weight"),
        vector((*inner, "outer_bias"), f"{name}.fc2.bias"),
        *_list_norm((*path, "feed_forward", "residual"), f"{name}.final_layer_norm"),
    ]


def _list_attention(path: ParameterPath, model: ModelConfig, name: str) -> list[Link]:
    return attention(path, model.num_heads, name, _PROJECTIONS, biased=True)


def _list_norm(path: ParameterPath, name: str, own: str = "norm") -> list[Link]:
    return [
        vector((*path, own, "scale"), f"{name}.weight"),
        vector((*path, own, "bias"), f"{name}.bias"),
    ]


def check_derived(tensors: Tensors, model: ModelConfig) -> None:
    """Checks the tensors that follow from others: copies of the table, and sinusoids.

    Raises:
        SourceError: one has other values, so it is another model.
    """
    for name in filter(tensors.by_name.__contains__, _TIED):
        if not np.array_equal(tensors.read(name), tensors.read(_TABLE)):
            raise SourceError(
                f"{name} differs from {_TABLE}, but config.json says that they are tied"
            )
    for name in filter(tensors.by_name.__contains__, _POSITIONS):
        found = tensors.read(name)
        wanted = encode_sinusoidal(jnp.arange(len(found)), model.d_model, model.position)
        if not np.allclose(found, wanted, atol=2e-3):  # they may have been rounded to float16
            raise SourceError(f"{name} holds other positions than the sinusoids of such a model")
