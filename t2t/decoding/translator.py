"""Translates text: tokenises, groups by length, searches, detokenises and restores the order."""

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
from t2t.data.batch import EOS_ID, pad_sentences
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.beam_search import Hypotheses, length_penalty
from t2t.decoding.length_batching import group_by_length
from t2t.decoding.long_sources import cut, join_translations
from t2t.decoding.staged_search import BatchSearch, search_concurrently
from t2t.model.build import describe_model
from t2t.model.interface import Params
from t2t.ops.choose import choose_policy
from t2t.runtime.mesh import put_like

_log = logging.getLogger(__name__)

MAX_SOURCE_LENGTH = 1024  # sub-words with EOS; a longer sentence is translated in pieces

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # and line separators


@dataclasses.dataclass(frozen=True)
class Translation:
    """One translation of one sentence."""

    text: str  # one line
    score: float  # log_prob / length penalty, by which translations are ranked
    log_prob: float  # natural logarithm of the model's probability
    length: int  # sub-words, EOS included
    num_pieces: int = 1  # number of pieces into which the sentence was cut for translation


class Translator:
    """Translates sentences; compiles the search once per batch shape and stage.

    A sentence that is too long for the model is cut into pieces, which are translated separately
    and joined. `CTranslate2Translator` overrides `search`, `describe` and `compile_seconds`;
    everything else is the same for both engines, JAX and CTranslate2.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary):
        """`config.model` and `vocabulary` are those of training."""
        self.config = config.decoding
        self.vocabulary = vocabulary
        sizes = vocabulary.src.vocab_size, vocabulary.tgt.vocab_size
        self._describe_model = functools.partial(describe_model, config.model, *sizes)
        self.structure, self._expected = self._describe_model()
        self._batches = BatchSearch(self.structure, config.decoding)
        self._model = config.model
        self.max_source_length = MAX_SOURCE_LENGTH  # of a source, in sub-words with EOS
        self._max_hypothesis_length = 2**30  # of a hypothesis, in sub-words with EOS
        if (longest := config.model.position_limit) is not None:
            self.max_source_length = min(self.max_source_length, longest)
            self._max_hypothesis_length = longest

    @property
    def compile_seconds(self) -> float:
        """Total time spent compiling."""
        return self._batches.compile_seconds

    def translate(
        self, params: Params, sentences: Sequence[str], progress: bool = False
    ) -> list[Translation]:
        """The best translation of each sentence; that of an empty sentence is empty."""
        return [best for best, *_ in self.translate_n_best(params, sentences, 1, progress)]

    def compile(self, params: Params, sentences: Sequence[str]) -> None:
        """Compiles before `translate`, by searching one batch of each shape of these sentences.

        A search that fails or runs out of memory does so here. A later `translate` only compiles
        stages that these batches did not reach.
        """
        self._check(params)
        sources = self.vocabulary.src.encode(sentences)
        pieces = [piece for source in sources for piece in self._cut(source)]
        by_shape: dict[tuple[int, int], list[int]] = {}
        for length, rows, indices in self._group(pieces):
            by_shape.setdefault((length, rows), indices)
        # `search` groups the chosen pieces again, into the same batches: only the last batch is not
        # full, and the pieces are still in order of length.
        chosen = [pieces[index] for indices in by_shape.values() for index in indices]
        self.search(params, chosen, 1, (self.config.alpha,), progress=False)

    def translate_n_best(
        self, params: Params, sentences: Sequence[str], n_best: int, progress: bool = False
    ) -> list[list[Translation]]:
        """The `n_best` translations of each sentence, best first.

        A sentence may have fewer than `n_best`, but has at least one. The only translation of an
        empty sentence is the empty string.

        Raises:
            ConfigError: `params` do not fit the config and vocabulary, or `n_best` is not between 1
                and the beam size.
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
        """Returns, for each alpha, the list of each sentence's best translation; searches once."""
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
        """The translations that `search` finds for each piece of each sentence."""
        self._check(params)
        pieces = [self._cut(ids) for ids in self.vocabulary.src.encode(sentences)]
        flat = [piece for parts in pieces for piece in parts]
        found = iter(self.search(params, flat, n_best, alphas, progress))
        return [[next(found) for _ in parts] for parts in pieces]

    def place(self, params: Params) -> Params:
        """Puts the parameters on the current mesh with the sharding that the model declares.

        Raises:
            ConfigError: the parameters do not fit the config and vocabulary.
        """
        self._check(params)
        _, declared = self._describe_model()
        placed: Params = put_like(params, declared)
        return placed

    def describe(self) -> dict[str, str | int]:
        """The engine's name, version and number formats, as evaluations record them."""
        policy = choose_policy(self._model)
        dtype = str(policy.dtype) if policy.dtype == policy.product_dtype else "mixed"
        return {
            "name": "jax",
            "version": jax.__version__,
            "compute_type": dtype,
            "products": policy.describe_products(),
        }

    def _check(self, params: Params) -> None:
        """Raises `ConfigError` if the parameters do not fit the config and vocabulary."""
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
        """Cuts a sentence into pieces of at most `max_source_length` ids; none if it is empty."""
        without_eos, size = ids[:-1], self.max_source_length - 1
        if len(without_eos) <= size:
            return [ids] if without_eos else []
        pieces = cut(self.vocabulary.src.pieces(without_eos), size)
        return [[*without_eos[piece.start : piece.stop], EOS_ID] for piece in pieces]

    def search(
        self,
        params: Params,
        sources: Sequence[list[int]],
        n_best: int,
        alphas: tuple[float, ...],
        progress: bool,
    ) -> list[list[Translation]]:
        """Searches for the `n_best` translations of each source, best first.

        Args:
            params: of the model.
            sources: ids of each source, ending in EOS, at most `max_source_length`.
            n_best: at most the beam size.
            alphas: exponents of the length penalty. If there are several, a source's list holds its
                `n_best` translations by the first, then those by the second, and so on.
            progress: whether to show a progress bar.
        """

        def search_batch(batch: tuple[int, int, list[int]]) -> tuple[list[int], Hypotheses]:
            length, rows, indices = batch
            src = pad_sentences([sources[index] for index in indices], rows, length)
            limits = np.zeros(rows, np.int32)
            for row, index in enumerate(indices):
                limits[row] = self._find_max_tokens(sources[index])
            longest = min(length + self.config.max_extra_length, self._max_hypothesis_length)
            return indices, self._batches.search(params, src, limits, longest, n_best, alphas)

        found: list[list[Translation]] = [[] for _ in sources]
        batches = self._group(sources)
        with tqdm.tqdm(total=len(sources), unit="sentence", disable=not progress) as bar:
            for indices, hypotheses in search_concurrently(search_batch, batches):
                for row, index in enumerate(indices):
                    found[index] = self._convert(Hypotheses(*(x[row] for x in hypotheses)))
                bar.update(len(indices))
        return found

    def _group(self, sources: Sequence[list[int]]) -> Iterator[tuple[int, int, list[int]]]:
        """(padded length, rows, indices of the sources) of each batch."""
        lengths = [len(ids) for ids in sources]
        return group_by_length(lengths, self.max_source_length, self.config.batch_size)

    def _find_max_tokens(self, source: list[int]) -> int:
        """The largest number of tokens of a source's hypotheses, EOS included."""
        return min(len(source) + self.config.max_extra_length, self._max_hypothesis_length)

    def _convert(self, found: Hypotheses) -> list[Translation]:
        """Converts the hypotheses of one source, without those whose score is not finite."""
        translations = []
        for tokens, length, score, log_prob in zip(*found, strict=True):
            if np.isfinite(score):
                line = self._detokenize(tokens.tolist())
                translations.append(Translation(line, float(score), float(log_prob), int(length)))
        return translations

    def _detokenize(self, ids: list[int]) -> str:
        """The text of a hypothesis, as one line without control characters."""
        [text] = self.vocabulary.tgt.decode([ids])
        return _CONTROL_CHARACTERS.sub(" ", text).strip()

    def _warn(self, translations: list[list[Translation]]) -> None:
        """Logs how many sentences were cut or could not be translated."""
        if cut := sum(best.num_pieces > 1 for best, *_ in translations):
            _log.warning(
                "%d of %d sentences exceed %d sub-words with EOS; they are translated in pieces",
                cut, len(translations), self.max_source_length,
            )  # fmt: skip
        if failed := sum(best.score == -math.inf for best, *_ in translations):
            _log.warning(
                "%d of %d sentences have no translation: the model's output is not finite",
                failed, len(translations),
            )  # fmt: skip


def _join(pieces: list[list[Translation]], alpha: float) -> list[Translation]:
    """Joins the translations of a sentence's pieces: the best ones, the second best, and so on."""
    if not pieces:
        return [Translation("", 0.0, 0.0, 0)]
    joined = []
    for ranked in zip(*pieces, strict=False):
        log_prob, length = sum(x.log_prob for x in ranked), sum(x.length for x in ranked)
        score = log_prob / float(length_penalty(length, alpha))
        text = join_translations([x.text for x in ranked])
        joined.append(Translation(text, score, log_prob, length, len(ranked)))
    return joined or [Translation("", -math.inf, -math.inf, 0, len(pieces))]
