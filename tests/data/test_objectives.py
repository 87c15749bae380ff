"""The pairs that objectives make from texts: lengths, what is in them, and how they are drawn."""

import itertools
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t.config.fields import ConfigError, DataConfig, TokenizerConfig
from t2t.config.variants import register
from t2t.data.batch import EOS_ID, PAD_ID
from t2t.data.batch_plan import CorpusLengths
from t2t.data.objectives import (
    Corruption,
    Denoising,
    MaskedLM,
    Objective,
    Sentences,
    SpanCorruption,
    choose_objective,
    count_noise,
    count_sentinels,
    cut_randomly,
    make_keys,
    make_objective,
)
from t2t.data.tokenizer import Tokenizer, Vocabulary, train_vocabulary
from tests.data.small_corpus import CORPUS

SENTINELS = range(4, 30)
WORDS = range(30, 500)
MASK = SENTINELS[0]
NAMES = ["span_corruption", "denoising", "masked_lm"]

densities = st.floats(0.01, 0.9)
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=60), min_size=1, max_size=5)

Rows = list[list[int]]


def join(rows: Rows) -> Sentences:
    ended = [[*row, EOS_ID] for row in rows]
    ids = [*itertools.chain.from_iterable(ended)]
    return Sentences(np.array(ids, np.int32), np.array([*map(len, ended)]))


def split(sentences: Sentences) -> Rows:
    """Returns the ids of each sentence without the EOS that ends it."""
    rows = [row.tolist() for row in np.split(sentences.ids, np.cumsum(sentences.lengths))]
    assert rows.pop() == []
    assert [row.pop() for row in rows] == [EOS_ID] * len(rows)
    return rows


def make(name: str, density: float = 0.15, mean: float = 3.0) -> Corruption:
    data = DataConfig(objective=name, noise_density=density, mean_span_length=mean)
    return cast(Corruption, choose_objective(data, SENTINELS, WORDS))


def corrupt(
    objective: Corruption, rows: Rows, seed: int = 0, epoch: int = 0, first: int = 0
) -> tuple[Rows, Rows]:
    """Makes the pairs of texts with the indices from `first` on, as long as the plan says."""
    keys, texts = make_keys(seed, epoch, first + np.arange(len(rows))), join(rows)
    src, tgt = objective.corrupt(texts, keys)
    planned = objective.find_lengths((np.ones_like(texts.lengths), texts.lengths))
    np.testing.assert_array_equal(planned, (src.lengths, tgt.lengths))
    return split(src), split(tgt)


@given(texts, densities, st.floats(1, 6), st.integers(0, 99))
def test_spans_put_into_their_places_give_back_the_text(
    rows: Rows, density: float, mean: float, seed: int
) -> None:
    pairs = zip(*corrupt(make("span_corruption", density, mean), rows, seed), strict=True)
    for text, (src, tgt) in zip(rows, pairs, strict=True):
        starts = [place for place, token in enumerate(tgt) if token in SENTINELS]
        spans = [tgt[a:b] for a, b in itertools.pairwise([*starts, len(tgt)])]
        filled = {sentinel: span for sentinel, *span in spans}
        assert all(filled.values())
        assert [*filled] == [token for token in src if token in SENTINELS]
        assert [*filled] == [*SENTINELS[: len(filled)]]
        restored = itertools.chain.from_iterable(filled.get(token, [token]) for token in src)
        assert [*restored] == text
        assert not any({*two} <= {*SENTINELS} for two in itertools.pairwise(src))


@given(texts, densities, st.floats(1, 6), st.integers(0, 99))
def test_denoising_restores_the_text_behind_the_masks_of_span_corruption(
    rows: Rows, density: float, mean: float, seed: int
) -> None:
    src, tgt = corrupt(make("denoising", density, mean), rows, seed)
    spans, _ = corrupt(make("span_corruption", density, mean), rows, seed)
    assert tgt == rows
    assert src == [[MASK if token in SENTINELS else token for token in row] for row in spans]


@given(texts)
def test_rest_of_a_text_follows_its_beginning(rows: Rows) -> None:
    for text, src, tgt in zip(rows, *corrupt(make("prefix_lm"), rows), strict=True):
        assert [*src, *tgt] == text
        assert bool(src) == (len(text) > 1)
        assert bool(tgt) == bool(text)


def test_cuts_of_texts_of_all_lengths_are_everywhere() -> None:
    lengths = np.arange(20, 1020)
    src, tgt = make("prefix_lm").find_lengths((np.ones_like(lengths), lengths))
    shares, _ = np.histogram((src - 1) / (src + tgt - 2), np.linspace(0, 1, 11))
    assert 90 < shares.min() <= shares.max() < 110


@given(texts, densities, st.integers(0, 99))
def test_masked_tokens_are_restored_where_they_stand(rows: Rows, density: float, seed: int) -> None:
    pairs = zip(*corrupt(make("masked_lm", density), rows, seed), strict=True)
    for text, (src, tgt) in zip(rows, pairs, strict=True):
        chosen = [place for place, token in enumerate(tgt) if token != PAD_ID]
        assert len(chosen) == count_noise(len(text), DataConfig(noise_density=density))[0]
        for place, (token, shown, target) in enumerate(zip(text, src, tgt, strict=True)):
            assert target == (token if place in chosen else PAD_ID)
            assert place in chosen or shown == token
            assert shown == MASK or shown in WORDS


@pytest.mark.parametrize("name", NAMES)
def test_pair_depends_on_seed_epoch_and_index_alone(name: str) -> None:
    objective, rows = make(name), [[*range(30, 70)]] * 6
    (src, tgt), again = (corrupt(objective, rows, seed=1, epoch=2) for _ in range(2))
    assert (src, tgt) == again
    alone = corrupt(objective, rows[:1], seed=1, epoch=2, first=4)
    assert alone == (src[4:5], tgt[4:5])
    assert len({*map(tuple, src)}) == 6
    for other in (corrupt(objective, rows, 1, 3), corrupt(objective, rows, 2, 2)):
        assert all(one != two for one, two in zip(src, other[0], strict=True))


def test_numbers_are_those_of_earlier_versions() -> None:
    """Else a run that continues under this version would see other pairs."""
    text = [*range(30, 50)]
    [src], [tgt] = corrupt(make("span_corruption"), [text], seed=1, epoch=2, first=3)
    assert src == [*range(30, 43), 4, *range(46, 50)]
    assert tgt == [4, 43, 44, 45]
    [src], [tgt] = corrupt(make("masked_lm"), [text], seed=1, epoch=2, first=3)
    assert src == [MASK if token in (34, 44) else token for token in text]
    assert tgt == [token if token in (34, 38, 44) else PAD_ID for token in text]


def test_chosen_tokens_are_masked_replaced_or_kept_in_the_shares_of_bert() -> None:
    rows = [[*range(30, 130)]] * 200
    sources, targets = (np.array(side) for side in corrupt(make("masked_lm"), rows))
    chosen = targets != PAD_ID
    assert chosen.sum() == 200 * 15
    shown, text = sources[chosen], targets[chosen]
    shares = [np.mean(shown == MASK), np.mean(shown == text)]
    np.testing.assert_allclose(shares, [0.8, 0.1], atol=0.025)
    replaced = shown[(shown != MASK) & (shown != text)]
    assert len({*replaced.tolist()}) > 150  # of 470 words
    places = chosen.mean(axis=0)
    assert 0.04 < places.min() < places.max() < 0.3


def test_all_divisions_into_pieces_are_equally_likely() -> None:
    """Five items are cut into three pieces in six ways."""
    count = 6000
    keys = make_keys(0, 0, np.arange(count))
    pieces = cut_randomly(np.full(count, 5), np.full(count, 3), keys, 1).reshape(count, 3)
    assert (pieces.sum(axis=1) == 5).all()
    _, counts = np.unique(pieces, axis=0, return_counts=True)
    assert len(counts) == 6
    np.testing.assert_allclose(counts, 1000, rtol=0.1)


def test_text_with_more_spans_than_sentinels_has_longer_spans() -> None:
    """As validation text may be, which is not left out for its length."""
    data = DataConfig(objective="span_corruption")
    [src], [tgt] = corrupt(SpanCorruption(data, SENTINELS[:2]), [[*range(30, 130)]])
    assert [token for token in src if token in SENTINELS] == [4, 5]
    assert len(tgt) == 15 + 2


@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.5, 1.0), (0.9, 2.0)])
def test_sentinels_suffice_for_the_longest_text(density: float, mean: float) -> None:
    data = DataConfig(
        objective="span_corruption", noise_density=density, mean_span_length=mean, max_length=40
    )
    lengths = np.arange(2, 500)
    sides = SpanCorruption(data, range(1000)).find_lengths((lengths, lengths))
    fits = np.maximum(*sides) <= data.max_length
    assert count_sentinels(data) == max(count_noise(int(n) - 1, data)[1] for n in lengths[fits])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = TokenizerConfig(vocab_size=360, sentinels=3)
    return train_vocabulary([CORPUS], config, tmp_path_factory.mktemp("vocab")).tgt


def test_sentinels_are_pieces_that_no_text_becomes(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces(tokenizer.sentinel_ids) == [f"<extra_id_{n}>" for n in range(3)]
    text = "das <extra_id_0><extra_id_1> Haus"
    [ids] = tokenizer.encode([text])
    assert not {*ids} & {*tokenizer.sentinel_ids}
    assert tokenizer.decode([ids]) == [text]
    assert not {*tokenizer.word_ids} & {*tokenizer.sentinel_ids, *range(4)}
    assert len(tokenizer.word_ids) == 360 - 4 - 3


def test_vocabulary_without_enough_sentinels_is_refused(tokenizer: Tokenizer) -> None:
    data = DataConfig(objective="span_corruption", max_length=256)
    vocabulary = Vocabulary(tokenizer, tokenizer)
    with pytest.raises(ConfigError, match=r"needs 14 sentinels, .* has 3; .* choose another"):
        make_objective(data, vocabulary)
    kinds = {"masked_lm": MaskedLM, "denoising": Denoising, "lm": Objective}
    for name, kind in kinds.items():
        assert type(make_objective(DataConfig(objective=name), vocabulary)) is kind


@pytest.mark.usefixtures("own_variants")
@pytest.mark.parametrize(
    ("shorter", "end", "fault"),
    [(0, EOS_ID, ""), (1, EOS_ID, "its find_lengths says"), (0, 5, "end in EOS")],
)
def test_registered_objective_that_breaks_its_plan_is_refused(
    tokenizer: Tokenizer, shorter: int, end: int, fault: str
) -> None:

    @register("data.objective", "copy")
    class Copy(Corruption):
        """Target and source are the text, as in an autoencoder."""

        def __init__(self, data: DataConfig, *_: object):
            super().__init__(data)

        def find_lengths(self, sides: CorpusLengths) -> CorpusLengths:
            return sides[1], sides[1] - shorter

        def corrupt(self, texts: Sentences, keys: object) -> tuple[Sentences, Sentences]:
            del keys
            return texts, texts._replace(ids=np.maximum(texts.ids, end))

    data = DataConfig(objective="copy")
    if not fault:
        assert isinstance(make_objective(data, Vocabulary(tokenizer, tokenizer)), Copy)
        return
    with pytest.raises(ConfigError, match=rf"data\.objective='copy': .*{fault}"):
        make_objective(data, Vocabulary(tokenizer, tokenizer))
