"""What a recipe that fits itself to a text knows of it: pairs, words, characters, sub-words.

A sample of 20,000 pairs stands for a larger text.
"""

import dataclasses
import itertools
import math
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from t2t.config.data_rules import data_problems
from t2t.config.fields import ConfigError, DataConfig, TokenizerConfig
from t2t.config.languages import is_text_without_spaces
from t2t.data.corpus import Corpus, DataError, ListCorpus, Pair
from t2t.data.corpus_sources import open_training
from t2t.data.parts import list_tags
from t2t.data.tokenizer import open_given, train_vocabulary

_SAMPLED, _BLOCK = 20_000, 100  # pairs of the sample, and those read together
_FEWEST = 100  # pairs from which a recipe can be fitted
_MOST_EQUAL = 0.5  # share of pairs with equal sides, beyond which there is nothing to translate


@dataclasses.dataclass(frozen=True)
class TextFacts:
    """The size of a parallel text, estimated from a sample."""

    pairs: int  # of an epoch, so repeated as often as the weights of their corpora say
    words: int  # of both sides; two characters are a word where none are marked by spaces
    characters: int  # distinct ones, of the sample
    symbols: int  # distinct ones of the sample: what stands between spaces
    forms: int  # distinct words of letters and digits, of a vocabulary; BPE makes as many merges
    repeated: float  # share of the sample's pairs that are equal to an earlier one
    equal: float  # share whose sides are equal
    sample: tuple[Pair, ...]

    def count_subwords(
        self, data: DataConfig, tokenizer: TokenizerConfig
    ) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
        """Lengths of the sample's sources and targets with a vocabulary of these settings.

        Without `tokenizer.path` one is trained on the sample, and discarded.
        """
        if tokenizer.path:
            found = open_given(tokenizer.path)
        else:
            corpus = ListCorpus("a sample of the text", list(self.sample))
            with tempfile.TemporaryDirectory() as folder:
                found = train_vocabulary([corpus], tokenizer, Path(folder), list_tags(data))
        sides = zip(*self.sample, strict=True)
        src, tgt = (
            np.array([*map(len, side.encode(list(sentences)))])
            for side, sentences in zip((found.src, found.tgt), sides, strict=True)
        )
        return src, tgt


def measure_text(data: DataConfig, tokenizer: TokenizerConfig) -> TextFacts:
    """Measures the training text.

    Raises:
        ConfigError: `data` does not say which text that is.
        DataError: the text is missing or too small, or both sides are the same.
    """
    tokens = 64 * data.rows_multiple
    closed = dataclasses.replace(
        data, max_length=64, packed_length=64, length_multiple=1, batch_tokens=tokens
    )
    if problems := data_problems(closed):
        raise ConfigError("\n".join(problems))
    corpora = open_training(data, tokenizer)
    sample, total = _draw_sample(corpora), sum(map(len, corpora))
    if total < _FEWEST or not sample:
        raise DataError(
            f"{total if sample else 0} sentence pairs are too few to train a model on; bring "
            f"{_FEWEST} or more, or fine-tune a model: --config=configs/fine_tune.py:RUN"
        )
    equal = sum(src.strip() == tgt.strip() for src, tgt in sample) / len(sample)
    repeated = 1 - len(set(sample)) / len(sample)
    if equal > _MOST_EQUAL:
        raise DataError(
            f"source and target are the same in {equal:.0%} of the sentence pairs; name the texts "
            "of two languages, by data.train_src and data.train_tgt"
        )
    pairs = round(sum(len(corpus) * corpus.weight for corpus in corpora))
    words, forms = 0, list[set[str]]()
    for side in zip(*sample, strict=True):
        text = "\n".join(side)
        parts = text.split()
        words += sum(map(len, parts)) // 2 if is_text_without_spaces(text) else len(parts)
        forms.append(set(re.findall(r"\w+", text.lower() if tokenizer.lowercase else text)))
    everything = " ".join(itertools.chain.from_iterable(sample))
    own = [set.union(*forms)] if tokenizer.shared else forms
    words = round(words * pairs / len(sample))
    return TextFacts(
        pairs=pairs,
        words=words,
        characters=len(set(everything)),
        symbols=len(set(everything.split())),
        forms=min(map(len, own)),
        repeated=repeated,
        equal=equal,
        sample=tuple(sample),
    )


def _draw_sample(corpora: Sequence[Corpus]) -> list[Pair]:
    """Blocks of pairs at equal distances, over all corpora; without empty sentences."""
    stride = max(1, math.ceil(sum(map(len, corpora)) / _SAMPLED)) * _BLOCK
    return [
        pair
        for corpus in corpora
        for start in range(0, len(corpus), stride)
        for pair in corpus.read(start, min(start + _BLOCK, len(corpus)))
        if all(pair[side].strip() for side in corpus.sides)
    ]
