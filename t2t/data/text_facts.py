"""Statistics of a training text, by which a recipe fits itself: pairs, words, characters.

A sample of at most about 20,000 pairs stands for a larger text. Each of its pairs counts as often
as an epoch uses what it stands for, and pairs with an empty side do not count.
"""

import copy
import dataclasses
import functools
import itertools
import logging
import math
import re
import tempfile
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from t2t.config.fields import DataConfig, TokenizerConfig
from t2t.config.stages import read_stages
from t2t.data.batch_plan import find_dropped
from t2t.data.corpus import Corpus, DataError, ListCorpus, Pair, sample_pairs
from t2t.data.corpus_sources import open_training
from t2t.data.counted_vocabulary import count_types, split_words
from t2t.data.directions import list_tags
from t2t.data.sentences import UNSPACED, clean_sentence
from t2t.data.tokenizer import make_normalizer, open_given, train_vocabulary

_log = logging.getLogger(__name__)

_SAMPLED = 20_000  # pairs
_MOST_READ = 100_000  # pairs for a vocabulary of the sample, which are read as weights say
_FEWEST = 100  # pairs from which a recipe can be fitted
_MOST_EQUAL = 0.95  # share of pairs with equal sides, beyond which there is nothing to translate
_NOTICEABLE = 0.01  # share of pairs that repeat another, or have equal sides
# Two characters or more of one kind, in a word spelled by `_find_kind`: BPE merges them into one
# piece, but never letters with digits or punctuation.
_FORM = re.compile(r"([A-Z])(?:\1|m)+")
# Scripts that write no spaces between words, with their characters a word: about 2 in Chinese and
# Japanese, and 5 in Thai, Lao, Tibetan, Burmese, Khmer, Javanese and their relatives. What stands
# between spaces is a word if it has less than two words have, as in text that was segmented.
_UNSPACED = (
    (re.compile(f"[{UNSPACED}]"), 2),
    (
        re.compile(
            "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff"
            "\uaa60-\uaadf]"
        ),
        5,
    ),
)


class Subwords(NamedTuple):
    """Sub-words of the sample's sentences, EOS included, and the size of the vocabulary."""

    src: Int[np.ndarray, "n"]
    tgt: Int[np.ndarray, "n"]
    vocab_size: int


@dataclasses.dataclass(frozen=True)
class TextFacts:
    """The size of a text, estimated from a sample.

    With one vocabulary for each side the figures are those of the side that has more, `forms` that
    of the side that has fewer.
    """

    words: int  # of the text that the vocabulary is trained on
    characters: int  # distinct ones
    # distinct symbols or characters of the whole text, if `tokenizer.kind` is one of these, else 0
    types: int
    # distinct words of two letters or digits and more, a limit for merges; what has no spaces
    # between words counts as if all of them were distinct
    forms: int
    tags: int  # of directions
    sample: tuple[Corpus, ...]  # weight: for how many pairs of that text each of its pairs stands
    uses: Float[np.ndarray, "n"]  # for how many pairs of an epoch each pair of the sample stands

    @property
    def pairs(self) -> int:
        """The pairs of an epoch, each as often as it is used."""
        return round(float(self.uses.sum()))

    def count_subwords(self, data: DataConfig, tokenizer: TokenizerConfig) -> Subwords:
        """Counts the sub-words of the sample's sentences.

        Without `tokenizer.path` a vocabulary is trained on the sample, and discarded. It may be
        smaller than `vocab_size`, since the sample holds fewer pieces than the text.
        """
        if tokenizer.path:
            found = open_given(tokenizer.path)
        else:
            with tempfile.TemporaryDirectory() as folder:
                found = train_vocabulary(
                    _limit_weights(self.sample),
                    tokenizer,
                    Path(folder),
                    list_tags(data),
                    is_sample=True,
                )
        ids = found.encode_pairs(pair for corpus in self.sample for pair in corpus)
        src, tgt = np.array([(len(src), len(tgt)) for src, tgt in ids]).T
        return Subwords(src, tgt, found.tgt.vocab_size)

    def count_epoch(self, subwords: Subwords, data: DataConfig) -> int:
        """Counts the target sub-words of an epoch, without the pairs that training drops."""
        kept = self.uses.copy()
        for dropped in find_dropped(subwords.src, subwords.tgt, data).values():
            kept[dropped] = 0
        return round(float(kept @ subwords.tgt))


def measure_text(data: DataConfig, tokenizer: TokenizerConfig) -> TextFacts:
    """Measures the training text, and warns if many of its pairs are copies.

    Raises:
        DataError: the text is missing or too small, or both sides are the same.
    """
    corpora = open_training(data, tokenizer)
    sample = _draw_sample(corpora)
    total = round(sum(len(part) * part.weight for part in sample))
    has_pairs = len(corpora[0].sides) == 2
    if total < _FEWEST:
        raise DataError(
            f"{total} {'sentence pairs' if has_pairs else 'texts'} are too few to train a model "
            f"on; bring {_FEWEST} or more, or fine-tune a model: "
            "--config=configs/fine_tune.py:RUN"
        )
    uses = _count_uses(sample, corpora, data)
    if has_pairs:
        _check_copies([pair for part in sample for pair in part], uses, data)
    for part, corpus in zip(sample, corpora, strict=True):
        part.weight *= corpus.weight
    rules = make_normalizer(tokenizer.lowercase)
    split = functools.partial(split_words, rules)
    own = corpora[0].sides
    joined = [own] if tokenizer.shared else [(side,) for side in own]
    sides = [_count_words(sample, each, split) for each in joined]
    is_counted = tokenizer.kind in ("symbols", "characters")
    return TextFacts(
        words=round(max(map(_estimate_words, sides))),
        characters=max(len(set("".join(words))) for words in sides),
        types=max(
            len(count_types(corpora, each, tokenizer, rules)) if is_counted else 0
            for each in joined
        ),
        forms=min(round(_estimate_words(dict.fromkeys(_find_forms(words), 1))) for words in sides),
        tags=len(list_tags(data)),
        sample=tuple(sample),
        uses=uses,
    )


def _draw_sample(corpora: Sequence[Corpus]) -> list[ListCorpus]:
    """Draws blocks of pairs at equal distances from each corpus, without empty sentences.

    Returns:
        A sample of each corpus; its weight is the number of pairs for which each of its own stands.
    """
    stride = max(1, math.ceil(sum(map(len, corpora)) / _SAMPLED))
    sample = []
    for corpus in corpora:
        pairs = [pair for _, pair in sample_pairs([corpus], stride)]
        full = (all(clean_sentence(pair[side]) for side in corpus.sides) for pair in pairs)
        part = ListCorpus(f"a sample of {corpus.name}", [*itertools.compress(pairs, full)])
        part.weight, part.sides = len(corpus) / len(pairs), corpus.sides
        sample.append(part)
    return sample


def _count_uses(
    sample: Sequence[Corpus], corpora: Sequence[Corpus], data: DataConfig
) -> Float[np.ndarray, "n"]:
    """Returns for how many pairs of an epoch each pair of the sample stands.

    Stages of training count by their steps. The last one, whose end is not known here, counts as
    much as all before it.
    """
    weights = np.array([corpus.weight for corpus in corpora])
    if stages := read_stages(data.stages):
        steps = [stage.stop - stage.first for stage in stages[:-1]]
        weights = np.average([s.weights for s in stages], 0, [*steps, sum(steps) or 1])
    return np.repeat([part.weight for part in sample] * weights, [*map(len, sample)])


def _limit_weights(sample: Sequence[Corpus]) -> list[Corpus]:
    """Copies of the corpora with weights in proportion, by which at most `_MOST_READ` are read."""
    total = sum(len(part) * part.weight for part in sample)
    factor = min(1 / min(part.weight for part in sample), _MOST_READ / total)
    copies = [copy.copy(part) for part in sample]
    for part in copies:
        part.weight *= factor
    return copies


def _check_copies(pairs: Sequence[Pair], uses: Float[np.ndarray, "n"], data: DataConfig) -> None:
    are_equal = [src.strip() == tgt.strip() for src, tgt in pairs]
    equal = float(uses @ are_equal / uses.sum())
    if equal > _MOST_EQUAL:
        raise DataError(
            f"source and target are the same in {equal:.0%} of the sentence pairs; name the texts "
            "of two languages, by data.train_src and data.train_tgt"
        )
    shares = {"duplicates": 1 - len(set(pairs)) / len(pairs), "identical": equal}
    meanings = {"duplicates": "repeat another one", "identical": "have two equal sides"}
    for name, share in shares.items():
        if share > _NOTICEABLE and name not in data.filters:
            _log.warning(
                "%.1f%% of the pairs %s; --config.data.filters=%s leaves them out",
                100 * share, meanings[name], name,
            )  # fmt: skip


def _count_words(
    sample: Sequence[Corpus],
    sides: Sequence[int],
    split: Callable[[Sequence[str]], list[list[str]]],
) -> dict[str, float]:
    """Returns the distinct words of these sides, each with its number in the whole text."""
    counts = defaultdict[str, float](float)
    for part in sample:
        for side in sides:
            sentences = split([pair[side] for pair in part])
            for word in itertools.chain.from_iterable(sentences):
                counts[word] += part.weight
    return counts


def _estimate_words(counts: Mapping[str, float]) -> float:
    """Adds up the words of a text; what has no spaces between words counts by its characters."""
    total = 0.0
    for word, count in counts.items():
        words = sum(len(script.findall(word)) / length for script, length in _UNSPACED)
        total += count * (words if words >= 2 else 1)
    return total


def _find_forms(words: Iterable[str]) -> Iterator[str]:
    """Yields what `_FORM` finds in the words."""
    for word in words:
        for found in _FORM.finditer("".join(map(_find_kind, word))):
            yield word[slice(*found.span())]


@functools.cache
def _find_kind(character: str) -> str:
    """Returns the first letter of the character's category in Unicode, such as "L" for letters.

    Vowel signs and other marks, and the joiners between letters or emoji, are "m": they belong to
    the character before them.
    """
    kind = unicodedata.category(character)[0]
    return "m" if kind == "M" or character in "\u200c\u200d" else kind
