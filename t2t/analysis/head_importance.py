"""Measures every head of a run: its attention weights, its role and its importance.

The measurements are on pairs of the validation split that are drawn by a seed, under teacher
forcing or, for BLEU, with beam search.
"""

import functools
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jaxtyping import Float

from t2t.analysis.head_roles import AttendedTokens, Profile, RoleTally, find_rare
from t2t.config.fields import Config, ConfigError, MeshConfig, ModelConfig
from t2t.config.measure_rules import choose_measure
from t2t.data.batch import BOS_ID, pad_sentences
from t2t.data.corpus import ListCorpus, Pair
from t2t.data.corpus_sources import list_splits, open_split
from t2t.data.loader import make_batch
from t2t.data.token_cache import tokenize_corpus
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.decoding.attention_weights import HeadWeights, capture_weights
from t2t.decoding.translator import Translator
from t2t.evaluation.measure import Measure, ScoreFunction, TestSet, divide, draw_sentences
from t2t.evaluation.text_measures import make_measure
from t2t.evaluation.validation_scores import CorpusScorer
from t2t.model.parameters import Params, find_name
from t2t.runtime.mesh import make_mesh

_BATCH_SIZE = 8  # sentences whose weights are computed together
# The output projections W^O of each stack, by layer.
_OUTPUTS = {
    "encoder": "encoder.{}.self_attention.output.weight",
    "decoder": "decoder.{}.self_attention.output.weight",
    "cross": "decoder.{}.cross_attention.output.weight",
}

_capture = jax.jit(capture_weights, static_argnums=0)

SentenceStatistics = Float[np.ndarray, "n _"]  # n sentences: the counts a score is computed from


class Head(NamedTuple):
    """The position of a head in the model; layers and heads are counted from 0."""

    stack: str  # encoder | decoder | cross
    layer: int
    number: int


class Sample(NamedTuple):
    """Pairs drawn from the validation split, and the sub-word counts of the whole split."""

    pairs: Sequence[Pair]
    drawn_from: int  # number of pairs that are short enough
    left_out: int  # number of the others
    seed: int
    src_counts: Counter[int]
    tgt_counts: Counter[int]

    def __str__(self) -> str:
        drawn = f"{len(self.pairs)} of {self.drawn_from} sentences of the validation split"
        longer = f" ({self.left_out} longer ones are left out)" if self.left_out else ""
        return f"{drawn}{longer}, drawn with seed {self.seed}"


class Change(NamedTuple):
    """The change of the measure when one head is switched off."""

    value: float
    interval: tuple[float, float]  # 95%, over sentences


class Importance(NamedTuple):
    """The importance of all heads: how much worse the measure is without each."""

    measure: str  # loss | bleu | bleu_lowercase
    sample: Sample  # the pairs on which it was measured
    baseline: float  # the measure with all heads
    changes: dict[Head, Change]  # increase of the loss or decrease of BLEU


def list_heads(config: ModelConfig) -> Iterator[Head]:
    """Yields all heads of a Transformer, stack by stack in the order of `HeadWeights`."""
    encoder_depth, decoder_depth = config.depth
    depths = (encoder_depth, decoder_depth, decoder_depth)
    for stack, depth in zip(HeadWeights._fields, depths, strict=True):
        for layer in range(depth):
            yield from (Head(stack, layer, number) for number in range(config.num_heads))


def switch_off(params: Params, head: Head) -> Params:
    """Returns parameters that switch the head off: its rows of W^O are zero."""
    output = _OUTPUTS[head.stack].format(head.layer)

    def change(path: tuple[object, ...], leaf: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
        if find_name(path) != output:
            return leaf
        kept = np.arange(len(leaf)) != head.number  # a mask, since the heads may be sharded
        return jnp.where(kept[:, None, None], leaf, 0)

    changed: Params = jax.tree.map_with_path(change, params)
    return changed


def read_sample(
    config: Config, vocabulary: Vocabulary, count: int, limit: int, seed: int = 0
) -> Sample | None:
    """Draws up to `count` validation pairs of at most `limit` sub-words on either side.

    They are drawn without replacement and returned in the order of the corpus. Returns None if
    `count` is 0.

    Raises:
        ConfigError, DataError: `count` is negative, or there is no such pair.
    """
    if count == 0:
        return None
    if "validation" not in list_splits(config.data):
        raise ConfigError(
            f"--importance={count} needs a validation split, but this run has none; "
            "use --importance=0"
        )
    corpus = list(open_split(config.data, "validation"))
    encoded = vocabulary.encode_pairs(corpus)
    fits = [pair for pair, ids in zip(corpus, encoded, strict=True) if max(map(len, ids)) <= limit]
    if not fits:
        raise ConfigError(
            f"--importance={count}: every validation pair has more than {limit} sub-words; "
            "use --importance=0"
        )
    chosen = np.sort(np.random.default_rng(seed).permutation(len(fits))[:count])
    counts = [Counter(i for ids in side for i in ids) for side in zip(*encoded, strict=True)]
    left_out = len(corpus) - len(fits)
    return Sample([fits[i] for i in chosen], len(fits), left_out, seed, *counts)


def measure_importance(
    config: Config, translator: Translator, params: Params, sample: Sample, measure: str
) -> Importance:
    """Measures the importance of each head by switching it off, with a progress bar.

    `measure` is loss or bleu; a model of lower-case text gets `bleu_lowercase`.
    The intervals are from a paired bootstrap over the sample's sentences: they cover the choice of
    the sentences, not the seed of the training.
    """
    mesh = make_mesh(MeshConfig())
    compute: Callable[[Params], SentenceStatistics]
    score: ScoreFunction
    if measure == "loss":
        sign, score = 1, divide
        with tempfile.TemporaryDirectory() as folder:  # mapped files stay readable once removed
            corpus = ListCorpus("sample", sample.pairs)
            tokenized = tokenize_corpus(corpus, translator.vocabulary, Path(folder))
        scorer = CorpusScorer(config, translator.vocabulary, tokenized, mesh)
        compute = scorer.score_sentences
    else:
        measure = choose_measure(None, lowercase=config.tokenizer.lowercase)
        chosen = make_measure(measure, config.data.tgt_language)
        sign, score = -1, chosen.aggregate
        compute = functools.partial(_translate_and_count, translator, chosen, sample.pairs)
    heads = tqdm.tqdm(list(list_heads(config.model)), unit="head", disable=not sys.stderr.isatty())
    with jax.set_mesh(mesh):
        placed = translator.members.place(params, *translator.vocabulary.sizes)
        baseline = compute(placed)
        without = {head: compute(switch_off(placed, head)) for head in heads}
    changes = {
        head: Change(sign * value, (min(sign * low, sign * high), max(sign * low, sign * high)))
        for head, (value, (low, high)) in estimate_changes(baseline, without, score).items()
    }
    return Importance(measure, sample, score(baseline.sum(axis=0)), changes)


def _translate_and_count(
    translator: Translator, measure: Measure, pairs: Sequence[Pair], params: Params
) -> SentenceStatistics:
    """Returns the measure's statistics of each sentence's translation."""
    sources, references = zip(*pairs, strict=True)
    texts = [found.text for found in translator.translate(params, sources)]
    return measure.collect(texts, TestSet(sources, [references]))


def estimate_changes(
    baseline: SentenceStatistics, without: Mapping[Head, SentenceStatistics], score: ScoreFunction
) -> dict[Head, Change]:
    """Estimates score(without the head) - score(baseline) for each head, with 95% intervals.

    The intervals are from a paired bootstrap. In simulations they contain the true value in 94% of
    cases with 100 sentences, and in 92% with 20.
    """
    drawn = draw_sentences(len(baseline))

    def resample(statistics: SentenceStatistics) -> Float[np.ndarray, "R"]:
        return np.array([score(sums) for sums in drawn @ statistics])

    before, value = resample(baseline), score(baseline.sum(axis=0))
    changes = {}
    for head, statistics in without.items():
        low, high = np.percentile(resample(statistics) - before, [2.5, 97.5])
        change = score(statistics.sum(axis=0)) - value
        changes[head] = Change(change, (float(low), float(high)))
    return changes


def compute_pair_weights(
    translator: Translator, params: Params, pairs: Sequence[Pair], *, pad: bool = False
) -> Iterator[HeadWeights]:
    """Yields the attention weights of each pair, N H T S without padding.

    All pairs are padded to one shape, so there is one compilation. With `pad` both lengths are
    padded to a power of two, so later calls with pairs of similar lengths compile nothing.
    """
    encoded = translator.vocabulary.encode_pairs(pairs)
    rows = min(_BATCH_SIZE, len(pairs))
    src_width, tgt_width = (max(map(len, side)) for side in zip(*encoded, strict=True))
    if pad:
        longest = max(16, src_width, tgt_width)
        src_width = tgt_width = 2 ** (longest - 1).bit_length()
    for start in range(0, len(pairs), rows):
        sources, targets = zip(*encoded[start : start + rows], strict=True)
        batch = make_batch(
            pad_sentences(sources, rows, src_width), pad_sentences(targets, rows, tgt_width)
        )
        found: HeadWeights = jax.device_get(
            _capture(translator.structure, params, batch.src, batch.tgt_in)
        )
        for row, (s, t) in enumerate(zip(map(len, sources), map(len, targets), strict=True)):
            encoder, decoder, cross = (stack[:, row] for stack in found)
            yield HeadWeights(encoder[..., :s, :s], decoder[..., :t, :t], cross[..., :t, :s])


def profile_heads(
    translator: Translator, params: Params, sample: Sample | None, shown: Pair
) -> dict[str, list[list[Profile]]]:
    """Returns the profiles of each stack's heads, by layer and head.

    They are means over the sample, or without a sample over the pair `shown`.
    """
    vocabulary, pairs = translator.vocabulary, sample.pairs if sample else [shown]
    tallies = {stack: RoleTally(stack) for stack in HeadWeights._fields}
    computed = compute_pair_weights(translator, params, pairs)
    for (src, tgt), weights in zip(vocabulary.encode_pairs(pairs), computed, strict=True):
        sources = describe_keys(vocabulary.src, src, sample and sample.src_counts)
        targets = describe_keys(vocabulary.tgt, [BOS_ID, *tgt[:-1]], sample and sample.tgt_counts)
        for stack, keys in zip(HeadWeights._fields, (sources, targets, sources), strict=True):
            tallies[stack].add(getattr(weights, stack), keys)
    return {stack: tally.profiles() for stack, tally in tallies.items()}


def describe_keys(
    tokenizer: Tokenizer, ids: list[int], counts: Counter[int] | None
) -> AttendedTokens:
    """Returns the separators and, with the `counts` of all sub-words, the rare tokens of `ids`."""
    marked = [
        tokenizer.is_control(token) or not any(unicodedata.category(c)[0] in "LMN" for c in piece)
        for token, piece in zip(ids, tokenizer.pieces(ids), strict=True)
    ]
    separators = np.array(marked)
    if counts is None:
        return AttendedTokens(separators)
    return AttendedTokens(separators, find_rare([counts[token] for token in ids], separators))
