"""The objectives that corrupt texts: spans are left out (T5), or sub-words are masked (BERT)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int, UInt64

from t2t.config.fields import DataConfig
from t2t.data.batch import PAD_ID
from t2t.data.batching import CorpusLengths, Lengths
from t2t.data.objectives import Corruption, Keys, Sentences, draw
from t2t.data.token_cache import find_ragged

_MASKED, _REPLACED = 0.8, 0.1  # shares of the chosen sub-words (Devlin et al. 2019)


class SpanCorruption(Corruption):
    """Spans of a text are to be filled in (T5: Raffel et al. 2020, section 3.1.4).

    In the source a sentinel stands for each span. The target has each sentinel and its span. It
    ends with EOS; the paper's last sentinel, which says the same, is left out, as in T5's code.
    That code's texts always end with a span; here all places are equally likely, since of a short
    sentence it would always be the end.
    """

    def __init__(self, data: DataConfig, sentinels: Sequence[int]):
        """`sentinels` are ids, in order; a text with more spans has as many, which are longer."""
        super().__init__(data)
        self.predicted = (
            "the sub-words of left-out spans, their sentinels and EOS, noise_density "
            f"{data.noise_density:g}, drawn once"
        )
        self._sentinels = np.array(sentinels, np.int32)

    def find_lengths(self, sides: CorpusLengths) -> CorpusLengths:
        """As in `Objective`."""
        _, texts = sides
        noise, spans = self._count(texts - 1)
        return texts - noise + spans, noise + spans + 1

    def corrupt(self, texts: Sentences, keys: Keys) -> tuple[Sentences, Sentences]:
        """As in `Corruption`."""
        noise, spans = self._count(texts.lengths - 1)
        # The pieces of each text: other sub-words, a span, other sub-words, ..., the last with EOS.
        # The first may be empty, and the last EOS alone: so one more item is cut, and taken off.
        others = cut_randomly(texts.lengths - noise + 1, spans + 1, keys, 0)
        others[np.cumsum(spans + 1) - spans - 1] -= 1
        is_span = find_places(2 * spans + 1) % 2 == 1
        pieces = np.empty(len(is_span), np.int64)
        pieces[~is_span], pieces[is_span] = others, cut_randomly(noise, spans, keys, 1)
        is_noise = np.repeat(is_span, pieces)
        begins = np.zeros(len(texts.ids), bool)
        begins[(np.cumsum(pieces) - pieces)[is_span]] = True
        sentinels = self._sentinels[find_places(spans)]

        src = texts.ids[~is_noise | begins]
        src[begins[~is_noise | begins]] = sentinels
        is_end = np.zeros(len(texts.ids), bool)
        is_end[np.cumsum(texts.lengths) - 1] = True
        copies = is_noise.astype(np.int64) + begins + is_end
        tgt = np.repeat(texts.ids, copies)
        tgt[(np.cumsum(copies) - copies)[begins]] = sentinels
        src_lengths, tgt_lengths = self.find_lengths((texts.lengths, texts.lengths))
        return Sentences(src, src_lengths), Sentences(tgt, tgt_lengths)

    def _count(self, words: Lengths) -> tuple[Lengths, Lengths]:
        noise, spans = super()._count(words)
        return noise, np.minimum(spans, len(self._sentinels))


class MaskedLM(Corruption):
    """Sub-words are to be restored where they stand (BERT: Devlin et al. 2019, section 3.1).

    Of the chosen sub-words 80% become the mask, 10% a random sub-word, and 10% stay. Source and
    target have the text's length; the target holds PAD where nothing is predicted.
    """

    predicts_end = False

    def __init__(self, data: DataConfig, mask: int, words: Sequence[int]):
        """`mask` is the id of the mask; `words` are those from which a random one is drawn."""
        super().__init__(data)
        self.predicted = (
            f"the chosen sub-words of a text, noise_density {data.noise_density:g}, drawn once"
        )
        self._mask, self._words = mask, np.array(words, np.int32)

    def find_lengths(self, sides: CorpusLengths) -> CorpusLengths:
        """As in `Objective`."""
        _, texts = sides
        return texts, texts

    def corrupt(self, texts: Sentences, keys: Keys) -> tuple[Sentences, Sentences]:
        """As in `Corruption`."""
        words = texts.lengths - 1
        places = find_places(words)
        rows = np.repeat(np.arange(len(words)), words)
        counts, _ = self._count(words)
        chosen = choose_randomly(words, counts, draw(keys[rows], places, 0))
        # Of each text the places of its sub-words among all ids, without EOS.
        picked = find_ragged(np.cumsum(texts.lengths) - texts.lengths, words)[chosen]
        numbers = keys[rows][chosen], places[chosen]
        kind = draw(*numbers, 1) * 2.0**-64
        random = self._words[draw(*numbers, 2) % np.uint64(len(self._words))]
        src, tgt = texts.ids.copy(), np.full_like(texts.ids, PAD_ID)
        kept = src[picked]
        changed = np.where(kind < _MASKED + _REPLACED, random, kept)
        src[picked] = np.where(kind < _MASKED, self._mask, changed)
        tgt[picked] = kept
        ends = np.cumsum(texts.lengths) - 1
        tgt[ends] = texts.ids[ends]
        return Sentences(src, texts.lengths), Sentences(tgt, texts.lengths)


def find_places(lengths: Int[np.ndarray, "n"]) -> Int[np.ndarray, "items"]:
    """Returns 0, 1, ..., length - 1 for each length, one after the other."""
    return find_ragged(np.zeros(len(lengths), np.int64), lengths)


def choose_randomly(
    totals: Int[np.ndarray, "n"], counts: Int[np.ndarray, "n"], drawn: UInt64[np.ndarray, "items"]
) -> Bool[np.ndarray, "items"]:
    """Chooses the `counts` items with the least random numbers of `totals` items in each row."""
    rows = np.repeat(np.arange(len(totals)), totals)
    chosen = np.zeros(len(rows), bool)
    chosen[np.lexsort((drawn, rows))] = find_places(totals) < counts[rows]
    return chosen


def cut_randomly(
    totals: Int[np.ndarray, "n"],
    counts: Int[np.ndarray, "n"],
    keys: Keys,
    purpose: int,
) -> Int[np.ndarray, "pieces"]:
    """Cuts `totals` items of each row into `counts` pieces; all divisions are equally likely.

    Returns the lengths of the pieces, at least 1 each; a row without items has no piece.
    """
    places = find_places(totals)
    drawn = draw(np.repeat(keys, totals), places, purpose)
    begins = choose_randomly(totals, counts, np.where(places == 0, np.uint64(0), drawn))
    lengths: np.ndarray = np.diff(np.flatnonzero(begins), append=len(begins))
    return lengths
