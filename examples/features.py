"""Features without order, beside the letters of a word (Wu, Cotterell and Hulden 2021).

Features are the symbols in brackets, such as [V] and [PST]. All features have position 0; other
tokens count from 1. One trained vector is added to each feature, and another one to each other
token. So the order of the features does not change the output.

python -m t2t.train --config=configs/tasks/inflection.py:FOLDER ... --config.model.kind=features
    --config.plugins=examples.features
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config import ConfigError, ModelConfig, PluginOptions, option
from t2t.config.variants import register
from t2t.data.batch import PAD_ID
from t2t.model.compute_policy import Policy
from t2t.model.masks import positions_in_segments, source_mask, source_segment_ids
from t2t.model.stack import Auxiliary
from t2t.model.transformer import Transformer
from t2t.runtime.mesh import spec


@register("plugin", "features")
@dataclasses.dataclass
class Options(PluginOptions):
    """There is nothing to choose: a run finds the ids in its vocabulary."""

    ids: tuple[int, ...] = option((), "ids of features in the source, found when a run starts")

    def settle(self, src: Sequence[str], tgt: Sequence[str]) -> "Options":
        """Finds the pieces in brackets; "▁" stands for the space before a symbol."""
        del tgt
        texts = [piece.removeprefix("▁") for piece in src]
        ids = [n for n, text in enumerate(texts) if len(text) > 2 and text[0] + text[-1] == "[]"]
        if not ids:
            raise ConfigError(
                "examples.features: the vocabulary of the source has no feature, a symbol in "
                "brackets such as [PST]; leave it out of plugins and model.kind, or take "
                "data.source=inflection"
            )
        return dataclasses.replace(self, ids=tuple(ids))


@register("model.kind", "features")
class FeatureTransformer(Transformer):
    """A Transformer whose encoder treats features and other tokens differently."""

    def __init__(
        self, config: ModelConfig, policy: Policy, src_size: int, tgt_size: int, key: jax.Array
    ):
        super().__init__(config, policy, src_size, tgt_size, key)
        options: Options = config.plugin["features"]
        self.feature_ids = options.ids
        # Drawn and scaled as embeddings: the first row of letters, the second of features.
        width, shape = config.reference_width, (2, config.d_model)
        self.mark_scale = math.sqrt(width) if config.embedding_scale else 1.0
        own_key = jax.random.fold_in(key, 1)
        entries = width**-0.5 * jax.random.normal(
            own_key, shape, out_sharding=spec(None, "d_model")
        )
        self.marks = nnx.Param(entries, kind="table")

    def encode(
        self, src: Int[Array, "B S"], key: jax.Array | None = None
    ) -> tuple[Float[Array, "B S D"], Auxiliary]:
        """Returns the encoder's output and auxiliary losses."""
        self.src_position.check_length(1 + src.shape[1])  # since letters count from 1
        is_feature = jnp.any(src[..., None] == jnp.array(self.feature_ids, jnp.int32), axis=-1)
        segments = source_segment_ids(src)
        positions = count_letters(is_feature, positions_in_segments(segments) == 0)
        rows = spec("batch", None, None)
        marks = self.marks[...].at[is_feature.astype(jnp.int32)].get(out_sharding=rows)
        embedded = self.embed_src(src)
        return self.encoder_stack(
            embedded + (self.mark_scale * marks).astype(embedded.dtype),
            positions,
            source_mask(segments, src),
            key,
            in_attention=positions,  # for encodings that are not added, such as relative ones
            is_token=src != PAD_ID,
        )


def count_letters(
    is_feature: Bool[Array, "B S"], is_first: Bool[Array, "B S"]
) -> Int[Array, "B S"]:
    """Returns 0 for a feature, and n for the n-th other token of its segment."""
    is_letter = 1 - is_feature.astype(jnp.int32)
    seen = jnp.cumsum(is_letter, axis=1)
    before = jax.lax.cummax(jnp.where(is_first, seen - is_letter, 0), axis=1)
    return jnp.where(is_feature, 0, seen - before)
