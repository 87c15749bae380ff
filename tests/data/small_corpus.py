"""A few hundred sentence pairs with umlauts, enough to train a vocabulary on."""

import itertools

import numpy as np

from t2t.data.corpus import ListCorpus
from t2t.data.token_cache import TokenizedCorpus

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


def read_pair(tokens: TokenizedCorpus, index: int) -> list[list[int]]:
    """Source and target ids of a pair."""
    sides = [np.zeros(lengths[index], np.int32) for lengths in tokens.lengths]
    tokens.copy(np.array([index]), *((np.array([0]), side) for side in sides))
    return [side.tolist() for side in sides]
