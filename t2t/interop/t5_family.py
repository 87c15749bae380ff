"""T5, T5 1.1 (and Flan), mT5, umT5 and MADLAD-400 of `transformers`: config, parameters both ways.

Sources: Raffel et al. 2020; `T5ForConditionalGeneration` of transformers 5. MADLAD-400 is a T5 1.1
with other special symbols.

T5 does not scale its embeddings, but multiplies the decoder's output by d_model^-0.5 where the
output table is that of the embeddings. Here the embeddings are scaled by d_model^0.5, so the
imported table is the original's times d_model^-0.5, which gives both.
"""

from collections.abc import Mapping
from typing import Any

from t2t.config.fields import ModelConfig
from t2t.config.variants import GATED
from t2t.data.batch import EOS_ID, PAD_ID
from t2t.interop.hugging_face_folder import Tensors
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.interop.parameter_map import (
    Link,
    ParameterPath,
    attention,
    barred,
    matrix,
    stacked,
    table,
    vector,
)
from t2t.interop.strict_config import LARGEST, START_IDS, ForeignConfig, name_depths
from t2t.model.position import Relative

TABLE, _OUTPUT = "shared.weight", "lm_head.weight"
_BIAS = "relative_attention_bias.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# Older files have the last one, which `transformers` ignores.
DERIVED = (
    *COPIES,
    _OUTPUT,
    f"decoder.block.0.layer.1.EncDecAttention.{_BIAS}",
)

_FEED_FORWARDS = {
    "relu": "relu",
    "silu": "silu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gated-gelu": "geglu",  # by tanh, unlike "gelu"
    "gated-silu": "swiglu",
}
# Values of fields that a model of the family can have; of other fields it can have one.
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "feed_forward": tuple(_FEED_FORWARDS.values()),
    "tie_embeddings": ("all", "input"),
    "decoder_start": ("bos", "unk"),
    "output_bias": (False, True),  # `check_barred`
}
_ARCHITECTURES = (
    ["T5ForConditionalGeneration"], ["MT5ForConditionalGeneration"],
    ["UMT5ForConditionalGeneration"],
    ["T5WithLMHeadModel"],  # the first name of T5ForConditionalGeneration
    ["T5Model"], ["MT5Model"], ["UMT5Model"],
)  # fmt: skip


def read_t5_config(given: ForeignConfig, *, own_output: bool) -> tuple[ModelConfig, int]:
    """Returns the config of a model, and the rows of its table.

    Args:
        given: config.json.
        own_output: whether the output has a table of its own (`has_own_output`).

    Raises:
        SourceError: a field has a value that is not supported.
    """
    is_t5 = given.get("model_type") == "t5"
    given.fill(
        feed_forward_proj="relu" if is_t5 else "gated-gelu",
        d_kv=64,
        num_decoder_layers=given.get("num_layers"),
        layer_norm_epsilon=1e-6,
        dropout_rate=0.1,
        pad_token_id=0,
    )
    given.require("architectures", *_ARCHITECTURES, None)
    given.allow("relative_attention_num_buckets", Relative.buckets)
    given.allow("relative_attention_max_distance", Relative.max_distance)
    given.allow("tie_word_embeddings", True, False)
    given.allow("scale_decoder_outputs", True, False, None)
    given.ignore("n_positions")
    given.ignore("scalable_attention")  # of umT5, which transformers does not read
    kind = given.translate("feed_forward_proj", {name: name for name in _FEED_FORWARDS})
    activation = kind.rpartition("-")[2]
    given.allow("dense_act_fn", "gelu_new" if kind == "gated-gelu" else activation)
    given.allow("is_gated_act", kind.startswith("gated-"))
    num_heads, depth = given.take("num_heads", int), given.take("num_layers", int, most=LARGEST)
    width, dropout = given.take("d_kv", int), given.take("dropout_rate", float)
    model = ModelConfig(
        **name_depths(depth, given.take("num_decoder_layers", int, most=LARGEST)),
        d_model=given.take("d_model", int),
        d_ff=given.take("d_ff", int),
        num_heads=num_heads,
        d_k=width,
        d_v=width,
        attention_scale=False,
        position="relative_by_layer" if given.get("model_type") == "umt5" else "relative",
        norm="rms",
        norm_epsilon=given.take("layer_norm_epsilon", float),
        norm_position="pre",
        feed_forward=_FEED_FORWARDS[kind],
        feed_forward_bias=False,
        tie_embeddings="input" if own_output or not scales_output(given) else "all",
        dropout=dropout,
        attention_dropout=dropout,
        feed_forward_dropout=dropout,
    )
    return model, given.take("vocab_size", int, most=LARGEST)


def write_config(model: ModelConfig, rows: Rows) -> dict[str, Any]:
    """Returns the values of config.json, as far as they follow from the model: the way back.

    The output is scaled if it has the table of the embeddings, as in T5, else not, as in T5 1.1.
    """
    encoder_layers, decoder_layers = model.depth
    names = {ours: theirs for theirs, ours in _FEED_FORWARDS.items()}
    tied = model.tie_embeddings == "all"
    is_umt5 = model.position == "relative_by_layer"
    start, eos, pad = (
        int(rows.row[id_]) for id_ in (START_IDS[model.decoder_start], EOS_ID, PAD_ID)
    )
    return {
        "model_type": "umt5" if is_umt5 else "t5",
        "architectures": [f"{'UMT5' if is_umt5 else 'T5'}ForConditionalGeneration"],
        "vocab_size": int(rows.row.max()) + 1,
        "d_model": model.d_model,
        "d_kv": model.key_width,
        "d_ff": model.d_ff,
        "num_layers": encoder_layers,
        "num_decoder_layers": decoder_layers,
        "num_heads": model.num_heads,
        "feed_forward_proj": names.get(model.feed_forward, "relu"),
        "layer_norm_epsilon": model.norm_epsilon,
        "dropout_rate": model.dropout,
        "relative_attention_num_buckets": Relative.buckets,
        "relative_attention_max_distance": Relative.max_distance,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
        # T5 begins with its padding, whose row is that of BOS here; MADLAD-400 does not.
        "pad_token_id": start if model.decoder_start == "bos" else pad,
        "eos_token_id": eos,
        "decoder_start_token_id": start,
    }


def complete(tensors: Tensors, given: ForeignConfig) -> Tensors:
    """Gives the shared table its usual name; config.json says whether the output is another."""
    tied = given.get("tie_word_embeddings") is not False
    return tensors.with_name(TABLE, (*COPIES, _OUTPUT) if tied else COPIES)


def has_own_output(tensors: Tensors) -> bool:
    """Returns whether the output has a table of its own, and not a copy of the other one."""
    if _OUTPUT not in tensors.by_name or TABLE not in tensors.by_name:
        return _OUTPUT in tensors.by_name
    return not tensors.same(_OUTPUT, TABLE)


def lacks_output(tensors: Tensors, given: ForeignConfig) -> bool:
    """Returns whether config.json has a table of the output that the weights do not have."""
    return given.get("tie_word_embeddings") is False and _OUTPUT not in tensors.by_name


def scales_output(given: ForeignConfig) -> bool:
    """Returns whether the decoder's output is multiplied by d_model^-0.5: in T5, not in mT5."""
    scales, is_tied = given.get("scale_decoder_outputs"), given.get("tie_word_embeddings")
    if given.get("model_type") == "mt5":
        return False
    return is_tied is not False if scales is None else bool(scales)


def list_links(model: ModelConfig, rows: Rows, *, own_output: bool, scaled: bool) -> list[Link]:
    """Returns the link of each parameter.

    Args:
        model: config of the run.
        rows: of the vocabulary.
        own_output: whether the output has a table of its own.
        scaled: whether the original scales the decoder's output.
    """
    scale = model.d_model**-0.5
    links = [table(("tgt_embedding", "table"), TABLE, rows, scale)]
    if model.tie_embeddings == "input":
        name = _OUTPUT if own_output else TABLE
        links.append(table(("own_output_embedding", "table"), name, rows, scale if scaled else 1.0))
    if model.output_bias:
        links.append(barred(("output_bias",), rows))
    for side, stack in (("src", "encoder"), ("tgt", "decoder")):
        if model.position == "relative":
            position = f"{stack}.block.0.layer.0.SelfAttention.{_BIAS}"
            links.append(vector((f"{side}_position", "table"), position))
        links.append(vector((f"{stack}_norm", "scale"), f"{stack}.final_layer_norm.weight"))
        for number in range(model.depth[stack == "decoder"]):
            links += _list_block((stack, number), model, f"{stack}.block.{number}.layer")
    return links


def _list_block(path: ParameterPath, model: ModelConfig, name: str) -> list[Link]:
    """The links of one layer."""
    heads = model.num_heads
    links = attention(
        (*path, "self_attention"), heads, f"{name}.0.SelfAttention", "qkvo", biased=False
    )
    links.append(vector((*path, "self_residual", "norm", "scale"), f"{name}.0.layer_norm.weight"))
    if model.position == "relative_by_layer":
        links.append(vector((*path, "own_position", "table"), f"{name}.0.SelfAttention.{_BIAS}"))
    last = 1
    if path[0] == "decoder":
        last, cross = 2, (*path, "cross_attention")
        links += attention(cross, heads, f"{name}.1.EncDecAttention", "qkvo", biased=False)
        links.append(
            vector((*path, "cross_residual", "norm", "scale"), f"{name}.1.layer_norm.weight")
        )
    block, dense = (*path, "feed_forward"), f"{name}.{last}.DenseReluDense"
    inner = ("wi_0", "wi_1") if model.feed_forward in GATED else ("wi",)
    weights = (f"{dense}.{each}.weight" for each in inner)
    return [
        *links,
        stacked((*block, "inner", "weight"), *weights),
        matrix((*block, "outer", "weight"), f"{dense}.wo.weight"),
        vector(
            (*path, "feed_forward_residual", "norm", "scale"), f"{name}.{last}.layer_norm.weight"
        ),
    ]
