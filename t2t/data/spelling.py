"""Text as a vocabulary spells it, which is what a model sees: filters and reports compare it.

A sentence is cleaned (`sentences`), spaces in a row and "▁" are one space, and a lower-case
vocabulary makes it lower-case. A vocabulary that `tokenizer.path` names has rules of its own.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from t2t.config.fields import ConfigError, TokenizerConfig
from t2t.data.corpus import Corpus, Pair, hash_strings
from t2t.data.counted_vocabulary import split_words
from t2t.data.tokenizer import Vocabulary, make_normalizer, open_given

SplitWords = Callable[[Sequence[str]], list[list[str]]]  # the words of each sentence


class Spelling(NamedTuple):
    """How both sides of pairs are spelled; `identity` tells apart spellings that may differ."""

    identity: str
    src: SplitWords
    tgt: SplitWords

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "Spelling":
        """The spelling of a vocabulary."""
        sides = vocabulary.src.split_words, vocabulary.tgt.split_words
        return cls(vocabulary.fingerprint(), *sides)


def find_spelling(config: TokenizerConfig) -> Spelling:
    """Finds the spelling of the vocabulary that a run has or is going to have.

    Raises:
        ConfigError: the vocabulary that `tokenizer.path` names cannot be read.
    """
    if config.path:
        try:
            return Spelling.of(open_given(config.path))
        except ConfigError as error:
            raise ConfigError(
                f"{error}; data.filters compares text as this vocabulary spells it: give the copy "
                "in the run, --config.tokenizer.path=RUN/vocab"
            ) from None
    split = functools.partial(split_words, make_normalizer(config.lowercase))
    return Spelling("lower-case" if config.lowercase else "as written", split, split)


class SpelledCorpus(Corpus):
    """A corpus whose sentences are spelled as a vocabulary does, with single spaces."""

    def __init__(self, corpus: Corpus, spelling: Spelling):
        self._corpus, self._spelling = corpus, spelling
        self.name, self.sides = corpus.name, corpus.sides

    def __len__(self) -> int:
        return len(self._corpus)

    def read(self, start: int, stop: int) -> list[Pair]:
        """The pairs [start, stop), spelled."""
        pairs = self._corpus.read(start, stop)
        src = self._spelling.src([src for src, _ in pairs])
        tgt = self._spelling.tgt([tgt for _, tgt in pairs])
        return [(" ".join(one), " ".join(other)) for one, other in zip(src, tgt, strict=True)]

    def fingerprint(self) -> str:
        """A hash of the corpus's fingerprint and the spelling."""
        return hash_strings("spelled", self._spelling.identity, self._corpus.fingerprint())
