"""`UnknownCharacters`: one warning of all characters of a text that a vocabulary lacks."""

import logging
from collections import Counter
from collections.abc import Sequence

from t2t.data.tokenizer import Tokenizer, Vocabulary

_log = logging.getLogger(__name__)

_NAMED = 5  # of the unknown characters


class UnknownCharacters:
    """Counts the characters of texts that the model reads as UNK."""

    def __init__(self) -> None:
        self._found = Counter[str]()
        self._texts = 0  # that hold any

    def count(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        """Adds texts that are encoded."""
        for unknown in tokenizer.find_unknown(texts):
            self._texts += bool(unknown)
            self._found.update(unknown)

    def count_pairs(self, vocabulary: Vocabulary, pairs: Sequence[tuple[str, str]]) -> None:
        """Adds both sides of pairs (source, target)."""
        self.count(vocabulary.src, [src for src, _ in pairs])
        self.count(vocabulary.tgt, [tgt for _, tgt in pairs])

    def warn(self) -> None:
        """Warns of what was counted since the last call."""
        if self._found:
            named = [
                f"{text!r} ({count} times)" if count > 1 else repr(text)
                for text, count in self._found.most_common(_NAMED)
            ]
            others = len(self._found) - len(named)
            _log.warning(
                "%d lines hold %d characters that the vocabulary lacks, and the model cannot tell "
                "them apart: %s%s",
                self._texts, self._found.total(), ", ".join(named),
                f" and {others} more" * bool(others),
            )  # fmt: skip
        self._found.clear()
        self._texts = 0
