"""Subword regularisation: segmentations of training text that are sampled, not the best ones.

BPE-dropout (Provilkov et al. 2020) for vocabularies of kind "bpe", sampling from the unigram model
(Kudo 2018) for kind "unigram". The segmentation of an epoch is a pure function of text, vocabulary,
seed and epoch, so training resumes exactly. SentencePiece samples too, but differently in each
process, whatever its seed.

Sentences are segmented word by word, since no sub-word spans two words.
"""

import abc
import copy
import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from t2t.config.fields import Config
from t2t.data.batch import EOS_ID
from t2t.data.directions import find_tag, list_tasks
from t2t.data.piece_table import SPACE
from t2t.data.tokenizer import Tokenizer, Vocabulary

# Increase it when a sampler draws something else from the same numbers: caches keep samples.
_VERSION = 2

Random = np.random.Generator
Rows = list[list[int]]


def sample_vocabulary(vocabulary: Vocabulary, config: Config, epoch: int) -> Vocabulary:
    """Returns the vocabulary that segments the training text of an epoch.

    It samples the sides that `data.sampled_sides` names. Without `data.subword_sampling` it is
    `vocabulary` itself.
    """
    data, kind = config.data, config.tokenizer.kind
    if not data.subword_sampling:
        return vocabulary
    sides = {"src": vocabulary.src, "tgt": vocabulary.tgt}
    tagged = (
        vocabulary.with_tag(find_tag(task), task.prefix)
        for task in list_tasks(data)
        if not task.is_text_alone
    )
    added = max((len(each.src.tag_ids) for each in tagged), default=0)
    for side, plain in sides.items():
        if data.sampled_sides in ("both", side):
            stream = f"{kind} {_VERSION} {data.subword_sampling} {side} {config.seed} {epoch}"
            longest = data.max_length - added * (side == "src")  # without a tag and a prefix
            sides[side] = sample_tokenizer(plain, kind, data.subword_sampling, stream, longest)
    return dataclasses.replace(vocabulary, src=sides["src"], tgt=sides["tgt"])


def sample_tokenizer(
    plain: Tokenizer, kind: str, sampling: float, stream: str, max_length: int
) -> Tokenizer:
    """Returns a tokenizer that samples, with random numbers named by `stream` and the text.

    `kind` and `sampling` are `tokenizer.kind` and `data.subword_sampling`. A sentence is not
    sampled if it, or the sample, has more than `max_length` sub-words: so the same sentences are
    too long for training in every epoch. Nor is a sentence sampled that is not segmented word by
    word (`Tokenizer.is_plain`).
    """
    sampled = copy.copy(plain)
    sampled.stream = f"{stream} {max_length}".encode()
    sampled.resample = _Resampling(plain, kind, sampling, sampled.stream, max_length)
    return sampled


class _Resampling:
    """Replaces segmentations by samples (`Tokenizer.resample`)."""

    def __init__(self, plain: Tokenizer, kind: str, sampling: float, stream: bytes, longest: int):
        """The arguments are those of `sample_tokenizer`."""
        self._plain, self._kind, self._sampling = plain, kind, sampling
        self._stream, self._longest = stream, longest

    def __call__(self, sentences: Sequence[str], encoded: Rows) -> Rows:
        """Samples the ids of each sentence, ending in EOS; the same ones for the same list."""
        digest = hashlib.sha256(self._stream)
        for sentence in sentences:
            digest.update(sentence.encode(errors="surrogatepass") + b"\n")
        random = np.random.default_rng(np.frombuffer(digest.digest(), np.uint32))
        chosen = [
            place
            for place, (sentence, ids) in enumerate(zip(sentences, encoded, strict=True))
            if len(ids) <= self._longest and self._plain.is_plain(sentence)
        ]
        sampled = self._sampler.sample([sentences[place] for place in chosen], random)
        for place, ids in zip(chosen, sampled, strict=True):
            if len(ids) <= self._longest:
                encoded[place] = ids
        return encoded

    @functools.cached_property
    def _sampler(self) -> "SubwordSampler":
        """Made when the first sentences are encoded: it takes a moment."""
        kind = BpeSampler if self._kind == "bpe" else UnigramSampler
        return kind(self._plain, self._sampling)


class SubwordSampler(abc.ABC):
    """Samples a segmentation of each sentence."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self.pieces = tokenizer.list_pieces()

    def sample(self, sentences: Sequence[str], random: Random) -> Rows:
        """Samples the ids of each sentence, ending in EOS."""
        split = self._tokenizer.split_words(sentences)
        words = [word for sentence in split for word in sentence]
        known: list[str] = []
        unknown: list[str] = []
        for word in dict.fromkeys(words):
            (known if self.pieces.keys() >= {SPACE, *word} else unknown).append(word)
        # SentencePiece spells characters without a piece in bytes, or as UNK.
        encoded = dict(zip(unknown, self._tokenizer.encode_words(unknown), strict=True))
        number_of = {word: number for number, word in enumerate(known)}
        numbers = np.array([number_of[word] for word in words if word in number_of], np.int32)
        sampled = iter(self.segment([SPACE + word for word in known], numbers, random))
        rows: Rows = []
        for sentence in split:
            ids = (encoded[word][:-1] if word in encoded else next(sampled) for word in sentence)
            rows.append([*itertools.chain.from_iterable(ids), EOS_ID])
        return rows

    @abc.abstractmethod
    def segment(self, words: Sequence[str], numbers: Int[np.ndarray, "n"], random: Random) -> Rows:
        """Samples the ids of words[number] for each number; all their characters are pieces."""


class BpeSampler(SubwordSampler):
    """BPE-dropout: before each merge, each possible one is left out with a probability."""

    def __init__(self, tokenizer: Tokenizer, dropout: float):
        super().__init__(tokenizer)
        self._dropout = dropout
        # A merge has the rank of the sub-word that it makes, 0 for the best score. All pairs that
        # make one sub-word have the same rank, so that the leftmost one in a word is merged first.
        ranked = sorted(self.pieces, key=lambda text: -self.pieces[text].score)
        self._none = len(ranked)  # the rank of no merge
        self._merged = np.array([self.pieces[text].id for text in ranked], np.int32)
        merges = [
            (self.pieces[text[:cut]].id, self.pieces[text[cut:]].id, rank)
            for rank, text in enumerate(ranked)
            for cut in range(1, len(text))
            if text[:cut] in self.pieces and text[cut:] in self.pieces
        ]
        left, right, ranks = np.array([*merges, (-1, -1, -1)]).T
        order = np.argsort(_join(left, right))
        self._keys, self._ranks = _join(left, right)[order], ranks[order]

    def segment(self, words: Sequence[str], numbers: Int[np.ndarray, "n"], random: Random) -> Rows:
        """Samples words of the same length together, so that their arrays have no padding."""
        lengths = np.array([len(word) for word in words], int)
        starts = np.cumsum(lengths) - lengths
        characters = np.array([self.pieces[c].id for word in words for c in word], np.int32)
        rows: Rows = [[]] * len(numbers)
        for length in np.unique(lengths[numbers]):
            (places,) = np.nonzero(lengths[numbers] == length)
            symbols = characters[starts[numbers[places], None] + np.arange(length)]
            self._merge(symbols, places, rows, random)
        return rows

    def _merge(
        self,
        symbols: Int[np.ndarray, "n length"],
        places: Int[np.ndarray, "n"],
        rows: Rows,
        random: Random,
    ) -> None:
        """Merges the symbols of each word until no merge is offered; stores them in rows[place]."""
        merges = self._find(symbols[:, :-1], symbols[:, 1:])  # of each symbol with the next one
        while len(places):
            is_kept = random.random(merges.shape, np.float32) >= self._dropout
            offered = np.where(is_kept, merges, self._none)
            offered = np.pad(offered, ((0, 0), (0, 1)), constant_values=self._none)
            left = offered.argmin(axis=1)
            best = offered.min(axis=1)
            is_done = best == self._none
            for place, ids in zip(places[is_done].tolist(), symbols[is_done].tolist(), strict=True):
                rows[place] = ids
            places, symbols, merges, left, best = (
                array[~is_done] for array in (places, symbols, merges, left, best)
            )
            if len(places):
                symbols, merges = _remove(symbols, left + 1), _remove(merges, left)
                numbers = np.arange(len(places))
                symbols[numbers, left] = self._merged[best]
                for changed in (left - 1, left):  # merges with the symbols before and after
                    own = np.flatnonzero((changed >= 0) & (changed < merges.shape[1]))
                    at = changed[own]
                    merges[own, at] = self._find(symbols[own, at], symbols[own, at + 1])

    def _find(
        self, left: Int[np.ndarray, "*n"], right: Int[np.ndarray, "*n"]
    ) -> Int[np.ndarray, "*n"]:
        """Returns the rank of the merge of each pair of symbols."""
        keys = _join(left, right)
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        ranks: np.ndarray = np.where(
            self._keys[found] == keys, self._ranks[found], self._none
        ).astype(np.int32)
        return ranks


def _join(left: Int[np.ndarray, "*n"], right: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    """Returns one integer for each pair of ids."""
    keys: np.ndarray = (left.astype(np.int64) << 32) + right
    return keys


def _remove(
    values: Int[np.ndarray, "n length"], places: Int[np.ndarray, "n"]
) -> Int[np.ndarray, "n length-1"]:
    """Removes one value of each row."""
    columns = np.arange(values.shape[1] - 1)
    return np.take_along_axis(values, columns + (columns >= places[:, None]), axis=1)


class UnigramSampler(SubwordSampler):
    """Samples with probability proportional to P(segmentation) ** alpha.

    P is the product of the sub-words' probabilities. The last sub-word of a word is drawn first:
    its probability follows from sums over all segmentations of what precedes it.
    """

    def __init__(self, tokenizer: Tokenizer, alpha: float):
        super().__init__(tokenizer)
        self._alpha = alpha
        self._longest = max(map(len, self.pieces))

    def segment(self, words: Sequence[str], numbers: Int[np.ndarray, "n"], random: Random) -> Rows:
        """Draws one sub-word of all words at a time, until all are at their beginning.

        A node is a place in a word, counted over all words; its edges are the sub-words that end
        there. A uniform number from [i, i + 1) draws the first edge of node i whose limit is above
        it.
        """
        ends = np.cumsum([len(word) + 1 for word in words], dtype=int) - 1  # last nodes
        edges = [edge for word, end in zip(words, ends, strict=True)
                 for edge in self._list_edges(word, int(end) - len(word))]  # fmt: skip
        ids, origins, limits = np.array(edges).reshape(-1, 3).T
        rows: Rows = [[] for _ in numbers]
        starts = ends - [len(word) for word in words]
        nodes, places = ends[numbers], np.arange(len(numbers))
        while len(places):
            # Rounded, the sum may be nodes + 1, which is an edge of the next node.
            uniform = np.minimum(nodes + random.random(len(nodes)), np.nextafter(nodes + 1.0, 0))
            drawn = np.searchsorted(limits, uniform, side="right")
            for place, i in zip(places.tolist(), ids[drawn].astype(int).tolist(), strict=True):
                rows[place].append(i)
            nodes = origins[drawn].astype(int)
            is_left = nodes != starts[numbers[places]]
            nodes, places = nodes[is_left], places[is_left]
        return [row[::-1] for row in rows]

    def _list_edges(self, word: str, node: int) -> list[tuple[int, int, float]]:
        """Lists (id, node where it begins, upper limit) of the edges of a word's nodes."""
        edges = []
        sums = [0.0]  # log of the sum over all segmentations of word[:end], for each end
        for end in range(1, len(word) + 1):
            found = [
                (piece.id, start, sums[start] + self._alpha * piece.score)
                for start in range(max(end - self._longest, 0), end)
                if (piece := self.pieces.get(word[start:end]))
            ]
            largest = max(weight for _, _, weight in found)
            total = sum(math.exp(weight - largest) for _, _, weight in found)
            sums.append(largest + math.log(total))
            shares = itertools.accumulate(math.exp(w - largest) / total for _, _, w in found)
            limits = [*itertools.islice(shares, len(found) - 1), 1.0]
            edges += [
                (i, node + start, node + end + limit)
                for (i, start, _), limit in zip(found, limits, strict=True)
            ]
        return edges
