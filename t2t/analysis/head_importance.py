"""What is measured of every head of a run: how it weighs, what it does, what it is worth.

On pairs of the validation split that are drawn by seed, under teacher forcing or by search.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import tqdm
from jaxtyping import Array, Float, Int

from t2t.analysis.head_roles import AttendedTokens, Profile, RoleTally, find_rare
from t2t.analysis.head_weights import Head, HeadWeights, find_weights, list_heads, switch_off
from t2t.config.fields import Config, ConfigError, MeshConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.data.corpus import ListCorpus, Pair
from t2t.data.corpus_sources import list_splits, open_split
from t2t.data.loader import make_batch
from t2t.data.token_cache import tokenize_corpus
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.decoding.translator import Translator
from t2t.evaluation.scores import make_measure
from t2t.evaluation.significance import (
    ScoreOf,
    draw_sentences,
    mean_nats,
    measure_sentences,
    sacrebleu_score,
)
from t2t.model.build import merge
from t2t.model.interface import Params
from t2t.model.transformer import Transformer
from t2t.runtime.mesh import make_mesh
from t2t.training.validation import CorpusScorer

_ROWS = 8  # sentences that are computed together

SentenceStatistics = Float[np.ndarray, "n _"]  # of each sentence: what a score is made of


class Sample(NamedTuple):
    """Pairs of the validation split, and how often each sub-word occurs in all of it."""

    pairs: Sequence[Pair]
    drawn_from: int  # pairs that are short enough
    seed: int
    src_counts: Counter[int]
    tgt_counts: Counter[int]


class Change(NamedTuple):
    """The increase of the loss, or decrease of BLEU, when one head is switched off."""

    value: float
    interval: tuple[float, float]  # 95%, over sentences


class Importance(NamedTuple):
    """What heads are worth."""

    measure: str  # loss | bleu
    whole: float  # the measure with all heads
    changes: dict[Head, Change]


def read_sample(
    config: Config, vocabulary: Vocabulary, count: int, limit: int, seed: int = 0
) -> Sample | None:
    """Draws `count` validation pairs of at most `limit` sub-words on either side.

    All of them where there are no more; without replacement, in the order of the corpus.

    Raises:
        ConfigError, DataError: there are none.
    """
    if count < 0:
        raise ConfigError(f"--importance={count} must not be negative; 0 leaves it out")
    if count == 0:
        return None
    if "validation" not in list_splits(config.data):
        raise ConfigError(
            f"--importance={count} needs a validation split, and this run has none; "
            "use --importance=0"
        )
    corpus = list(open_split(config.data, "validation"))
    src, tgt = encode_pairs(vocabulary, corpus)
    fits = [
        pair for pair, *ids in zip(corpus, src, tgt, strict=True) if max(map(len, ids)) <= limit
    ]
    if not fits:
        raise ConfigError(
            f"--importance={count}: every validation pair has more than {limit} sub-words; "
            "use --importance=0"
        )
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(fits))[:count])
    counts = [Counter(i for ids in side for i in ids) for side in (src, tgt)]
    return Sample([fits[i] for i in chosen], len(fits), seed, *counts)


def measure_importance(
    config: Config, translator: Translator, params: Params, sample: Sample, measure: str
) -> Importance:
    """Switches each head off in turn, with a progress bar.

    The interval is a bootstrap over the sample's sentences, with and without the head on the same
    ones: it says what other sentences would give, not what another seed of training would.
    """
    if measure == "loss":
        compute, score = _make_loss(config, translator, sample.pairs)
    else:
        compute, score = _make_bleu(config, translator, sample.pairs)
    whole, sign = compute(params), 1 if measure == "loss" else -1
    heads = tqdm.tqdm(list(list_heads(config.model)), unit="head", disable=not sys.stderr.isatty())
    without = {head: compute(switch_off(params, head)) for head in heads}
    changes = estimate_changes(whole, without, score)
    signed = {
        head: Change(sign * value, (min(sign * low, sign * high), max(sign * low, sign * high)))
        for head, (value, (low, high)) in changes.items()
    }
    return Importance(measure, score(whole.sum(axis=0)), signed)


def estimate_changes(
    whole: SentenceStatistics, without: Mapping[Head, SentenceStatistics], score: ScoreOf
) -> dict[Head, Change]:
    """The measure without each head less that with all, with paired bootstrap intervals.

    Simulated, a 95% interval from 100 sentences holds the truth 94% of the time, one from 20 92%.
    """
    drawn = draw_sentences(len(whole))

    def resample(statistics: SentenceStatistics) -> Float[np.ndarray, "R"]:
        return np.array([score(sums) for sums in drawn @ statistics])

    before, value = resample(whole), score(whole.sum(axis=0))
    changes = {}
    for head, statistics in without.items():
        low, high = np.percentile(resample(statistics) - before, [2.5, 97.5])
        change = score(statistics.sum(axis=0)) - value
        changes[head] = Change(change, (float(low), float(high)))
    return changes


def _make_loss(
    config: Config, translator: Translator, pairs: Sequence[Pair]
) -> tuple[Callable[[Params], SentenceStatistics], ScoreOf]:
    """(nats, sub-words) of each sentence from parameters; their quotient."""
    mesh = make_mesh(MeshConfig())
    with tempfile.TemporaryDirectory() as folder:  # what is mapped outlives it
        corpus = ListCorpus("sample", pairs)
        tokenized = tokenize_corpus(corpus, translator.vocabulary, Path(folder), progress=False)
    scorer = CorpusScorer(config, translator.vocabulary, tokenized, mesh)

    def compute(params: Params) -> SentenceStatistics:
        with jax.set_mesh(mesh):
            return scorer.score_sentences(translator.place(params))

    return compute, mean_nats


def _make_bleu(
    config: Config, translator: Translator, pairs: Sequence[Pair]
) -> tuple[Callable[[Params], SentenceStatistics], ScoreOf]:
    """SacreBLEU's statistics of each sentence from parameters; the BLEU of their sums."""
    sources, references = zip(*pairs, strict=True)
    measure = make_measure("bleu", config.data.tgt_language)
    mesh = make_mesh(MeshConfig())

    def compute(params: Params) -> SentenceStatistics:
        with jax.set_mesh(mesh):
            found = translator.translate(translator.place(params), sources)
        counts = measure_sentences(measure, [[each.text for each in found]], references)
        of_one_run: SentenceStatistics = counts[0]
        return of_one_run

    return compute, sacrebleu_score(measure.metric)


def weigh_pairs(
    translator: Translator, params: Params, pairs: Sequence[Pair]
) -> Iterator[HeadWeights]:
    """The weights for each pair, N H T S without padding; one program serves all of them."""
    vocabulary = translator.vocabulary

    @jax.jit
    def run(params: Params, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"]) -> HeadWeights:
        model = merge(translator.structure, params)
        assert isinstance(model, Transformer)
        return find_weights(model, src, tgt_in)

    src, tgt = encode_pairs(vocabulary, pairs)
    rows = min(_ROWS, len(pairs))
    src_width, tgt_width = (max(map(len, side)) for side in (src, tgt))
    for start in range(0, len(pairs), rows):
        sources, targets = src[start : start + rows], tgt[start : start + rows]
        batch = make_batch(_pad(sources, rows, src_width), _pad(targets, rows, tgt_width))
        found: HeadWeights = jax.device_get(run(params, batch.src, batch.tgt_in))
        for row, (s, t) in enumerate(zip(map(len, sources), map(len, targets), strict=True)):
            encoder, decoder, cross = (stack[:, row] for stack in found)
            yield HeadWeights(encoder[..., :s, :s], decoder[..., :t, :t], cross[..., :t, :s])


def encode_pairs(
    vocabulary: Vocabulary, pairs: Sequence[Pair]
) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of the sources and of the targets, each ending in EOS."""
    sources, targets = zip(*pairs, strict=True)
    return vocabulary.src.encode(sources), vocabulary.tgt.encode(targets)


def _pad(sentences: Sequence[list[int]], rows: int, width: int) -> Int[np.ndarray, "B T"]:
    """Ids in the first rows, padding behind them."""
    padded = np.full((rows, width), PAD_ID, np.int32)
    for row, ids in enumerate(sentences):
        padded[row, : len(ids)] = ids
    return padded


def profile_heads(
    translator: Translator, params: Params, sample: Sample | None, shown: Pair
) -> dict[str, list[list[Profile]]]:
    """The profiles of each stack's heads, over the sample or, without one, over what is shown."""
    vocabulary, pairs = translator.vocabulary, sample.pairs if sample else [shown]
    tallies = {stack: RoleTally(stack) for stack in HeadWeights._fields}
    encoded = zip(*encode_pairs(vocabulary, pairs), strict=True)
    for (src, tgt), weights in zip(encoded, weigh_pairs(translator, params, pairs), strict=True):
        sources = _describe_keys(vocabulary.src, src, sample and sample.src_counts)
        targets = _describe_keys(vocabulary.tgt, [BOS_ID, *tgt[:-1]], sample and sample.tgt_counts)
        for stack, keys in zip(HeadWeights._fields, (sources, targets, sources), strict=True):
            tallies[stack].add(getattr(weights, stack), keys)
    return {stack: tally.profiles() for stack, tally in tallies.items()}


def _describe_keys(
    tokenizer: Tokenizer, ids: list[int], counts: Counter[int] | None
) -> AttendedTokens:
    """What the rules for roles need; `counts`: how often each sub-word occurs."""
    marked = [
        token in (BOS_ID, EOS_ID) or not any(map(str.isalnum, piece))
        for token, piece in zip(ids, tokenizer.pieces(ids), strict=True)
    ]
    separators = np.array(marked)
    if counts is None:
        return AttendedTokens(separators)
    return AttendedTokens(separators, find_rare([counts[token] for token in ids], separators))
