"""Marian (OPUS-MT), M2M-100 (NLLB) and mBART: config, and parameters in both directions.

Sources: `MarianMTModel`, `M2M100ForConditionalGeneration` and `MBartForConditionalGeneration` of
transformers 5.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from t2t.config.fields import ModelConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.interop.hugging_face_folder import Tensors
from t2t.interop.hugging_face_vocabulary import NO_ROW, Rows
from t2t.interop.parameter_map import (
    Link,
    ParameterPath,
    attention,
    barred,
    matrix,
    output_bias,
    stacked,
    table,
    vector,
)
from t2t.interop.strict_config import LARGEST, START_IDS, ForeignConfig, name_depths
from t2t.model.position import encode_sinusoidal

TABLE = "model.shared.weight"
# Other names of the one table, in files that repeat it.
COPIES = (
    "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# Older files of M2M-100 have sinusoids, which `transformers` ignores.
DERIVED = (*COPIES, *_POSITIONS, *(f"{name}s" for name in _POSITIONS))
_OFFSET = 2  # rows of BART's tables of positions before that of the first position
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
_ACTIVATIONS = {
    "swish": "silu",
    "silu": "silu",
    "relu": "relu",
    "gelu_new": "gelu",
    "gelu": "gelu_exact",
}
# Values of fields that a model of the family can have; of other fields it can have one.
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "feed_forward": ("relu", "silu", "gelu", "gelu_exact"),
    "position": (
        *("sinusoidal_halves", "sinusoidal_fairseq", "learned"),
        "sinusoidal",  # `order_as_halves`
    ),
    "output_bias": (False, True),  # `check_barred`
}


def read_m2m100_config(given: ForeignConfig) -> tuple[ModelConfig, int]:
    """Returns the config of an M2M-100 or NLLB model, and the rows of its table.

    Raises:
        SourceError: a field has a value that is not supported.
    """
    given.fill(
        activation_function="relu",
        scale_embedding=True,
        attention_dropout=0.1,
        decoder_start_token_id=2,
    )
    given.require("scale_embedding", True)
    _check_legacy(given, before=True, embedding=False, static=True)
    return _read_config(
        given,
        ("M2M100ForConditionalGeneration", "M2M100Model"),
        position="sinusoidal_fairseq",
        norm_position="pre",
    )


def read_marian_config(given: ForeignConfig) -> tuple[ModelConfig, int]:
    """Returns the config of a Marian model, and the rows of its table.

    Raises:
        SourceError: a field has a value that is not supported.
    """
    given.fill(activation_function="gelu", scale_embedding=False, decoder_start_token_id=58100)
    given.allow("share_encoder_decoder_embeddings", True)
    given.require("decoder_vocab_size", given.get("vocab_size"), None)
    given.require("scale_embedding", True)
    _check_legacy(given, before=False, embedding=False, static=True)
    return _read_config(
        given, ("MarianMTModel", "MarianModel"), position="sinusoidal_halves", output_bias=True
    )


def read_positions(model: ModelConfig, tensors: Tensors) -> ModelConfig:
    """Returns the config of a Marian model with the positions of its file.

    `transformers` has a frozen table for sinusoids, and takes any other that the file has.
    """
    for name in filter(tensors.by_name.__contains__, _POSITIONS):
        found = tensors.read(name)
        wanted = encode_sinusoidal(jnp.arange(len(found)), model.d_model, model.position)
        # They may have been rounded to float16.
        if found.shape != wanted.shape or not np.allclose(found, wanted, atol=2e-3):
            return dataclasses.replace(model, position="learned", max_positions=len(found))
    return model


def read_mbart_config(given: ForeignConfig) -> tuple[ModelConfig, int]:
    """Returns the config of an mBART model, and the rows of its table.

    BART differs by norm_position="post" alone.

    Raises:
        SourceError: a field has a value that is not supported.
    """
    given.fill(activation_function="gelu", scale_embedding=False, max_position_embeddings=1024)
    given.fill(eos_token_id=2)
    _check_legacy(given, before=True, embedding=True, static=False)
    return _read_config(
        given,
        ("MBartForConditionalGeneration", "MBartModel"),
        position="learned",
        max_positions=given.take("max_position_embeddings", int),
        norm_position="pre",
        embedding_norm=True,
        embedding_scale=given.translate("scale_embedding", {True: True, False: False}),
        output_bias=True,
    )


# The functions that read config.json, by its `model_type`.
READERS = {
    "marian": read_marian_config,
    "m2m_100": read_m2m100_config,
    "mbart": read_mbart_config,
}


def _check_legacy(given: ForeignConfig, *, before: bool, embedding: bool, static: bool) -> None:
    """Checks fields of configs before transformers 4.12: each class implements one value."""
    given.allow("normalize_before", before)
    given.allow("add_final_layer_norm", before)
    given.allow("normalize_embedding", embedding)
    given.allow("static_position_embeddings", static)
    given.allow("add_bias_logits", False)


def _read_config(
    given: ForeignConfig, architectures: Sequence[str], **own: Any
) -> tuple[ModelConfig, int]:
    """Reads the fields that all models of the family have; `own` are what one of them has alone."""
    given.require("architectures", *([name] for name in architectures), None)
    given.allow("tie_word_embeddings", True)
    num_heads = given.take("encoder_attention_heads", int)
    d_ff = given.take("encoder_ffn_dim", int)
    given.require("decoder_attention_heads", num_heads)
    given.require("decoder_ffn_dim", d_ff)
    given.ignore("max_position_embeddings", "num_hidden_layers", "extra_pos_embeddings")
    given.fill(dropout=0.1, attention_dropout=0.0, activation_dropout=0.0)
    model = ModelConfig(
        **name_depths(
            *(given.take(f"{side}_layers", int, most=LARGEST) for side in ("encoder", "decoder"))
        ),
        d_model=given.take("d_model", int),
        d_ff=d_ff,
        num_heads=num_heads,
        attention_bias=True,
        norm_epsilon=1e-5,
        feed_forward=given.translate("activation_function", _ACTIVATIONS),
        dropout=given.take("dropout", float),
        attention_dropout=given.take("attention_dropout", float),
        feed_forward_dropout=given.take("activation_dropout", float),
        **own,
    )
    return model, given.take("vocab_size", int, most=LARGEST)


def write_config(model: ModelConfig, rows: Rows) -> dict[str, Any]:
    """Returns the values of config.json, as far as they follow from the model: the way back.

    Args:
        model: config of the run, whose kind of positions says which model of the family it is.
        rows: of the vocabulary that is written.
    """
    vocab_size, start = int(rows.row.max()) + 1, int(rows.row[START_IDS[model.decoder_start]])
    encoder_layers, decoder_layers = model.depth
    names = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    pad = int(rows.row[PAD_ID if rows.row[PAD_ID] != NO_ROW else BOS_ID])
    values = {
        "vocab_size": vocab_size,
        "d_model": model.d_model,
        "encoder_layers": encoder_layers,
        "decoder_layers": decoder_layers,
        **{f"{stack}_attention_heads": model.num_heads for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": model.d_ff for stack in ("encoder", "decoder")},
        "activation_function": names.get(model.feed_forward, "relu"),
        "scale_embedding": model.embedding_scale,
        "tie_word_embeddings": True,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.feed_forward_dropout,
        "pad_token_id": pad,
        "eos_token_id": int(rows.row[EOS_ID]),
        "decoder_start_token_id": start,
    }
    match model.position:
        case "sinusoidal_fairseq":
            kind, name = "m2m_100", "M2M100ForConditionalGeneration"
        case "learned":
            kind, name = "mbart", "MBartForConditionalGeneration"
            values["max_position_embeddings"] = model.max_positions
        case _:
            kind, name = "marian", "MarianMTModel"
            values |= {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": vocab_size}
    return {"model_type": kind, "architectures": [name], **values}


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


def complete(tensors: Tensors) -> Tensors:
    """Gives the one table, and the tensors of a model without its output, their usual names."""
    if not any(name.startswith("model.") for name in tensors.by_name):
        own = ("lm_head.weight", "final_logits_bias")
        tensors = Tensors(
            {name if name in own else f"model.{name}": t for name, t in tensors.by_name.items()}
        )
    return tensors.with_name(TABLE, COPIES)


def list_links(model: ModelConfig, rows: Rows) -> list[Link]:
    """Returns the link of each parameter."""
    links = [table(("tgt_embedding", "table"), TABLE, rows)]
    if model.output_bias:
        path = ("output_bias",)
        has_bias = model.position != "sinusoidal_fairseq"  # all of the family but M2M-100
        name = "final_logits_bias"
        links.append(output_bias(path, name, rows) if has_bias else barred(path, rows))
    for side, stack, depth in zip(("src", "tgt"), ("encoder", "decoder"), model.depth, strict=True):
        if model.position == "learned":
            links.append(_link_positions((f"{side}_position", "table"), stack, model))
        if model.embedding_norm:
            links += _list_norm((), f"model.{stack}.layernorm_embedding", f"{side}_embedding_norm")
        for number in range(depth):
            links += _list_block((stack, number), model, f"model.{stack}.layers.{number}")
        if model.norm_position == "pre":
            links += _list_norm((), f"model.{stack}.layer_norm", f"{stack}_norm")
    return links


def _link_positions(path: ParameterPath, stack: str, model: ModelConfig) -> Link:
    """Learned positions, which are not scaled; in BART after rows that it never reads."""
    offset = _OFFSET if model.embedding_norm else 0
    scale = np.float32(model.d_model**0.5 if model.embedding_scale else 1.0)
    return Link(
        path,
        (f"model.{stack}.embed_positions.weight",),
        lambda tensors: tensors[0][offset:] / scale,
        lambda value: [np.pad(value * scale, ((offset, 0), (0, 0)))],
    )


def _list_block(path: ParameterPath, model: ModelConfig, name: str) -> list[Link]:
    """The links of one layer."""
    heads, names, inner = model.num_heads, _PROJECTIONS, (*path, "feed_forward")
    links = attention((*path, "self_attention"), heads, f"{name}.self_attn", names, biased=True)
    links += _list_norm((*path, "self_residual"), f"{name}.self_attn_layer_norm")
    if path[0] == "decoder":
        cross = (*path, "cross_attention")
        links += attention(cross, heads, f"{name}.encoder_attn", names, biased=True)
        links += _list_norm((*path, "cross_residual"), f"{name}.encoder_attn_layer_norm")
    return [
        *links,
        stacked((*inner, "inner", "weight"), f"{name}.fc1.weight"),
        stacked((*inner, "inner", "bias"), f"{name}.fc1.bias"),
        matrix((*inner, "outer", "weight"), f"{name}.fc2.weight"),
        vector((*inner, "outer", "bias"), f"{name}.fc2.bias"),
        *_list_norm((*path, "feed_forward_residual"), f"{name}.final_layer_norm"),
    ]


def _list_norm(path: ParameterPath, name: str, own: str = "norm") -> list[Link]:
    return [
        vector((*path, own, "scale"), f"{name}.weight"),
        vector((*path, own, "bias"), f"{name}.bias"),
    ]
