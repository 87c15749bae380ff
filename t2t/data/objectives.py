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
from jaxtyping import Int, UInt64

from t2t.config.fields import ConfigError, DataConfig
from t2t.config.objective_rules import (
    TEXT_PAIR_KINDS,
    count_noise,
    count_sentinels,
    is_text_alone,
)
from t2t.config.variants import CHOICES, call_variant, make_variant_error
from t2t.data.batch import EOS_ID
from t2t.data.batching import CorpusLengths, Lengths
from t2t.data.tokenizer import Tokenizer

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64
_PURPOSES = np.uint64(4)  # random numbers of each sub-word

Keys = UInt64[np.ndarray, "n"]  # of examples, for their random numbers


class Sentences(NamedTuple):
    """Sentences one after the other, each ending in EOS, and the length of each."""

    ids: Int[np.ndarray, "tokens"]
    lengths: Int[np.ndarray, "n"]


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

    def find_lengths(self, sides: CorpusLengths) -> CorpusLengths:
        """Returns the lengths of the pairs' sides from those of the corpus, all with EOS."""
        return sides


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


def make_objective(data: DataConfig, tokenizer: Tokenizer) -> Objective:
    """Returns the objective of a run with this vocabulary.

    Raises:
        ConfigError: the vocabulary has not enough sentinels, or a registered objective is not as
            `Objective` says.
    """
    if not is_text_alone(data):
        return Objective()
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
        case "span_corruption":
            from t2t.data.corruptions import SpanCorruption  # here: it derives from `Corruption`

            return SpanCorruption(data, sentinels)
        case "masked_lm":
            from t2t.data.corruptions import MaskedLM

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
