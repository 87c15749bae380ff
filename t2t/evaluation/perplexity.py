"""The loss of a corpus under teacher forcing, and the perplexities that follow from it."""

import dataclasses
import logging
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t2t.config.fields import Config, ConfigError
from t2t.data.batch_sharding import make_loader, prefetch, put_batch
from t2t.data.batching import BatchPlan
from t2t.data.corpus import Corpus
from t2t.data.token_cache import TokenizedCorpus, tokenize_corpus
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.likelihood import DTYPE, find_limit, warn_of_long_pairs
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.measures import Score
from t2t.model.interface import Params
from t2t.ops.build_model import describe_model
from t2t.training.step import make_eval_step

_log = logging.getLogger(__name__)

NatsAndTokens = Float[np.ndarray, "n 2"]


class CorpusLoss(NamedTuple):
    """The loss of a corpus."""

    nats: float  # sum of the negative log-likelihoods, without smoothing
    tokens: int  # target sub-words, EOS included

    @property
    def mean(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    def perplexity(self, count: float) -> float:
        """Returns exp(nats / count), where `count` is the number of tokens or of words."""
        with np.errstate(over="ignore"):  # a diverging model's perplexity is infinite
            return float(np.exp(self.nats / count))


class CorpusScorer:
    """Computes the loss of a corpus; compiles once for each of its few batch shapes."""

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        corpus: TokenizedCorpus,
        mesh: Mesh,
        max_length: int | None = None,
    ):
        """Plans the batches of the corpus.

        A pair is left out if one of its sides has more sub-words, EOS included, than `max_length`
        or the model's positions. The filters of training do not apply; an empty sentence is kept,
        as a lone EOS. Everything is computed in `DTYPE` instead of `config.model.dtype`.

        Raises:
            ConfigError: no pair is left.
        """
        # `BatchPlan` drops pairs with an empty sentence (only EOS, length 1); length 2 keeps them.
        lengths = [np.maximum(side, 2) for side in (corpus.src_lengths, corpus.tgt_lengths)]
        longer = np.maximum(*lengths)
        positions = config.model.position_limit
        limit = min(x for x in (max_length, positions, int(longer.max())) if x is not None)
        self.num_left_out = int((longer > limit).sum())
        if self.num_left_out == len(longer):
            shortest = longer.min()
            name, remedy = "max_length", f"raise it to {shortest} or more"
            if limit == positions:
                name = "model.max_positions"
                remedy = f"train a model with {name}={shortest} or more"
            raise ConfigError(
                f"none of the {len(longer)} pairs can be scored: {name}={limit}, but even the "
                f"shortest has {shortest} sub-words, EOS included; {remedy}, or split the sentences"
            )
        data = dataclasses.replace(
            config.data, max_length=limit, max_length_ratio=0.0, num_shapes=4
        )
        if positions is not None:
            # Padding takes positions, too. If the multiple divides `limit`, rounding a length up to
            # a multiple never exceeds `limit`.
            data.length_multiple = math.gcd(data.length_multiple, limit)
        sizes = vocabulary.src.vocab_size, vocabulary.tgt.vocab_size
        structure, _ = describe_model(dataclasses.replace(config.model, dtype=DTYPE), *sizes)
        self._plan = BatchPlan([(lengths[0], lengths[1])], data, seed=0)
        self._num_pairs = len(longer)
        self._loader = make_loader(self._plan, [corpus], mesh)
        self._eval_step = make_eval_step(structure)
        self._mesh = mesh

    def compile(self, params: Params) -> None:
        """Compiles the step for each batch shape, by running it once."""
        steps = {self._plan.batch(step).shape: step for step in range(self._plan.steps_per_epoch)}
        for step in steps.values():
            batch = put_batch(self._loader.batch(step), self._mesh)
            jax.block_until_ready(self._eval_step(params, batch))

    def compute_loss(self, params: Params) -> CorpusLoss:
        """Computes the loss with these parameters, which must be on the mesh."""
        return sum_losses(self.score_sentences(params))

    def score_sentences(self, params: Params) -> NatsAndTokens:
        """Computes each pair's nats and target sub-words, EOS included.

        Pairs that were left out have NaN and 0.
        """
        batches = prefetch(self._loader.iterate(0, self._plan.steps_per_epoch), self._mesh)
        sums = [self._eval_step(params, batch) for batch in batches]
        losses = np.full((self._num_pairs, 2), (math.nan, 0.0))
        for step, rows in enumerate(jax.device_get(sums)):
            planned = self._plan.batch(step)
            losses[planned.indices] = np.stack(rows, axis=-1)[planned.rows]
        return losses


def sum_losses(sentences: NatsAndTokens) -> CorpusLoss:
    """Sums the losses of all pairs that were not left out."""
    nats, tokens = sentences[sentences[:, 1] > 0].sum(axis=0)
    return CorpusLoss(float(nats), int(tokens))


class ReferencePerplexity:
    """Computes the loss of a test set's references, as far as the models can take them."""

    def __init__(self, model: RunModel, corpus: Corpus):
        """Tokenises the corpus; pairs with a longer side than `find_limit` are left out."""
        config, self._model, self._num_pairs = model.config, model, len(corpus)
        self._limit = limit = find_limit(config, model.members.position_limit)
        with tempfile.TemporaryDirectory() as folder:  # mapped files stay readable once removed
            tokenized = tokenize_corpus(corpus, model.vocabulary, Path(folder), progress=False)
        lengths = np.maximum(tokenized.src_lengths, tokenized.tgt_lengths)
        fits, longest = lengths <= limit, config.data.max_length
        warn_of_long_pairs(int(((lengths > longest) & fits).sum()), len(corpus), longest)
        pairs = zip(corpus, fits, strict=True)
        self._num_words = sum(len(tgt.split()) for (_, tgt), fit in pairs if fit)
        self._num_skipped = int((~fits).sum())
        self._score: Callable[[Params], NatsAndTokens] | None = None
        if not self._num_words:
            _log.warning("no perplexity: no pair of at most %d sub-words has a word", limit)
        elif len(model.members.configs) > 1:
            self._score = _make_ensemble_scorer(model, corpus, limit)
        else:
            scorer = CorpusScorer(config, model.vocabulary, tokenized, model.mesh, limit)
            self._score = scorer.score_sentences

    def measure(self, params: Params) -> tuple[dict[str, Score], NatsAndTokens]:
        """Computes the references' perplexity, per sub-word and per word, and each one's loss.

        There is no perplexity if the models can take none of them or their loss is not finite.
        """
        if self._score is None:
            return {}, np.full((self._num_pairs, 2), (math.nan, 0.0))
        sentences = self._score(params)
        loss, words, tokenizer = (
            sum_losses(sentences),
            self._num_words,
            self._model.config.tokenizer,
        )
        if not math.isfinite(loss.perplexity(words)):
            _log.warning("no perplexity: the model's loss is not finite, or very large")
            return {}, sentences
        definition = (
            f"teacher forcing in JAX in {DTYPE} on the "
            f"{'lower-cased' if tokenizer.lowercase else 'raw'} references, EOS included, no "
            "smoothing"
        )
        if self._num_skipped:
            definition += (
                f"; {self._num_skipped} pairs of more than {self._limit} sub-words left out"
            )
        if not tokenizer.byte_fallback:
            definition += "; an unknown piece counts as one sub-word"
        detail = f"{loss.nats:.1f} nats, {loss.tokens} sub-words, {words} words"
        vocabulary = self._model.vocabulary.fingerprint()[:8]
        counts = {
            "perplexity": (loss.tokens, f"exp(nats / sub-words), vocabulary {vocabulary}"),
            "perplexity_word": (words, "exp(nats / words separated by white space)"),
        }
        return {
            name: Score(loss.perplexity(count), f"{formula}; {definition}", detail)
            for name, (count, formula) in counts.items()
        }, sentences


def _make_ensemble_scorer(
    model: RunModel, corpus: Corpus, limit: int
) -> Callable[[Params], NatsAndTokens]:
    """Returns a function to each pair's nats and target sub-words, NaN and 0 if left out."""
    scorer = model.make_scorer(limit)

    def score(params: Params) -> NatsAndTokens:
        pairs = scorer.encode(corpus)
        found = scorer.score(params, pairs)
        fits = [max(map(len, pair)) <= limit for pair in pairs]
        return np.array(
            [
                (-float(each.sum(dtype=np.float64)), len(each)) if fit else (math.nan, 0.0)
                for each, fit in zip(found, fits, strict=True)
            ]
        )

    return score
