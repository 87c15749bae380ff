"""Objectives: what a model learns from a text, as pairs of source and target (`data.objective`).

The cache holds the ids of the text itself. The plan of batches needs only lengths, and those of a
pair follow from the length of its text. The pair is made when its batch is read: it is a pure
function of text, seed, epoch and index, so the order of the data, resuming and the division over
hosts are those of translation. For 25,000 sub-words that takes 4 ms of one core.
"""

import abc
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt64

from t2t.config.data_rules import TEXT_PAIR_KINDS
from t2t.config.fields import ConfigError, DataConfig
from t2t.config.variants import CHOICES, call_variant, make_variant_error
from t2t.data.batch import EOS_ID, PAD_ID
from t2t.data.batch_plan import CorpusLengths, Lengths
from t2t.data.token_cache import TokenizedCorpus, find_ragged
from t2t.data.tokenizer import Tokenizer, Vocabulary

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64
_PURPOSES = np.uint64(4)  # random numbers of each sub-word
_GOLDEN = (5**0.5 - 1) / 2  # of the golden ratio what follows the point
_MASKED, _REPLACED = 0.8, 0.1  # shares of the chosen sub-words (Devlin et al. 2019)

Keys = UInt64[np.ndarray, "n"]  # of examples, for their random numbers


class Sentences(NamedTuple):
    """Sentences one after the other, each ending in EOS, and the length of each."""

    ids: Int[np.ndarray, "tokens"]
    lengths: Int[np.ndarray, "n"]


def count_noise(length: int, data: DataConfig) -> tuple[int, int]:
    """Returns how many sub-words of a text are corrupted, and in how many spans.

    As in T5 (Raffel et al. 2020) both numbers are rounded, and at least 1. Not all of a text is
    corrupted, unless it has only one sub-word, and spans do not touch. `length` is without EOS.
    """
    if not length:
        return 0, 0
    noise = min(max(round(length * data.noise_density), 1), max(length - 1, 1))
    spans = min(max(round(noise / data.mean_span_length), 1), noise, length - noise + 1)
    return noise, spans


def count_sentinels(data: DataConfig) -> int:
    """Returns how many sentinels the objective needs: for each span of the longest text, one.

    The longest text is that of `data.max_length`. denoising and masked_lm need one, for the mask.
    """
    if data.objective != "span_corruption":
        return int(data.objective in ("denoising", "masked_lm"))
    most = 0
    for length in range(1, 2 * data.max_length + 2):  # the shorter side has at least half of it
        noise, spans = count_noise(length, data)
        if max(length - noise, noise) + spans + 1 <= data.max_length:
            most = max(most, spans)
    return most


class Objective:
    """Pairs as the corpus has them: translation; and lm, whose corpora have empty sources.

    A registered objective is a class derived from `Corruption`, or from this one to learn whole
    texts. It reads text alone, and is created as (data, sentinels, words): the ids of the
    vocabulary's sentinels (`tokenizer.sentinels`), in order, and of its sub-words. A plan creates
    it without words, and asks for lengths alone.
    """

    predicts_end = True  # whether EOS is among the predicted tokens
    # Values of `model.kind` that it trains. encoder_only needs both sides of a pair equally long,
    # with PAD in the target where nothing is predicted.
    kinds: ClassVar[tuple[str, ...]] = TEXT_PAIR_KINDS
    # The predicted tokens, in the definition of perplexity and accuracy. Evaluations are compared
    # only if their definitions are equal, so it names settings and a version.
    predicted = "all sub-words of a text, EOS included"
    # Ids with which each source of text alone begins: `data.prefix`. Those of pairs are in the
    # corpus.
    prefix: Int[np.ndarray, "ids"] = np.zeros(0, np.int32)

    def find_lengths(self, sides: CorpusLengths) -> CorpusLengths:
        """Returns the lengths of the pairs' sides from those of the corpus, all with EOS.

        Sources have no prefix here.
        """
        return sides

    def plan_lengths(self, sides: CorpusLengths) -> CorpusLengths:
        """Returns the lengths of `find_lengths`, with the prefix of the sources."""
        src, tgt = self.find_lengths(sides)
        return src + len(self.prefix), tgt


class Corruption(Objective, abc.ABC):
    """Pairs that are made from the ids of a text."""

    predicted = "the sub-words of the targets, EOS included"

    def __init__(self, data: DataConfig):
        self._data = data

    @abc.abstractmethod
    def corrupt(self, texts: Sentences, keys: Keys) -> tuple[Sentences, Sentences]:
        """Returns sources and targets of texts; each text has a key for its random numbers.

        Their lengths are those of `find_lengths`. They depend on the texts and the keys alone.
        """

    def _count(self, words: Lengths) -> tuple[Lengths, Lengths]:
        """Returns how many of each text's sub-words are corrupted, and in how many spans."""
        lengths = range(int(words.max(initial=0)) + 1)
        table = np.array([count_noise(length, self._data) for length in lengths], np.int32)
        noise, spans = table[words].T
        return noise, spans


class PrefixLM(Corruption):
    """The rest of a text is to be written from its beginning (Raffel et al. 2020, section 3.3.1).

    A text is cut at the place that its length says, always the same, since a plan of batches knows
    lengths alone. The paper draws it. Here, too, texts of all lengths have their cuts everywhere:
    multiples of the golden ratio are spread evenly. A text of one sub-word is written whole.
    """

    predicted = "the sub-words of a text behind its cut, and EOS"

    def find_lengths(self, sides: CorpusLengths) -> CorpusLengths:
        """As in `Objective`."""
        _, texts = sides
        shown = self._count_shown(texts)
        return shown + 1, texts - shown

    def corrupt(self, texts: Sentences, keys: Keys) -> tuple[Sentences, Sentences]:  # noqa: ARG002
        """As in `Corruption`; nothing is drawn."""
        lengths = texts.lengths
        src_lengths, tgt_lengths = self.find_lengths((lengths, lengths))
        shown = src_lengths - 1
        is_shown = find_places(lengths) < np.repeat(shown, lengths)
        src = np.full(src_lengths.sum(), EOS_ID, texts.ids.dtype)
        src[find_places(src_lengths) < np.repeat(shown, src_lengths)] = texts.ids[is_shown]
        return Sentences(src, src_lengths), Sentences(texts.ids[~is_shown], tgt_lengths)

    def _count_shown(self, texts: Lengths) -> Lengths:
        """Returns how many sub-words of each text are its source: 1 to all but one, if it has two.

        Lengths are with EOS.
        """
        words = texts - 1
        shown: np.ndarray = 1 + np.floor(words * _GOLDEN % 1 * (words - 1)).astype(texts.dtype)
        return np.where(words > 1, shown, 0).astype(texts.dtype)


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
        src_lengths, tgt_lengths = SpanCorruption.find_lengths(self, (texts.lengths,) * 2)
        return Sentences(src, src_lengths), Sentences(tgt, tgt_lengths)

    def _count(self, words: Lengths) -> tuple[Lengths, Lengths]:
        noise, spans = super()._count(words)
        return noise, np.minimum(spans, len(self._sentinels))


class Denoising(SpanCorruption):
    """A text is to be restored, of which spans are left out (BART: Lewis et al. 2020, section 2.2).

    In the source a mask stands for each span; the target is the text. Spans are those of
    `SpanCorruption`, so none is empty, where BART draws their lengths from a Poisson distribution.
    Sentences keep their order.
    """

    def __init__(self, data: DataConfig, mask: int):
        """`mask` is the id of the mask."""
        super().__init__(data, [mask] * data.max_length)
        self.predicted = (
            "all sub-words of a text, of which spans are masked, and EOS, noise_density "
            f"{data.noise_density:g}, mean_span_length {data.mean_span_length:g}, drawn once"
        )

    def find_lengths(self, sides: CorpusLengths) -> CorpusLengths:
        """As in `Objective`."""
        src, _ = super().find_lengths(sides)
        return src, sides[1]

    def corrupt(self, texts: Sentences, keys: Keys) -> tuple[Sentences, Sentences]:
        """As in `Corruption`."""
        src, _ = super().corrupt(texts, keys)
        return src, texts


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


def make_objectives(tasks: Sequence[DataConfig], vocabulary: Vocabulary) -> list[Objective]:
    """Returns the objective of each corpus, from the config of its task (`find_tasks`).

    Corpora of one task share an object.

    Raises:
        ConfigError: as `make_objective`.
    """
    made: dict[str, Objective] = {}
    for task in tasks:
        if task.task not in made:
            made[task.task] = make_objective(task, vocabulary)
    return [made[task.task] for task in tasks]


def make_objective(data: DataConfig, vocabulary: Vocabulary) -> Objective:
    """Returns the objective of one task with this vocabulary, which may have its prefix or not.

    Raises:
        ConfigError: the vocabulary has not enough sentinels, or a registered objective is not as
            `Objective` says.
        VocabularyError: the vocabulary does not have the task's prefix.
    """
    if not data.is_text_alone:
        return Objective()
    objective = _choose_checked(data, vocabulary.tgt)
    if data.prefix:
        src = vocabulary.src if vocabulary.src.prefix else vocabulary.src.with_prefix(data.prefix)
        objective.prefix = np.array(src.tag_ids, np.int32)
    return objective


def plan_lengths(
    objectives: Sequence[Objective], corpora: Sequence[TokenizedCorpus]
) -> list[CorpusLengths]:
    """Returns the lengths of each corpus's pairs, as `Objective.plan_lengths`."""
    both = zip(objectives, corpora, strict=True)
    return [objective.plan_lengths(corpus.lengths) for objective, corpus in both]


def _choose_checked(data: DataConfig, tokenizer: Tokenizer) -> Objective:
    sentinels, needed = tokenizer.sentinel_ids, count_sentinels(data)
    if len(sentinels) < needed:
        raise ConfigError(
            f"data.objective={data.objective!r} needs {needed} sentinels, but the vocabulary has "
            f"{len(sentinels)}; a run keeps the tokenizer.sentinels with which its vocabulary was "
            "trained, so choose another --workdir"
        )
    objective = choose_objective(data, sentinels, tokenizer.word_ids)
    if data.objective in CHOICES["data.objective"] or not isinstance(objective, Corruption):
        return objective
    _check_pairs(objective, data.objective, tokenizer.word_ids)
    return objective


def _check_pairs(objective: Corruption, name: str, words: Sequence[int]) -> None:
    """Makes pairs of short texts; raises ConfigError if they are not as the plan expects."""
    lengths = np.arange(1, 33)
    ids = np.resize(np.array(words, np.int32), lengths.sum())
    ids[np.cumsum(lengths) - 1] = EOS_ID
    pair = objective.corrupt(Sentences(ids, lengths), make_keys(0, 0, lengths))
    planned = objective.find_lengths((np.ones_like(lengths), lengths))
    for side, expected in zip(pair, planned, strict=True):
        if not np.array_equal(side.lengths, expected) or len(side.ids) != expected.sum():
            fault = "made sides of other lengths than its find_lengths says"
        elif (side.ids[np.cumsum(expected) - 1] != EOS_ID).any():
            fault = "made a side that does not end in EOS"
        else:
            continue
        raise make_variant_error("data.objective", name, fault)


def choose_objective(
    data: DataConfig, sentinels: Sequence[int], words: Sequence[int] = ()
) -> Objective:
    """Returns the objective with these ids of sentinels and words; lengths need only sentinels."""
    match data.objective:
        case "prefix_lm":
            return PrefixLM(data)
        case "span_corruption":
            return SpanCorruption(data, sentinels)
        case "denoising":
            return Denoising(data, sentinels[0])
        case "masked_lm":
            return MaskedLM(data, sentinels[0], words)
        case "translation" | "lm":
            return Objective()
        case other:
            objective: Objective = call_variant(
                "data.objective", other, data, sentinels, words,
                is_valid=lambda value: isinstance(value, Objective),
            )  # fmt: skip
            return objective


def make_keys(seed: int, epoch: int, uses: Int[np.ndarray, "n"]) -> Keys:
    """Returns a key for the random numbers of each example of an epoch (`PlannedBatch.uses`)."""
    first = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    return draw(np.broadcast_to(first, uses.shape), uses, 0)


def draw(keys: Keys, places: Int[np.ndarray, "n"], purpose: int) -> UInt64[np.ndarray, "n"]:
    """Draws 64 random bits for each place of an example, and each of up to four purposes.

    They are elements of the sequence of SplitMix64 (Steele et al. 2014) that begins with the key.
    Each is computed alone, so all of a batch are at once.
    """
    x = keys + (places.astype(np.uint64) * _PURPOSES + np.uint64(purpose + 1)) * _GAMMA
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


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
