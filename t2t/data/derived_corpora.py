"""Corpora that are made of other corpora: their targets alone, or several as one."""

from collections.abc import Sequence

import numpy as np

from t2t.data.corpus import Corpus, Pair, hash_strings


class TargetsAlone(Corpus):
    """The targets of a corpus as text alone: each pair has an empty source."""

    sides = (1,)

    def __init__(self, corpus: Corpus):
        self._corpus, self.name = corpus, corpus.name

    def __len__(self) -> int:
        return len(self._corpus)

    def read(self, start: int, stop: int) -> list[Pair]:
        """The pairs [start, stop), with empty sources."""
        return [("", tgt) for _, tgt in self._corpus.read(start, stop)]

    def fingerprint(self) -> str:
        """A hash of the corpus's fingerprint."""
        return hash_strings("targets alone", self._corpus.fingerprint())


class ConcatenatedCorpus(Corpus):
    """The pairs of several corpora, one corpus after the other."""

    def __init__(self, parts: Sequence[Corpus]):
        self.name = ", ".join(part.name for part in parts)
        self.tag, self.prefix, self.sides = parts[0].tag, parts[0].prefix, parts[0].sides
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, stop: int) -> list[Pair]:
        """The pairs [start, stop), read from the parts that hold them."""
        pairs: list[Pair] = []
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            begin = end - len(part)
            if start < end and begin < stop:
                pairs += part.read(max(start - begin, 0), min(stop - begin, len(part)))
        return pairs

    def fingerprint(self) -> str:
        """A hash of the parts' fingerprints."""
        return hash_strings("concatenated", *(part.fingerprint() for part in self._parts))
