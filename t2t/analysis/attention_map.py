"""`AttentionMap`: the attention weights of one pair, as an array that a notebook shows."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from t2t.analysis.head_importance import compute_pair_weights
from t2t.analysis.head_page import make_labels
from t2t.config.fields import ConfigError
from t2t.data.corpus import Pair
from t2t.decoding.attention_weights import HeadWeights
from t2t.decoding.translator import Translator
from t2t.evaluation.plots import check_format, draw_attention, embed_figure, write_figure
from t2t.model.parameters import Params


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionMap:
    """The attention weights of all heads of a stack; np.asarray gives `weights`.

    Attributes:
        weights: in float32; each row sums to 1.
        axes: names of the axes of `weights`.
        queries: the sub-word of each query; of the cross-attention, the one that is predicted
            there, and of the decoder, the one that is read there. · marks the start of a word.
        keys: the sub-word of each key.
    """

    weights: Float[np.ndarray, "N H T S"]
    queries: list[str]
    keys: list[str]
    axes: ClassVar[tuple[str, ...]] = ("layer", "head", "query", "key")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.weights, dtype, copy=copy)

    def __repr__(self) -> str:
        sizes = zip(self.axes, self.weights.shape, strict=True)
        return f"AttentionMap({', '.join(f'{name}={size}' for name, size in sizes)})"

    def _repr_html_(self) -> str:
        return embed_figure(draw_attention(self.weights, self.queries, self.keys), repr(self))

    def plot(self, path: str | Path) -> None:
        """Writes a map of each head; the suffix, .svg, .png or .pdf, is the format."""
        check_format(Path(path))
        write_figure(draw_attention(self.weights, self.queries, self.keys), Path(path))


def map_attention(translator: Translator, params: Params, pair: Pair, stack: str) -> AttentionMap:
    """Computes the weights of a stack of a Transformer under teacher forcing.

    Raises:
        ConfigError: `stack` is none of encoder, decoder and cross.
    """
    if stack not in HeadWeights._fields:
        known = ", ".join(HeadWeights._fields)
        raise ConfigError(f"stack={stack!r} is unknown; use one of {known}")
    [weights] = compute_pair_weights(translator, params, [pair], pad=True)
    labels = make_labels(translator.vocabulary, pair)[stack]
    return AttentionMap(np.asarray(getattr(weights, stack)), labels["queries"], labels["keys"])
