"""Sentences in, sentences out: tokenise, group by length, search, detokenise, restore the order."""

import dataclasses
import functools
import logging
import math
import re
from collections.abc import Iterator, Sequence

import jax
import numpy as np
import tqdm

from t2t.config.fields import Config, ConfigError
from t2t.data.batch import EOS_ID, PAD_ID
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.beam_search import Hypotheses, length_penalty
from t2t.decoding.length_batching import group_by_length
from t2t.decoding.long_sources import cut, join
from t2t.decoding.staged_search import BatchSearch, search_side_by_side
from t2t.model.build import describe_model
from t2t.model.interface import Params
from t2t.ops.choose import choose_policy
from t2t.runtime.mesh import put_like

_log = logging.getLogger(__name__)

MAX_SOURCE_LENGTH = 1024  # sub-words with EOS; a longer sentence is translated in pieces

_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # control characters, line ends


@dataclasses.dataclass(frozen=True)
class Translation:
    """One hypothesis for one sentence."""

    text: str  # one line
    score: float  # what the search ranks by
    log_prob: float  # natural logarithm of the model's probability
    length: int  # sub-words, EOS included
    num_pieces: int = 1  # more than 1: the sentence was cut, and the pieces translated apart


class Translator:
    """Translates with the parameters that it is given; compiles once for each shape.

    How sentences are cut, spelled and joined is the same for every engine: `backend` has another,
    that overrides `search`, `describe` and `compile_seconds`.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary):
        """`config.model` and `vocabulary` as in training; `config.decoding` says how to search."""
        self.config = config.decoding
        self.vocabulary = vocabulary
        sizes = vocabulary.src.vocab_size, vocabulary.tgt.vocab_size
        self._declare = functools.partial(describe_model, config.model, *sizes)
        self.structure, self._expected = self._declare()
        self._batches = BatchSearch(self.structure, config.decoding)
        self._model = config.model
        self.limit = MAX_SOURCE_LENGTH  # sub-words that the model takes at once, with EOS
        self._max_length = 2**30  # of hypotheses
        if (longest := config.model.position_limit) is not None:
            self.limit = min(self.limit, longest)
            self._max_length = longest

    @property
    def compile_seconds(self) -> float:
        """So far spent before the first word of any shape."""
        return self._batches.compile_seconds

    def translate(
        self, params: Params, sentences: Sequence[str], progress: bool = False
    ) -> list[Translation]:
        """The best translation of each sentence, in order; an empty one stays empty."""
        return [best for best, *_ in self.translate_n_best(params, sentences, 1, progress)]

    def compile(self, params: Params, sentences: Sequence[str]) -> None:
        """Searches one batch of each shape into which `translate` groups the sentences.

        A search that fails, or a batch that memory does not hold, shows here. A later `translate`
        compiles only stages that these batches did not reach.
        """
        self._check(params)
        sources = self.vocabulary.src.encode(sentences)
        pieces = [piece for source in sources for piece in self._cut(source)]
        by_shape: dict[tuple[int, int], list[int]] = {}
        for length, rows, indices in self._group(pieces):
            by_shape.setdefault((length, rows), indices)
        # Grouped again, they make the same batches: each is full, or the last one.
        chosen = [pieces[index] for indices in by_shape.values() for index in indices]
        self.search(params, chosen, 1, (self.config.alpha,), progress=False)

    def translate_n_best(
        self, params: Params, sentences: Sequence[str], n_best: int, progress: bool = False
    ) -> list[list[Translation]]:
        """Up to `n_best` translations of each sentence, best first, never none.

        Raises:
            ConfigError: `params` do not fit the config and vocabulary, or `n_best` the beam.
        """
        if not 1 <= n_best <= self.config.beam_size:
            raise ConfigError(
                f"n_best={n_best} does not fit decoding.beam_size={self.config.beam_size}; "
                f"use 1 to {self.config.beam_size}, or a wider beam"
            )
        alpha = self.config.alpha
        pieces = self._translate_pieces(params, sentences, n_best, (alpha,), progress)
        translations = [_join(found, alpha) for found in pieces]
        self._warn(translations)
        return translations

    def translate_with_alphas(
        self,
        params: Params,
        sentences: Sequence[str],
        alphas: Sequence[float],
        progress: bool = False,
    ) -> list[list[Translation]]:
        """For each alpha what `translate` would give with it, from one search for all of them."""
        pieces = self._translate_pieces(params, sentences, 1, tuple(alphas), progress)
        translations = [
            [_join([ranked[number : number + 1] for ranked in found], alpha) for found in pieces]
            for number, alpha in enumerate(alphas)
        ]
        self._warn(translations[0])
        return [[best for best, *_ in found] for found in translations]

    def _translate_pieces(
        self,
        params: Params,
        sentences: Sequence[str],
        n_best: int,
        alphas: tuple[float, ...],
        progress: bool,
    ) -> list[list[list[Translation]]]:
        """What `search` finds, for each piece of each sentence."""
        self._check(params)
        pieces = [self._cut(ids) for ids in self.vocabulary.src.encode(sentences)]
        flat = [piece for parts in pieces for piece in parts]
        found = iter(self.search(params, flat, n_best, alphas, progress))
        return [[next(found) for _ in parts] for parts in pieces]

    def place(self, params: Params) -> Params:
        """The parameters on the mesh in use, cut as the model declares them.

        Raises:
            ConfigError: they do not fit the config and vocabulary.
        """
        self._check(params)
        _, declared = self._declare()
        placed: Params = put_like(params, declared)
        return placed

    def describe(self) -> dict[str, str | int]:
        """Which engine this is, and how it computes."""
        policy = choose_policy(self._model)
        dtype = str(policy.dtype) if policy.dtype == policy.product_dtype else "mixed"
        return {
            "name": "jax",
            "version": jax.__version__,
            "compute_type": dtype,
            "products": policy.describe_products(),
        }

    def _check(self, params: Params) -> None:
        """A checkpoint and a vocabulary from different runs must not meet unnoticed."""
        expected, found = (
            {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in x}
            for x in map(jax.tree_util.tree_leaves_with_path, (self._expected, params))
        )
        for name in expected | found:
            if expected.get(name) != found.get(name):
                raise ConfigError(
                    f"the checkpoint does not fit its config and vocabulary: parameter {name} has "
                    f"shape {found.get(name)} instead of {expected.get(name)} (source vocabulary "
                    f"{self.vocabulary.src.vocab_size}, target {self.vocabulary.tgt.vocab_size}); "
                    "use the config.json and the vocab/ that were written with it"
                )

    def _cut(self, ids: list[int]) -> list[list[int]]:
        """Pieces that the model can take, each ending in EOS; nothing for an empty sentence."""
        words, size = ids[:-1], self.limit - 1
        if len(words) <= size:
            return [ids] if words else []
        parts = cut(self.vocabulary.src.pieces(words), size)
        return [[*words[part.start : part.stop], EOS_ID] for part in parts]

    def search(
        self,
        params: Params,
        sources: Sequence[list[int]],
        n_best: int,
        alphas: tuple[float, ...],
        progress: bool,
    ) -> list[list[Translation]]:
        """Up to `n_best` translations of each source, which ends in EOS and is not too long.

        With several alphas the best by each, one behind the other.
        """

        def search_batch(batch: tuple[int, int, list[int]]) -> tuple[list[int], Hypotheses]:
            length, rows, indices = batch
            src = np.full((rows, length), PAD_ID, np.int32)
            limits = np.zeros(rows, np.int32)
            for row, index in enumerate(indices):
                src[row, : len(sources[index])] = sources[index]
                limits[row] = self._limit(sources[index])
            longest = min(length + self.config.max_extra_length, self._max_length)
            return indices, self._batches.search(params, src, limits, longest, n_best, alphas)

        found: list[list[Translation]] = [[] for _ in sources]
        batches = self._group(sources)
        with tqdm.tqdm(total=len(sources), unit="sentence", disable=not progress) as bar:
            for indices, hypotheses in search_side_by_side(search_batch, batches):
                for row, index in enumerate(indices):
                    found[index] = self._read(Hypotheses(*(x[row] for x in hypotheses)))
                bar.update(len(indices))
        return found

    def _group(self, sources: Sequence[list[int]]) -> Iterator[tuple[int, int, list[int]]]:
        """(padded length, rows, numbers of the sources) of each batch."""
        lengths = [len(ids) for ids in sources]
        return group_by_length(lengths, self.limit, self.config.batch_size)

    def _limit(self, source: list[int]) -> int:
        """The most tokens that a hypothesis may have, EOS included."""
        return min(len(source) + self.config.max_extra_length, self._max_length)

    def _read(self, found: Hypotheses) -> list[Translation]:
        """The hypotheses of one sentence; none where the model's probabilities are no numbers."""
        translations = []
        for tokens, length, score, log_prob in zip(*found, strict=True):
            if np.isfinite(score):
                line = self._spell(tokens.tolist())
                translations.append(Translation(line, float(score), float(log_prob), int(length)))
        return translations

    def _spell(self, ids: list[int]) -> str:
        """The text of a hypothesis as one line."""
        [text] = self.vocabulary.tgt.decode([ids])
        return _BREAKS.sub(" ", text).strip()

    def _warn(self, translations: list[list[Translation]]) -> None:
        """Says what became of sentences that could not be translated as they are."""
        if cut := sum(best.num_pieces > 1 for best, *_ in translations):
            _log.warning(
                "%d of %d sentences have more than %d sub-words: translated in pieces",
                cut, len(translations), self.limit,
            )  # fmt: skip
        if failed := sum(best.score == -math.inf for best, *_ in translations):
            _log.warning(
                "%d of %d sentences have no translation: the model's output is not finite",
                failed, len(translations),
            )  # fmt: skip


def _join(pieces: list[list[Translation]], alpha: float) -> list[Translation]:
    """The translations of a sentence from those of its pieces, rank by rank."""
    if not pieces:
        return [Translation("", 0.0, 0.0, 0)]
    joined = []
    for parts in zip(*pieces, strict=False):
        log_prob, length = sum(part.log_prob for part in parts), sum(part.length for part in parts)
        score = log_prob / float(length_penalty(length, alpha))
        text = join([part.text for part in parts])
        joined.append(Translation(text, score, log_prob, length, len(parts)))
    return joined or [Translation("", -math.inf, -math.inf, 0, len(pieces))]
