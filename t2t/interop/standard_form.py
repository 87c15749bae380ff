"""Models with `model.parametrization="mup"` as standard ones that compute the same, for exports.

Other engines know no factors (`t2t/model/parametrization.py`), so they go into the parameters.
"""

import dataclasses

import jax
import numpy as np

from t2t.config.fields import ConfigError, ModelConfig
from t2t.model.parameters import Params
from t2t.model.parametrization import find_branch_factor, find_logit_factor, find_query_factor


def drop_factors(config: ModelConfig) -> ModelConfig:
    """Returns the config of the standard model.

    Raises:
        ConfigError: there is no norm that could take the factor of the logits.
    """
    if config.parametrization == "standard":
        return config
    if config.norm == "none":
        raise ConfigError(
            "model.parametrization='mup' has a factor of the logits, which an export puts into the "
            "last norm, but model.norm='none'; train with a norm, or with 'standard'"
        )
    return dataclasses.replace(
        config, parametrization="standard", base_width=None, base_layers=None, base_d_k=None
    )


def fold_factors(config: ModelConfig, params: Params) -> Params:
    """Returns the parameters with which `drop_factors(config)` computes the same as `config`.

    The model is an encoder-decoder. A tied table has one factor, that of the embeddings, so the
    last norm takes what the logits lack.
    """
    if config.parametrization == "standard":
        return params
    params = jax.tree.map(np.array, params)  # copies, which are changed in place
    of_table = (config.reference_width / config.d_model) ** (0.5 * config.embedding_scale)
    tables = ["tgt_embedding", "src_embedding"]
    tables += ["tgt_position", "src_position"] if config.position == "learned" else []
    for name in tables:
        _scale(params.get(name, {}), of_table)
    of_logits = find_logit_factor(config)
    if config.tie_embeddings in ("all", "decoder"):
        of_logits /= of_table
    width = config.num_heads // config.kv_heads * config.key_width
    encoder, decoder = params["encoder"].values(), [*params["decoder"].values()]
    for block in (*encoder, *decoder):
        _fold_block(block, width, find_query_factor(config), find_branch_factor(config))
    last = decoder[-1].get("feed_forward_residual", decoder[-1]["cross_residual"])
    _scale(params["decoder_norm"] if config.norm_position == "pre" else last["norm"], of_logits)
    return params


def _fold_block(block: Params, query_width: int, of_query: float, of_branch: float) -> None:
    """Scales queries, and what each sub-layer returns."""
    for name in ("self_attention", "cross_attention"):
        if attention := block.get(name):
            joined = attention.get("query", attention.get("query_key_value"))
            for each in joined.values():  # the weight, and a bias if there is one
                each[..., :query_width] *= of_query
            _scale(attention["output"], of_branch)
    if "feed_forward" in block:
        _scale(block["feed_forward"]["outer"], of_branch)


def _scale(layer: Params, factor: float) -> None:
    for name in layer:
        layer[name] *= factor
