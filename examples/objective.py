"""An objective on text alone: the second half of a text from the first.

python -m t2t.train ... --config.plugins=examples.objective --config.data.objective=split_text
"""

from collections.abc import Sequence

import numpy as np

from t2t.config import DataConfig
from t2t.config.variants import register
from t2t.data.batch_plan import CorpusLengths
from t2t.data.objectives import Corruption, Keys, Sentences


@register("data.objective", "split_text")
class SplitText(Corruption):
    """Prefix language modelling (Raffel et al. 2020, section 3.3.1), with halves as T5 has them."""

    predicted = "the second half of a text and EOS, version 1"

    def __init__(self, data: DataConfig, sentinels: Sequence[int], words: Sequence[int]):
        super().__init__(data)
        del sentinels, words

    def find_lengths(self, sides: CorpusLengths) -> CorpusLengths:
        """Lengths of sources and targets from those of the texts, `sides[1]`, all with EOS."""
        words = sides[1] - 1
        return words // 2 + 1, words - words // 2 + 1

    def corrupt(self, texts: Sentences, keys: Keys) -> tuple[Sentences, Sentences]:
        """Sources and targets; `keys` are for random numbers, of which there are none."""
        del keys
        rows = np.split(texts.ids, np.cumsum(texts.lengths)[:-1])
        first = [np.append(row[: len(row[1:]) // 2], row[-1]) for row in rows]
        second = [row[len(row[1:]) // 2 :] for row in rows]
        src_lengths, tgt_lengths = self.find_lengths((texts.lengths, texts.lengths))
        return (
            Sentences(np.concatenate(first), src_lengths),
            Sentences(np.concatenate(second), tgt_lengths),
        )
