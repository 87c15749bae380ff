"""Statistics of a training text, by which a recipe fits itself: pairs, words, characters.

A sample of at most about 20,000 pairs stands for a larger text.
"""

import dataclasses
import itertools
import logging
import math
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from t2t.config.fields import DataConfig, TokenizerConfig
from t2t.config.languages import is_text_without_spaces
from t2t.data.corpus import Corpus, DataError, ListCorpus, Pair, sample_pairs
from t2t.data.corpus_sources import open_training
from t2t.data.directions import list_tags
from t2t.data.tokenizer import make_normalizer, open_given, split_words, train_vocabulary

_log = logging.getLogger(__name__)

_SAMPLED = 20_000  # pairs
_FEWEST = 100  # pairs from which a recipe can be fitted
_MOST_EQUAL = 0.95  # share of pairs with equal sides, beyond which there is nothing to translate
_NOTICEABLE = 0.01  # share of pairs that repeat another, or have equal sides
_WORD = re.compile(r"[^\W\d_]{2,}|\d{2,}")  # BPE merges each into one piece; never across kinds


@dataclasses.dataclass(frozen=True)
class TextFacts:
    """The size of a text, estimated from a sample.

    With one vocabulary for each side the figures are those of the side that has more words,
    `symbols` and `forms` those of the side that has fewer.
    """

    pairs: int  # of an epoch, so repeated as often as the weights of their corpora say
    words: int  # two characters are a word in text without spaces
    characters: int  # distinct ones
    symbols: int  # distinct ones: what stands between spaces
    forms: int  # distinct words of two letters or digits and more: a limit for merges
    tags: int  # of directions
    sample: tuple[Pair, ...]

    def count_subwords(
        self, data: DataConfig, tokenizer: TokenizerConfig
    ) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], int]:
        """Lengths of the sample's sources and targets, and the size of the target's vocabulary.

        Without `tokenizer.path` a vocabulary is trained on the sample, and discarded.

        Raises:
            ConfigError: the sample cannot fill a vocabulary of this size.
        """
        if tokenizer.path:
            found = open_given(tokenizer.path)
        else:
            corpus = ListCorpus("a sample of the text", list(self.sample))
            with tempfile.TemporaryDirectory() as folder:
                found = train_vocabulary([corpus], tokenizer, Path(folder), list_tags(data))
        src, tgt = (
            np.array([*map(len, side.encode(list(sentences)))])
            for side, sentences in zip(
                (found.src, found.tgt), zip(*self.sample, strict=True), strict=True
            )
        )
        return src, tgt, found.tgt.vocab_size


def measure_text(data: DataConfig, tokenizer: TokenizerConfig) -> TextFacts:
    """Measures the training text, and warns if many of its pairs are copies.

    Raises:
        DataError: the text is missing or too small, or both sides are the same.
    """
    corpora = open_training(data, tokenizer)
    sample = _draw_sample(corpora)
    total = sum(map(len, corpora)) if sample else 0  # else one side is empty in all of them
    has_pairs = len(corpora[0].sides) == 2
    if total < _FEWEST:
        raise DataError(
            f"{total} {'sentence pairs' if has_pairs else 'texts'} are too few to train a model "
            f"on; bring {_FEWEST} or more, or fine-tune a model: "
            "--config=configs/fine_tune.py:RUN"
        )
    if has_pairs:
        _check_copies(sample, data)
    rules = make_normalizer(tokenizer.lowercase)
    sides = [
        [*itertools.chain.from_iterable(split_words(rules, sentences))]
        for sentences in list(zip(*sample, strict=True))[-len(corpora[0].sides) :]
    ]
    if tokenizer.shared:
        sides = [[*itertools.chain.from_iterable(sides)]]
    pairs = round(sum(len(corpus) * corpus.weight for corpus in corpora))
    return TextFacts(
        pairs=pairs,
        words=round(max(map(_count_words, sides)) * pairs / len(sample)),
        characters=max(len(set("".join(words))) for words in sides),
        symbols=min(len(set(words)) for words in sides),
        forms=min(len(set(_WORD.findall(" ".join(words)))) for words in sides),
        tags=len(list_tags(data)),
        sample=tuple(sample),
    )


def _check_copies(sample: Sequence[Pair], data: DataConfig) -> None:
    equal = sum(src.strip() == tgt.strip() for src, tgt in sample) / len(sample)
    if equal > _MOST_EQUAL:
        raise DataError(
            f"source and target are the same in {equal:.0%} of the sentence pairs; name the texts "
            "of two languages, by data.train_src and data.train_tgt"
        )
    shares = {"duplicates": 1 - len(set(sample)) / len(sample), "identical": equal}
    meanings = {"duplicates": "repeat another one", "identical": "have two equal sides"}
    for name, share in shares.items():
        if share > _NOTICEABLE and name not in data.filters:
            _log.warning(
                "%.1f%% of the pairs %s; --config.data.filters=%s leaves them out",
                100 * share, meanings[name], name,
            )  # fmt: skip


def _count_words(words: Sequence[str]) -> int:
    text = " ".join(words)
    return (len(text) - len(words)) // 2 if is_text_without_spaces(text) else len(words)


def _draw_sample(corpora: Sequence[Corpus]) -> list[Pair]:
    """Blocks of pairs at equal distances, over all corpora; without empty sentences."""
    stride = max(1, math.ceil(sum(map(len, corpora)) / _SAMPLED))
    return [
        pair
        for corpus, pair in sample_pairs(corpora, stride)
        if all(pair[side].strip() for side in corpus.sides)
    ]
