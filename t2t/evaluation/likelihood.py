"""Likelihood: log-probabilities of given translations under teacher forcing, and perplexity."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t2t.config.fields import Config, ConfigError
from t2t.data.batch import batch_pairs, group_by_length, pad_sentences
from t2t.data.sentences import is_missing, split_sentences
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.corpus_loss import DTYPE, NatsAndTokens, compute_perplexity, sum_losses
from t2t.evaluation.measure import Score
from t2t.model.parameters import Params, merge
from t2t.ops.build_model import Members
from t2t.runtime.mesh import reshard, spec
from t2t.runtime.saved_programs import SavedPrograms

_log = logging.getLogger(__name__)

_MAX_LOGITS = 2**26  # elements of a batch's logits: 256 MiB
_LENGTH = 64  # padded length up to which batches have all their rows
TEXT_MODELS = ("lm", "masked_lm")  # whose models give a text by itself a score


def check_scores(config: Config) -> None:
    """Raises ConfigError if the model gives no probability to a target, token by token."""
    objective = config.data.objective
    if objective == "masked_lm" or config.model.kind == "encoder_only":
        raise ConfigError(
            f"data.objective={objective!r} trains a model that predicts masked sub-words, not a "
            "whole target, so a pair has no probability; t2t.evaluate computes their perplexity"
        )


def count_several(config: Config, vocabulary: Vocabulary, sources: Sequence[str]) -> int:
    """Counts the sources whose sentences a search translates one by one."""
    if not vocabulary.splits_sentences(config.decoding):
        return 0
    return sum(len(split_sentences(source)) > 1 for source in sources)


def warn_of_whole_pairs(longer: int, several: int, total: int, longest: int) -> None:
    """Warns of pairs that are scored whole, unlike those of training or of a search.

    `longer` is the number of pairs longer than `longest`, `several` that of `count_several`.
    """
    if longer:
        _log.warning(
            "%d of %d pairs have a side of more than data.max_length=%d sub-words with EOS; they "
            "are scored whole, though training had none as long",
            longer, total, longest,
        )  # fmt: skip
    if several:
        _log.warning(
            "%d of %d pairs have several sentences; they are scored whole, though a search "
            "translates the sentences one by one (decoding.split_sentences)",
            several, total,
        )  # fmt: skip


class PairScorer:
    """Computes log P of each token of translations; compiles once for each batch shape."""

    def __init__(
        self,
        members: Members,
        vocabulary: Vocabulary,
        batch_size: int,
        limit: int = 2**30,
        programs: SavedPrograms | None = None,
    ):
        """Computes in float32, whatever `model.dtype` is; `limit` bounds a side, EOS included.

        The identity of `programs`, if they have one, covers the models and the vocabulary's size.
        """
        self.vocabulary, size = vocabulary, vocabulary.tgt.vocab_size
        members = members.with_dtype(DTYPE)
        structure, _ = members.abstract(*vocabulary.sizes)
        self._programs = programs or SavedPrograms()
        self._batch_size = min(batch_size, max(1, _MAX_LOGITS // (_LENGTH * size)))
        self.limit = min(limit, members.position_limit or limit)  # of a side, EOS included

        def compute_logits(
            params: Params, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"]
        ) -> Float[Array, "B T V"]:
            logits: Float[Array, "B T V"] = merge(structure, params)(src, tgt_in)
            return logits.astype(jnp.float32)

        def score(
            params: Params, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], tgt: Any
        ) -> Float[Array, "B T"]:
            logits = reshard(compute_logits(params, src, tgt_in), "batch", None, None)
            picked = jnp.take_along_axis(logits, tgt[..., None], axis=-1)[..., 0]
            log_probs = picked - jax.nn.logsumexp(logits, axis=-1)
            return reshard(log_probs, None)

        self.compute_logits, self._score = jax.jit(compute_logits), score

    def score(
        self, params: Params, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> list[Float[np.ndarray, "_"]]:
        """Computes log P of each target token, for pairs (source, target) of ids ending in EOS.

        The parameters are on the current mesh. A pair with a side longer than `limit` has NaN.
        """
        return self.start(params, pairs)()

    def start(
        self, params: Params, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> Callable[[], list[Float[np.ndarray, "_"]]]:
        """Lets the device compute `score`; the function that is returned waits for it."""
        started = []
        for chosen, batch in batch_pairs(pairs, self.limit, self._batch_size):
            placed = (jax.device_put(x, spec("batch", None)) for x in batch)
            started.append((chosen, self._programs.run(self._score, params, *placed, closure=())))

        def wait() -> list[Float[np.ndarray, "_"]]:
            scores = [np.full(len(tgt), np.nan, np.float32) for _, tgt in pairs]
            for chosen, found in started:
                for n, row in zip(chosen, np.asarray(found), strict=False):
                    scores[n] = row[: len(scores[n])]
            return scores

        return wait


class MaskedScorer:
    """Computes log P of masked sub-words; compiles once for each batch shape."""

    def __init__(
        self, members: Members, vocabulary: Vocabulary, batch_size: int, limit: int = 2**30
    ):
        """As `PairScorer`, for one model of masked sub-words."""
        members = members.with_dtype(DTYPE)
        structure, _ = members.abstract(*vocabulary.sizes)
        self.vocabulary, self._batch_size = vocabulary, batch_size
        [self.mask] = vocabulary.tgt.sentinel_ids[:1]  # as in training (t2t/data/objectives.py)
        self.limit = min(limit, members.position_limit or limit)  # of a text, EOS included

        def compute(
            params: Params, src: Int[Array, "B S"], places: Int[Array, "B 1"]
        ) -> Float[Array, "B V"]:
            model = merge(structure, params)
            hidden = jnp.take_along_axis(model.encode(src)[0], places[..., None], axis=1)
            logits = reshard(model.compute_logits(hidden), None)[:, 0]
            return jax.nn.log_softmax(logits.astype(jnp.float32))

        self._compute = jax.jit(compute)

    def predict(
        self, params: Params, masks: Sequence[tuple[list[int], int]]
    ) -> Iterator[tuple[int, Float[np.ndarray, "V"]]]:
        """Yields the index of each (text, place), and log P of all sub-words at this masked place.

        Texts end in EOS, and have at most `limit` ids.
        """
        lengths = [len(ids) for ids, _ in masks]
        for length, rows, chosen in group_by_length(lengths, self.limit, self._batch_size):
            texts, places = [[*masks[n][0]] for n in chosen], np.zeros((rows, 1), np.int32)
            for row, n in enumerate(chosen):
                places[row] = masks[n][1]
                texts[row][masks[n][1]] = self.mask
            batch = pad_sentences(texts, rows, length), places
            placed = (jax.device_put(x, spec("batch", None)) for x in batch)
            yield from zip(chosen, np.asarray(self._compute(params, *placed)), strict=False)

    def score(
        self, params: Params, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> list[Float[np.ndarray, "_"]]:
        """Computes the terms of the pseudo-log-likelihood of the targets (Salazar et al. 2020).

        They are log P of each sub-word where it alone is masked. EOS has none, since no training
        predicts it. Sources are not used. A text longer than `limit` has NaN.
        """
        texts = [tgt for _, tgt in pairs]
        scores = [np.full(len(ids) - 1, np.nan, np.float32) for ids in texts]
        fits = [n for n, ids in enumerate(texts) if len(ids) <= self.limit]
        masks = [(n, place) for n in fits for place in range(len(scores[n]))]
        for index, log_probs in self.predict(params, [(texts[n], place) for n, place in masks]):
            n, place = masks[index]
            scores[n][place] = log_probs[texts[n][place]]
        return scores


class ReferencePerplexity:
    """Computes the loss of a test set's references, as far as the models can take them."""

    def __init__(self, scorer: PairScorer, config: Config, texts: Sequence[tuple[str, str]]):
        """Tokenises pairs of texts, of which some are left out.

        These are pairs with a side over `scorer.limit`, and those whose reference is missing.
        """
        self._scorer, self._tokenizer = scorer, config.tokenizer
        self._pairs = scorer.vocabulary.encode_pairs(texts)
        # Of source and reference, EOS included.
        self.lengths = np.array([[*map(len, pair)] for pair in self._pairs]).reshape(-1, 2)
        lengths, longest = self.lengths.max(axis=1), scorer.limit
        missing = np.array([is_missing(*pair) for pair in texts], bool)
        too_long = (lengths > longest) & ~missing
        self._kept, self._left_out = ~missing & ~too_long, ""  # the latter of definitions
        for rows, reason, name in (
            (
                too_long,
                f"pairs have a side of more than {longest} sub-words with EOS",
                f"pairs of more than {longest} sub-words",
            ),
            (missing, "references are empty, but not their sources", "missing references"),
        ):
            if count := int(rows.sum()):
                _log.warning(
                    "%d of %d %s; the perplexity and verdicts by log-probability leave them out",
                    count, len(rows), reason,
                )  # fmt: skip
                self._left_out += f"; {count} {name} left out"
        kept = [pair for pair, is_kept in zip(texts, self._kept, strict=True) if is_kept]
        self._several = count_several(config, scorer.vocabulary, [src for src, _ in kept])
        trained = config.data.max_length
        longer = int((lengths[self._kept] > trained).sum())
        warn_of_whole_pairs(longer, self._several, len(lengths), trained)
        self._num_words = sum(len(tgt.split()) for _, tgt in kept)
        if not self._num_words:
            _log.warning("no perplexity: no pair of at most %d sub-words has a word", scorer.limit)

    def start(self, params: Params) -> Callable[[], tuple[dict[str, Score], NatsAndTokens]]:
        """Lets the device compute the losses of the references.

        The function that is returned waits for them. It returns the perplexity of all, per sub-word
        and per word, and the loss of each. A pair that was left out has NaN and 0. There is no
        perplexity if all are left out or their loss is not finite.
        """
        found = self._scorer.start(params, self._pairs if self._num_words else [])
        return lambda: self._measure(found())

    def _measure(
        self, found: list[Float[np.ndarray, "_"]]
    ) -> tuple[dict[str, Score], NatsAndTokens]:
        sentences = np.full((len(self._pairs), 2), (math.nan, 0.0))
        if not self._num_words:
            return {}, sentences
        for number in np.flatnonzero(self._kept):
            log_probs = found[number]
            sentences[number] = -log_probs.sum(dtype=np.float64), len(log_probs)
        loss, words = sum_losses(sentences), self._num_words
        if not math.isfinite(compute_perplexity(loss.nats, words)):
            _log.warning("no perplexity: the model's loss is not finite, or very large")
            return {}, sentences
        definition = (
            f"teacher forcing in JAX in {DTYPE} on the "
            f"{'lower-cased' if self._tokenizer.lowercase else 'raw'} references, EOS included, no "
            f"smoothing{self._left_out}"
        )
        if self._several:
            definition += f"; {self._several} pairs of several sentences scored whole"
        if not self._tokenizer.byte_fallback:
            definition += "; an unknown piece counts as one sub-word"
        detail = f"{loss.nats:.1f} nats, {loss.tokens} sub-words, {words} words"
        vocabulary = self._scorer.vocabulary.fingerprint()[:8]
        counts = {
            "perplexity": (loss.tokens, f"exp(nats / sub-words), vocabulary {vocabulary}"),
            "perplexity_word": (words, "exp(nats / words separated by white space)"),
        }
        return {
            name: Score(compute_perplexity(loss.nats, count), f"{formula}; {definition}", detail)
            for name, (count, formula) in counts.items()
        }, sentences
