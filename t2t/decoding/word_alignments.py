"""Word alignments from cross-attention, by one pass under teacher forcing after the search.

A target word is aligned to the source word to which its sub-words attend most: in one decoder
layer, by the mean of the heads, summed over the sub-words of both words. EOS is no word. Every
target word has one link, if the source has words.
"""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t2t.config.fields import Config, ConfigError
from t2t.data.batch import batch_pairs, find_limit
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.decoding.attention_weights import capture_weights
from t2t.model.parameters import Params
from t2t.ops.build_model import abstract_model

Links = set[tuple[int, int]]  # numbers of a source word and of a target word, from 0


class WordAligner:
    """Aligns the words of sentences and their translations, on one device."""

    def __init__(self, config: Config, vocabulary: Vocabulary, layer: int = 0):
        """`layer` counts the decoder's layers, from 1; 0: the last but one (Garg et al. 2019).

        Raises:
            ConfigError: the model is no Transformer, or has no such layer.
        """
        model = config.model
        if model.kind != "transformer":
            raise ConfigError(
                "alignments need the cross-attention of model.kind='transformer', but "
                f"model.kind={model.kind!r}"
            )
        depth = model.depth[1]
        if not 0 <= layer <= depth:
            raise ConfigError(f"--alignment_layer={layer} does not exist; use 1 to {depth}")
        self.layer = layer or max(depth - 1, 1)
        self._vocabulary, self._batch_size = vocabulary, config.decoding.batch_size
        self._limit = find_limit(config, model.position_limit)
        self.num_too_long = 0  # pairs without links, of all calls
        structure, _ = abstract_model(model, *vocabulary.sizes)

        def weigh(
            params: Params, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"]
        ) -> Float[Array, "B T S"]:
            cross = capture_weights(structure, params, src, tgt_in).cross
            return jnp.mean(cross[self.layer - 1], axis=1)

        self._weigh = jax.jit(weigh)

    def align(self, params: Params, pairs: Sequence[tuple[str, str]]) -> list[Links]:
        """Returns the links of each pair; none for a pair that is too long for the model."""
        encoded = self._vocabulary.encode_pairs(pairs)
        links: list[Links] = [set() for _ in pairs]
        self.num_too_long += len(pairs)
        for chosen, (padded, tgt_in, _) in batch_pairs(encoded, self._limit, self._batch_size):
            self.num_too_long -= len(chosen)
            weights = np.asarray(self._weigh(params, padded, tgt_in))
            for n, own in zip(chosen, weights, strict=False):
                src, tgt = encoded[n]
                tag = self._vocabulary.src.tag_ids if len(src) > 1 else ()  # is no word
                words = [-1 for _ in tag]
                words += number_words(self._vocabulary.src, src[len(tag) : -1])
                tgt_words = number_words(self._vocabulary.tgt, tgt[:-1])
                links[n] = link_words(own, words, tgt_words)
        return links


def number_words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The number of the word to which each sub-word belongs; -1 for a space alone.

    Words are what stands between spaces.
    """
    numbers, word, inside = [], -1, False
    for token, piece in zip(ids, tokenizer.pieces(ids), strict=True):
        is_inside = tokenizer.is_byte(token) and piece != "<0x20>"
        text = "x" if is_inside else piece.replace("▁", " ").replace("<0x20>", " ")
        if tokenizer.is_control(token):  # the tag of a direction is no word
            text = " "
        own = -1
        for character in text:
            is_space = character == " "
            word += not is_space and not inside
            inside = not is_space
            if inside and own < 0:
                own = word
        numbers.append(own)
    return numbers


def link_words(
    weights: Float[np.ndarray, "T S"], src_words: Sequence[int], tgt_words: Sequence[int]
) -> Links:
    """Links each target word to the source word with the largest sum of weights."""
    totals = np.zeros((max(tgt_words, default=-1) + 1, max(src_words, default=-1) + 1))
    for t, tgt_word in enumerate(tgt_words):
        for s, src_word in enumerate(src_words):
            if src_word >= 0 and tgt_word >= 0:
                totals[tgt_word, src_word] += weights[t, s]
    return {(int(row.argmax()), t) for t, row in enumerate(totals) if len(row)}


def format_links(links: Iterable[tuple[int, int]]) -> str:
    """Formats links as Pharaoh and fast_align do: "0-0 1-2", source word first."""
    return " ".join(f"{s}-{t}" for s, t in sorted(links))
