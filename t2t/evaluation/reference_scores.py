"""The log-probability of a test set's references, and the perplexities that follow from it."""

import logging
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from t2t.config.fields import Config
from t2t.data.corpus import Corpus
from t2t.data.token_cache import tokenize_corpus
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.scoring import PairScorer, warn_of_long_pairs
from t2t.evaluation.scores import Score
from t2t.model.interface import Params
from t2t.ops.build_model import Members
from t2t.training.validation import DTYPE, CorpusScorer, NatsAndTokens, sum_losses

_log = logging.getLogger(__name__)


class ReferenceScorer:
    """Computes the loss of the references that the models can take."""

    def __init__(
        self,
        config: Config,
        members: Members,
        vocabulary: Vocabulary,
        corpus: Corpus,
        mesh: Mesh,
        limit: int,
    ):
        """`limit` is that of a side of a pair, in sub-words with EOS; longer pairs are left out."""
        self._config, self._vocabulary, self._limit = config, vocabulary, limit
        self._num_pairs = len(corpus)
        with tempfile.TemporaryDirectory() as folder:  # mapped files stay readable once removed
            tokenized = tokenize_corpus(corpus, vocabulary, Path(folder), progress=False)
        lengths = np.maximum(tokenized.src_lengths, tokenized.tgt_lengths)
        fits, longest = lengths <= limit, config.data.max_length
        warn_of_long_pairs(int(((lengths > longest) & fits).sum()), len(corpus), longest)
        pairs = zip(corpus, fits, strict=True)
        self._num_words = sum(len(tgt.split()) for (_, tgt), fit in pairs if fit)
        self._num_skipped = int((~fits).sum())
        self._score: Callable[[Params], NatsAndTokens] | None = None
        if not self._num_words:
            _log.warning("no perplexity: no pair of at most %d sub-words has a word", limit)
        elif len(members.configs) > 1:
            self._score = _make_ensemble_scorer(config, members, vocabulary, corpus, limit)
        else:
            self._score = CorpusScorer(config, vocabulary, tokenized, mesh, limit).score_sentences

    def measure(self, params: Params) -> tuple[dict[str, Score], NatsAndTokens]:
        """Computes the references' perplexity, per sub-word and per word, and each one's loss.

        There is no perplexity if the models can take none of them or their loss is not finite.
        """
        if self._score is None:
            return {}, np.full((self._num_pairs, 2), (math.nan, 0.0))
        sentences = self._score(params)
        loss, words = sum_losses(sentences), self._num_words
        if not math.isfinite(loss.perplexity(words)):
            _log.warning("no perplexity: the model's loss is not finite, or very large")
            return {}, sentences
        text = "lower-cased" if self._config.tokenizer.lowercase else "raw"
        definition = (
            f"teacher forcing in JAX in {DTYPE} on the {text} references, "
            "EOS included, no smoothing"
        )
        if self._num_skipped:
            definition += (
                f"; {self._num_skipped} pairs of more than {self._limit} sub-words left out"
            )
        if not self._config.tokenizer.byte_fallback:
            definition += "; an unknown piece counts as one sub-word"
        detail = f"{loss.nats:.1f} nats, {loss.tokens} sub-words, {words} words"
        vocabulary = self._vocabulary.fingerprint()[:8]
        counts = {
            "perplexity": (loss.tokens, f"exp(nats / sub-words), vocabulary {vocabulary}"),
            "perplexity_word": (words, "exp(nats / words separated by white space)"),
        }
        return {
            name: Score(loss.perplexity(count), f"{formula}; {definition}", detail)
            for name, (count, formula) in counts.items()
        }, sentences


def _make_ensemble_scorer(
    config: Config, members: Members, vocabulary: Vocabulary, corpus: Corpus, limit: int
) -> Callable[[Params], NatsAndTokens]:
    """A function that returns each pair's nats and target sub-words, NaN and 0 if left out."""
    scorer = PairScorer(members, vocabulary, config.decoding.batch_size, limit)

    def score(params: Params) -> NatsAndTokens:
        src = vocabulary.src.encode([src for src, _ in corpus])
        tgt = vocabulary.tgt.encode([tgt for _, tgt in corpus])
        pairs = list(zip(src, tgt, strict=True))
        found = scorer.score(params, pairs)
        fits = [max(map(len, pair)) <= limit for pair in pairs]
        return np.array(
            [
                (-float(each.sum(dtype=np.float64)), len(each)) if fit else (math.nan, 0.0)
                for each, fit in zip(found, fits, strict=True)
            ]
        )

    return score
