"""Small models in every variant, with parameters that no initialisation would give."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2t.config.fields import ModelConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.model.parameters import Params
from t2t.ops.build_model import abstract_model
from t2t.ops.select_kernels import choose_policy

Structure: TypeAlias = nnx.GraphDef[Any]

VOCAB_SIZE = 12
SIZES = (VOCAB_SIZE, VOCAB_SIZE)  # source, target

SMALL = ModelConfig(
    num_layers=1, d_model=16, d_ff=24, num_heads=4, max_positions=16, dtype="float32"
)

POLICY = choose_policy(SMALL)

# What the paper varies, and its successors: each differs from SMALL in one way. Those with a
# second field need it, to be valid or to have an effect.
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "num_layers": {"num_layers": 2},
    "encoder_layers": {"encoder_layers": 2},
    "decoder_layers": {"decoder_layers": 2},
    "d_model": {"d_model": 24},
    "d_ff": {"d_ff": 16},
    "one head": {"num_heads": 1},
    "grouped key/value heads": {"num_kv_heads": 2},
    "one key/value head": {"num_kv_heads": 1},
    "d_k": {"d_k": 6},
    "d_v": {"d_v": 6},
    "no scaling": {"attention_scale": False},
    "attention_bias": {"attention_bias": True},
    "sinusoids in halves": {"position": "sinusoidal_halves"},
    "fairseq's sinusoids": {"position": "sinusoidal_fairseq"},
    "learned positions": {"position": "learned"},
    "rotary positions": {"position": "rotary"},
    "relative positions": {"position": "relative"},
    "relative positions, one key/value head": {"position": "relative", "num_kv_heads": 1},
    "relative positions by layer": {
        "position": "relative_by_layer",
        "num_layers": 2,
        "scan_layers": True,
    },
    "ALiBi": {"position": "alibi"},
    "no positions": {"position": "none"},
    "max_positions": {"position": "learned", "max_positions": 20},
    "RMSNorm": {"norm": "rms"},
    "no norm": {"norm": "none"},
    "norm_epsilon": {"norm_epsilon": 0.1},
    "pre-norm": {"norm_position": "pre"},
    "no residual": {"residual": False},
    "GELU": {"feed_forward": "gelu"},
    "exact GELU": {"feed_forward": "gelu_exact"},
    "SiLU": {"feed_forward": "silu"},
    "SwiGLU": {"feed_forward": "swiglu"},
    "GeGLU": {"feed_forward": "geglu"},
    "norm of the embeddings": {"embedding_norm": True},
    "norm of the embeddings, decoder only": {"embedding_norm": True, "kind": "decoder_only"},
    "embeddings as they are": {"embedding_scale": False, "position": "learned"},
    "no biases in the feed-forward": {"feed_forward_bias": False},
    "no feed-forward": {"feed_forward": "none"},
    "mixture of experts": {
        "feed_forward": "moe",
        "num_experts": 4,
        "experts_per_token": 2,
        "load_balance": 0.5,
        "encoder_layers": 2,
    },
    "one expert per token": {
        "feed_forward": "moe",
        "num_experts": 6,
        "experts_per_token": 1,
        "kind": "decoder_only",
        "scan_layers": True,
    },
    "source table of its own": {"tie_embeddings": "decoder"},
    "output table of its own": {"tie_embeddings": "input"},
    "no tables shared": {"tie_embeddings": "none"},
    "output_bias": {"output_bias": True},
    "dropout": {"dropout": 0.3},
    "attention_dropout": {"attention_dropout": 0.3},
    "feed_forward_dropout": {"feed_forward_dropout": 0.3},
    "scanned layers": {"scan_layers": True, "num_layers": 2},
    "decoder only": {"kind": "decoder_only"},
    "decoder only, rotary positions": {"kind": "decoder_only", "position": "rotary"},
    "decoder only, relative positions": {
        "kind": "decoder_only",
        "position": "relative",
        "decoder_layers": 2,
        "scan_layers": True,
        "tie_embeddings": "none",
        "num_kv_heads": 2,
    },
    "decoder only, no prefix": {"kind": "decoder_only", "position": "relative", "prefix": False},
    "decoder only, learned positions": {"kind": "decoder_only", "position": "learned"},
    "bfloat16": {"dtype": "bfloat16"},
    "mixed": {"dtype": "mixed"},
    "LSTM": {"kind": "rnn", "rnn_cell": "lstm"},
    "deep GRU": {
        "kind": "rnn",
        "encoder_layers": 2,
        "decoder_layers": 3,
        "tie_embeddings": "none",
    },
    "deep LSTM, nothing shared": {
        "kind": "rnn",
        "rnn_cell": "lstm",
        "num_layers": 2,
        "residual": False,
        "tie_embeddings": "none",
    },
    "LSTM in bfloat16": {"kind": "rnn", "rnn_cell": "lstm", "dtype": "bfloat16"},
    "mup": {
        "parametrization": "mup",
        "base_width": 8,
        "norm_position": "pre",
        "num_layers": 2,
        "base_layers": 1,
        "tie_embeddings": "decoder",
    },
    "mup, more heads": {"parametrization": "mup", "base_width": 8, "base_d_k": 3},
    "today's": {
        "position": "rotary",
        "num_kv_heads": 2,
        "norm": "rms",
        "norm_position": "pre",
        "feed_forward": "swiglu",
    },
}

# Two rows of unequal length. No token occurs twice in a target, so that each has its own gradient.
SRC = jnp.array([[5, 6, 7, 8, EOS_ID], [9, 4, EOS_ID, PAD_ID, PAD_ID]])
TGT_IN = jnp.array([[BOS_ID, 5, 9, 10], [BOS_ID, 11, 4, PAD_ID]])
TGT_OUT = jnp.array([[5, 9, 10, EOS_ID], [11, 4, EOS_ID, PAD_ID]])


def combine_variants(names: Iterable[str]) -> list[dict[str, Any]]:
    """The changes of several variants at once, for tests that would fail for any of them."""
    combined: list[dict[str, Any]] = []
    for changes in map(VARIANTS.__getitem__, names):
        wanted = {"kind": "transformer"} | changes
        if wanted["kind"] == "rnn":
            wanted.setdefault("rnn_cell", "gru")
        if "num_heads" in changes:  # which those of keys and values have to divide
            wanted |= {"num_kv_heads": changes["num_heads"]}
        for combination in combined:
            if all(combination.get(field, value) == value for field, value in wanted.items()):
                combination.update(wanted)
                break
        else:
            combined.append(wanted)
    return combined


def name_fields(changes: dict[str, Any]) -> str:
    return ", ".join(f"{field} {value}" for field, value in changes.items())


# Several variants in one model each, in float32.
COMBINED = {
    name_fields(changes): changes
    for changes in combine_variants(
        name for name, changes in VARIANTS.items() if "dtype" not in changes
    )
}


def vary(name: str) -> ModelConfig:
    """The config of one of VARIANTS or COMBINED."""
    return dataclasses.replace(SMALL, **(VARIANTS | COMBINED)[name])


def draw(*shape: int, seed: int = 0) -> jax.Array:
    """Draws standard normal numbers in float32."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@functools.cache
def draw_model(name: str) -> tuple[Structure, Params]:
    """The variant's structure, and parameters drawn so that no bias is zero and no scale is one."""
    return draw_params(vary(name))


def draw_params(config: ModelConfig) -> tuple[Structure, Params]:
    structure, shapes = abstract_model(config, *SIZES)
    random = np.random.default_rng(0)

    def draw_leaf(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        noise = 0.3 * random.standard_normal(leaf.shape)
        is_scale = path[-1] == jax.tree_util.DictKey("scale")
        return jnp.asarray(noise + is_scale, leaf.dtype)

    return structure, jax.tree.map_with_path(draw_leaf, shapes)
