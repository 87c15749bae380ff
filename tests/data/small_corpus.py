"""A few hundred sentence pairs with umlauts, enough to train a vocabulary on."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t2t.config.fields import TokenizerConfig
from t2t.data.batch import EOS_ID, PAD_ID, HostBatch
from t2t.data.corpus import Corpus, ListCorpus
from t2t.data.token_cache import TokenizedCorpus, tokenize_corpus
from t2t.data.tokenizer import train_vocabulary

_WHO = {
    "the girl": "das Mädchen",
    "my brother": "mein Bruder",
    "a tired king": "ein müder König",
    "nobody": "niemand",
}
_WHAT = {
    "sees": "sieht",
    "buys": "kauft",
    "finds": "findet",
    "loves": "liebt",
    "needs": "braucht",
    "describes": "beschreibt",
}
_WHOM = {
    "the green book": "das grüne Buch",
    "two houses": "zwei Häuser",
    "tea": "Tee",
    "an old bicycle": "ein altes Fahrrad",
    "fresh bread": "frisches Brot",
}
_WHEN = {
    "today": "heute",
    "on Monday": "am Montag",
    "in the big garden": "im großen Garten",
    "during the holidays": "während der Ferien",
}

PAIRS = [
    (" ".join(english) + ".", " ".join(german) + ".")
    for english, german in (
        zip(*words, strict=True)
        for words in itertools.product(*(table.items() for table in (_WHO, _WHAT, _WHOM, _WHEN)))
    )
]
CORPUS = ListCorpus("small", PAIRS)


def tokenize_parts(folder: Path, corpora: Sequence[Corpus]) -> list[TokenizedCorpus]:
    """Tokenises with a vocabulary of the whole corpus."""
    vocabulary = train_vocabulary([CORPUS], TokenizerConfig(vocab_size=400), folder / "vocab")
    return [tokenize_corpus(part, vocabulary, folder / "cache") for part in corpora]


def split_row(ids: np.ndarray) -> list[list[int]]:
    """The sentences of padded rows, each up to its EOS."""
    ids = ids[ids != PAD_ID]
    *sentences, rest = np.split(ids, np.flatnonzero(ids == EOS_ID) + 1)
    assert not len(rest)
    return [sentence.tolist() for sentence in sentences]


def assert_same(one: HostBatch, other: HostBatch) -> None:
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def read_pair(tokens: TokenizedCorpus, index: int) -> list[list[int]]:
    """Source and target ids of a pair."""
    sides = [np.zeros(lengths[index], np.int32) for lengths in tokens.lengths]
    tokens.copy(np.array([index]), *((np.array([0]), side) for side in sides))
    return [side.tolist() for side in sides]
