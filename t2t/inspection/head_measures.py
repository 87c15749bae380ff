"""What is measured of every head of a run: how it weighs, what it does, what it is worth.

On the first pairs of the validation split, under teacher forcing or by search.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import tqdm
from jaxtyping import Array, Int

from t2t.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.config import Config, ConfigError, MeshConfig
from t2t.data.cache import tokenize_corpus
from t2t.data.corpus import ListCorpus, Pair
from t2t.data.pipeline import make_batch
from t2t.data.sources import list_splits, open_split
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.decoding.translator import Translator
from t2t.evaluation.bleu import score_bleu
from t2t.evaluation.head_roles import Keys, Profile, RoleTally, find_rare
from t2t.model.encoder_decoder import Params
from t2t.model.heads import Head, HeadWeights, find_weights, list_heads, switch_off
from t2t.model.kinds import merge
from t2t.model.transformer import Transformer
from t2t.sharding import make_mesh
from t2t.training.validation import CorpusScorer

_ROWS = 8  # sentences whose weights are in memory together


class Sample(NamedTuple):
    """The first pairs of the validation split, and how often each sub-word occurs in all of it."""

    pairs: Sequence[Pair]
    src_counts: Counter[int]
    tgt_counts: Counter[int]


class Importance(NamedTuple):
    """What heads are worth."""

    measure: str  # loss | bleu
    whole: float  # the measure with all heads
    changes: dict[Head, float]  # how much worse it is without each


def read_sample(config: Config, vocabulary: Vocabulary, count: int, limit: int) -> Sample | None:
    """The first `count` validation pairs of at most `limit` sub-words on either side.

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
    fits = [max(map(len, ids)) <= limit for ids in zip(src, tgt, strict=True)]
    pairs = [pair for pair, fit in zip(corpus, fits, strict=True) if fit][:count]
    if not pairs:
        raise ConfigError(
            f"--importance={count}: every validation pair has more than {limit} sub-words; "
            "use --importance=0"
        )
    return Sample(pairs, *(Counter(i for ids in side for i in ids) for side in (src, tgt)))


def measure_importance(
    config: Config, translator: Translator, params: Params, sample: Sample, measure: str
) -> Importance:
    """Switches each head off in turn; on all devices, with a progress bar."""
    sources, references = zip(*sample.pairs, strict=True)
    mesh, corpus = make_mesh(MeshConfig()), ListCorpus("sample", sample.pairs)
    with jax.set_mesh(mesh), tempfile.TemporaryDirectory() as folder:
        params = translator.place(params)
        tokenized = tokenize_corpus(corpus, translator.vocabulary, Path(folder), progress=False)
        scorer = CorpusScorer(config, translator.vocabulary, tokenized, mesh)

        def compute(params: Params) -> float:
            if measure == "loss":
                return scorer.score(params).mean
            hypotheses = [found.text for found in translator.translate(params, sources)]
            language = config.data.tgt_language
            return score_bleu(hypotheses, references, language)["bleu"].value

        whole, worse = compute(params), 1 if measure == "loss" else -1
        heads = tqdm.tqdm(
            list(list_heads(config.model)), unit="head", disable=not sys.stderr.isatty()
        )
        changes = {head: worse * (compute(switch_off(params, head)) - whole) for head in heads}
    return Importance(measure, whole, changes)


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


def _describe_keys(tokenizer: Tokenizer, ids: list[int], counts: Counter[int] | None) -> Keys:
    """What the rules for roles need; `counts`: how often each sub-word occurs."""
    marked = [
        token in (BOS_ID, EOS_ID) or not any(map(str.isalnum, piece))
        for token, piece in zip(ids, tokenizer.pieces(ids), strict=True)
    ]
    separators = np.array(marked)
    if counts is None:
        return Keys(separators)
    return Keys(separators, find_rare([counts[token] for token in ids], separators))
