"""Sampled segmentations against SentencePiece, a naive BPE-dropout, and exact probabilities."""

import itertools
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from t2t.config.fields import Config, DataConfig, TokenizerConfig
from t2t.data.corpus import ListCorpus
from t2t.data.piece_table import SPACE
from t2t.data.subword_sampling import (
    BpeSampler,
    UnigramSampler,
    sample_tokenizer,
    sample_vocabulary,
)
from t2t.data.tokenizer import Tokenizer, Vocabulary, train_vocabulary
from tests.data import small_corpus

DRAWS = 20_000


def train(folder: Path, **fields: Any) -> Vocabulary:
    return train_vocabulary([small_corpus.CORPUS], TokenizerConfig(**fields), folder)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return train(tmp_path_factory.mktemp("bpe"), vocab_size=400)


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return train(tmp_path_factory.mktemp("unigram"), vocab_size=350, kind="unigram")


def find_word(tokenizer: Tokenizer) -> str:
    """A word of seven letters that has a few segmentations."""
    text = (word for pair in small_corpus.PAIRS for side in pair for word in side.split())
    pieces = tokenizer.list_pieces()
    return next(word for word in text if len(word) == 7 and all(c in pieces for c in word))


def draw(sampler: BpeSampler | UnigramSampler, word: str) -> Counter[tuple[int, ...]]:
    rows = sampler.sample([word] * DRAWS, np.random.default_rng(0))
    return Counter(tuple(row[:-1]) for row in rows)


def check_probabilities(
    counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]
) -> None:
    """Chi-square test; segmentations that are expected less than ten times count as one."""
    assert counts.keys() <= expected.keys()
    np.testing.assert_allclose(sum(expected.values()), 1)
    often = [ids for ids, probability in expected.items() if DRAWS * probability >= 10]
    observed = [counts[ids] for ids in often]
    probabilities = [expected[ids] for ids in often]
    if (rest := 1 - sum(probabilities)) > 1e-4:
        observed.append(DRAWS - sum(observed))
        probabilities.append(rest)
    assert len(often) > 2
    assert chisquare(observed, DRAWS * np.array(probabilities)).pvalue > 0.01


def drop_merges(tokenizer: Tokenizer, word: str, dropout: float) -> dict[tuple[int, ...], float]:
    """The probability of each segmentation by BPE-dropout: tries all sets of dropped merges."""
    pieces = tokenizer.list_pieces()
    found: dict[tuple[int, ...], float] = defaultdict(float)

    def visit(symbols: tuple[str, ...], probability: float) -> None:
        possible = [i for i in range(len(symbols) - 1) if symbols[i] + symbols[i + 1] in pieces]
        possible.sort(key=lambda i: -pieces[symbols[i] + symbols[i + 1]].score)  # stable: leftmost
        for rank, i in enumerate(possible):  # this one is kept, and the better ones are dropped
            merged = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])
            visit(merged, probability * dropout**rank * (1 - dropout))
        found[tuple(pieces[s].id for s in symbols)] += probability * dropout ** len(possible)

    visit((SPACE, *word), 1.0)
    return dict(found)


def test_bpe_dropout_has_its_exact_probabilities(bpe: Vocabulary) -> None:
    word = find_word(bpe.src)
    for dropout in (0.1, 0.5):
        counts = draw(BpeSampler(bpe.src, dropout), word)
        check_probabilities(counts, drop_merges(bpe.src, word, dropout))


def test_vocabulary_without_the_mark_of_spaces_is_not_sampled(tmp_path: Path) -> None:
    corpus = ListCorpus("repeats", [("abcdefgh" * 40, "hgfedcba" * 40)] * 20)
    tokenizer = TokenizerConfig(vocab_size=268, character_coverage=0.98)
    config = Config(data=DataConfig(subword_sampling=0.3, max_length=1000), tokenizer=tokenizer)
    vocabulary = train_vocabulary([corpus], tokenizer, tmp_path)
    assert SPACE not in vocabulary.src.list_pieces()
    sampled = sample_vocabulary(vocabulary, config, epoch=0)
    assert sampled.src.encode(["abc"]) == vocabulary.src.encode(["abc"])


def test_unigram_samples_have_their_exact_probabilities(unigram: Vocabulary) -> None:
    word, pieces = find_word(unigram.src), unigram.src.list_pieces()
    spelled = SPACE + word
    for alpha in (0.2, 0.9):
        weights: dict[tuple[int, ...], float] = {}
        for count in range(len(spelled)):
            for cuts in itertools.combinations(range(1, len(spelled)), count):
                bounds = itertools.pairwise([0, *cuts, len(spelled)])
                parts = [spelled[start:stop] for start, stop in bounds]
                if all(part in pieces for part in parts):
                    score = sum(pieces[part].score for part in parts)
                    weights[tuple(pieces[part].id for part in parts)] = math.exp(alpha * score)
        total = sum(weights.values())
        expected = {ids: weight / total for ids, weight in weights.items()}
        check_probabilities(draw(UnigramSampler(unigram.src, alpha), word), expected)


class LargestNumbers(np.random.Generator):
    """Draws the largest float32 below 1, which is 1 when it is added to a large number."""

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        return np.full(size, np.nextafter(1, 0))


def test_unigram_sampling_ends_whatever_is_drawn(unigram: Vocabulary) -> None:
    sampler = UnigramSampler(unigram.src, 0.1)
    words = [find_word(unigram.src), *"aeinst"]
    rows = sampler.sample([" ".join(words)], LargestNumbers(np.random.PCG64(0)))
    assert unigram.src.decode(rows) == [" ".join(words)]


HOSTILE = st.text(st.sampled_from("ab eiEnst.,\t\u00a0\u2581\u2028é☃\U0001f600\0"), max_size=30)


@given(st.lists(st.one_of(HOSTILE, st.sampled_from(small_corpus.PAIRS).map(" ".join)), max_size=9))
def test_without_dropout_bpe_is_that_of_sentencepiece(
    bpe: Vocabulary, sentences: list[str]
) -> None:
    sampled = sample_tokenizer(bpe.src, "bpe", 0.0, "", 1000)
    assert sampled.encode(sentences) == bpe.src.encode(sentences)


@given(st.lists(HOSTILE, min_size=1, max_size=9), st.integers(0, 1000))
def test_samples_are_segmentations_of_the_text(
    bpe: Vocabulary, unigram: Vocabulary, sentences: list[str], seed: int
) -> None:
    for tokenizer, kind, sampling in ((bpe.src, "bpe", 0.4), (unigram.src, "unigram", 0.1)):
        sampler = sample_tokenizer(tokenizer, kind, sampling, str(seed), 1000)
        sampled = sampler.encode(sentences)
        assert tokenizer.decode(sampled) == tokenizer.decode(tokenizer.encode(sentences))


def test_epochs_have_segmentations_of_their_own_the_same_in_any_order(bpe: Vocabulary) -> None:
    config = Config(data=DataConfig(subword_sampling=0.3, packed_length=256), seed=5)
    sentences = [src for src, _ in small_corpus.PAIRS[:50]]
    first = [sample_vocabulary(bpe, config, epoch).src.encode(sentences) for epoch in range(3)]
    again = [sample_vocabulary(bpe, config, epoch).src.encode(sentences) for epoch in (2, 1, 0)]
    assert first == again[::-1]
    assert first[0] != first[1] != first[2]
    one_side = DataConfig(subword_sampling=0.3, packed_length=256, sampled_sides="src")
    sampled = sample_vocabulary(bpe, Config(data=one_side), 0)
    assert (sampled.src is bpe.src, sampled.tgt is bpe.tgt) == (False, True)
    names = {sample_vocabulary(bpe, config, epoch).fingerprint() for epoch in range(3)}
    assert len(names | {bpe.fingerprint()}) == 4


def test_tag_precedes_a_sampled_segmentation(tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=400)
    vocabulary = train_vocabulary([small_corpus.CORPUS], config, tmp_path, ["<2de>"])
    data = DataConfig(subword_sampling=0.5, packed_length=256, directions=("en-de",))
    sampled = sample_vocabulary(vocabulary, Config(data=data), 0)
    tagged = sampled.with_tag("<2de>")
    text = [src for src, _ in small_corpus.PAIRS[:9]]
    tag = [*tagged.src.tag_ids]
    assert tagged.src.encode(text) == [tag + row for row in sampled.src.encode(text)]
    assert len({each.fingerprint() for each in (tagged, sampled, vocabulary)}) == 3


def test_sentences_that_are_or_become_too_long_are_not_sampled(bpe: Vocabulary) -> None:
    text = [" ".join(src for src, _ in small_corpus.PAIRS[:count]) for count in range(1, 8)]
    [*plain] = bpe.src.encode(text)
    limit = len(plain[3]) + 1
    tokenizer = sample_tokenizer(bpe.src, "bpe", 0.9, "stream", limit)
    sampled = tokenizer.encode(text)
    assert all(len(new) <= limit for new in sampled[:4])
    assert sampled[0] != plain[0]
    assert sampled[3:] == plain[3:]
