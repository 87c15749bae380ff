"""Likelihood: log-probabilities of given translations under teacher forcing."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t2t.config.fields import Config
from t2t.data.batch import BOS_ID, pad_sentences
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.length_batching import group_by_length
from t2t.model.interface import Params, merge
from t2t.ops.build_model import Members
from t2t.runtime.mesh import reshard, spec

_log = logging.getLogger(__name__)

DTYPE = "float32"  # of the computation, so that scores can be compared between devices
_MAX_LENGTH = 1024  # of a side in sub-words with EOS, unless training had longer ones
_MAX_LOGITS = 2**26  # elements of a batch's logits: 256 MiB
_LENGTH = 64  # padded length up to which batches have all their rows


def find_limit(config: Config, position_limit: int | None) -> int:
    """Returns the longest side of a pair that is scored, in sub-words with EOS."""
    longest = max(_MAX_LENGTH, config.data.max_length)
    return longest if position_limit is None else min(longest, position_limit)


def warn_of_long_pairs(count: int, total: int, longest: int) -> None:
    """Warns of pairs that are scored whole though training had none of their length."""
    if count:
        _log.warning(
            "%d of %d pairs have a side of more than data.max_length=%d sub-words with EOS; they "
            "are scored whole, though training had none as long",
            count, total, longest,
        )  # fmt: skip


class PairScorer:
    """Computes log P of each token of translations; compiles once for each batch shape."""

    def __init__(
        self, members: Members, vocabulary: Vocabulary, batch_size: int, limit: int = 2**30
    ):
        """Computes in float32, whatever `model.dtype` is; `limit` is that of a side with EOS."""
        self._vocabulary, size = vocabulary, vocabulary.tgt.vocab_size
        members = members.with_dtype(DTYPE)
        structure, _ = members.describe(vocabulary.src.vocab_size, size)
        self._batch_size = min(batch_size, max(1, _MAX_LOGITS // (_LENGTH * size)))
        self.limit = min(limit, members.position_limit or limit)  # of a side, EOS included

        def score(
            params: Params, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], tgt: Any
        ) -> Float[Array, "B T"]:
            logits = merge(structure, params)(src, tgt_in).astype(jnp.float32)
            logits = reshard(logits, "batch", None, None)
            picked = jnp.take_along_axis(logits, tgt[..., None], axis=-1)[..., 0]
            log_probs = picked - jax.nn.logsumexp(logits, axis=-1)
            return reshard(log_probs, None)

        self._score = jax.jit(score)

    def encode(self, texts: Iterable[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Returns the ids of pairs (source, target), each side ending in EOS."""
        pairs = list(texts)
        src = self._vocabulary.src.encode([src for src, _ in pairs])
        tgt = self._vocabulary.tgt.encode([tgt for _, tgt in pairs])
        return list(zip(src, tgt, strict=True))

    def score(
        self, params: Params, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> list[Float[np.ndarray, "T"]]:
        """Computes log P of each target token, for pairs (source, target) of ids ending in EOS.

        The parameters are on the current mesh. A pair with a side longer than `limit` has NaN.
        """
        scores = [np.full(len(tgt), np.nan, np.float32) for _, tgt in pairs]
        fits = [n for n, pair in enumerate(pairs) if max(map(len, pair)) <= self.limit]
        lengths = [max(map(len, pairs[n])) for n in fits]
        started = []
        for length, rows, indices in group_by_length(lengths, self.limit, self._batch_size):
            chosen = [fits[index] for index in indices]
            src = pad_sentences([pairs[n][0] for n in chosen], rows, length)
            tgt = pad_sentences([pairs[n][1] for n in chosen], rows, length)
            tgt_in = pad_sentences([[BOS_ID, *pairs[n][1][:-1]] for n in chosen], rows, length)
            placed = (jax.device_put(x, spec("batch", None)) for x in (src, tgt_in, tgt))
            started.append((chosen, self._score(params, *placed)))
        for chosen, found in started:
            for n, row in zip(chosen, np.asarray(found), strict=False):
                scores[n] = row[: len(scores[n])]
        return scores
