"""Sentences in, sentences out: tokenise, group by length, search, detokenise, restore the order."""

import dataclasses
import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jaxtyping import Array, Bool, Int

from t2t.batch import EOS_ID, PAD_ID
from t2t.config import Config, ConfigError, ModelConfig
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.grouping import find_fewer_rows, group_by_length
from t2t.decoding.search import (
    Hypotheses,
    Search,
    continue_search,
    extend_search,
    is_growing,
    length_penalty,
    start_search,
    take_rows,
)
from t2t.model.encoder_decoder import Params
from t2t.model.kinds import init_model, merge
from t2t.model.products import compute_dtype
from t2t.sharding import spec

_log = logging.getLogger(__name__)

MAX_SOURCE_LENGTH = 1024  # sub-words with EOS; a longer sentence is translated in pieces

_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # control characters, line ends


@dataclasses.dataclass(frozen=True)
class Translation:
    """One hypothesis for one sentence."""

    text: str  # one line
    score: float  # what the search ranks by
    log_prob: float  # natural logarithm of the model's probability
    length: int  # sub-words, the end mark included
    num_pieces: int = 1  # more than 1: the sentence was cut, and the pieces translated apart


Stage = tuple[Search, Bool[Array, "B"], Hypotheses]  # with what is growing and what is finished


class Translator:
    """Translates with the parameters that it is given; compiles once for each shape.

    How sentences are cut, spelled and joined is the same for every engine: `backend` has another,
    that overrides `search` and `describe`.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary):
        """`config.model` and `vocabulary` as in training; `config.decoding` says how to search."""
        self.config = config.decoding
        self.vocabulary = vocabulary
        self.compile_seconds = 0.0  # so far, spent before the first word of any shape
        self.structure, self._expected = _describe_model(config.model, vocabulary)
        self._dtype = config.model.dtype
        self.limit = MAX_SOURCE_LENGTH  # sub-words that the model takes at once, with EOS
        self._max_length = 2**30  # of hypotheses
        if config.model.position == "learned":
            self.limit = min(self.limit, config.model.max_positions)
            self._max_length = config.model.max_positions
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def translate(
        self, params: Params, sentences: Sequence[str], progress: bool = False
    ) -> list[Translation]:
        """The best translation of each sentence, in order; an empty one stays empty."""
        return [best for best, *_ in self.translate_n_best(params, sentences, 1, progress)]

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

    def describe(self) -> dict[str, str | int]:
        """Which engine this is, and how it computes."""
        dtype = self._dtype if self._dtype == "mixed" else str(compute_dtype(self._dtype))
        return {"name": "jax", "version": jax.__version__, "compute_type": dtype}

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
        return [[*words[i : i + size], EOS_ID] for i in range(0, len(words), size)]

    def search(
        self,
        params: Params,
        sources: list[list[int]],
        n_best: int,
        alphas: tuple[float, ...],
        progress: bool,
    ) -> list[list[Translation]]:
        """Up to `n_best` translations of each source, which ends in EOS and is not too long.

        With several alphas the best by each, one behind the other.
        """
        found: list[list[Translation]] = [[] for _ in sources]
        with tqdm.tqdm(total=len(sources), unit="sentence", disable=not progress) as bar:
            for length, rows, indices in group_by_length(
                [len(ids) for ids in sources], self.limit, self.config.batch_size
            ):
                src = np.full((rows, length), PAD_ID, np.int32)
                limits = np.zeros(rows, np.int32)
                for row, index in enumerate(indices):
                    src[row, : len(sources[index])] = sources[index]
                    limits[row] = self._limit(sources[index])
                hypotheses = self._search(params, src, limits, n_best, alphas)
                for row, index in enumerate(indices):
                    found[index] = self._read(Hypotheses(*(x[row] for x in hypotheses)))
                bar.update(len(indices))
        return found

    def _limit(self, source: list[int]) -> int:
        """The most tokens that a hypothesis may have, its end mark included."""
        return min(len(source) + self.config.max_extra_length, self._max_length)

    def _search(
        self,
        params: Params,
        src: Int[np.ndarray, "B S"],
        limits: Int[np.ndarray, "B"],
        n_best: int,
        alphas: tuple[float, ...],
    ) -> Hypotheses:
        """Hypotheses as NumPy arrays, whole in every process.

        The search goes in stages, since a step costs what there is room for, in tokens and in
        sentences. The first has room for as many tokens as the source has; once that is full,
        there is twice as much. Once few sentences are left, they go on in a smaller batch. Between
        stages, and only there, the host looks.
        """
        shape = len(src), n_best * len(alphas)
        max_length = min(src.shape[1] + self.config.max_extra_length, self._max_length)
        nothing: list[Any] = [
            np.full((*shape, max_length), PAD_ID, np.int32),
            np.zeros(shape, np.int32),
            np.full(shape, -np.inf, np.float32),
            np.full(shape, -np.inf, np.float32),
        ]
        found = Hypotheses(*nothing)
        room = min(src.shape[1], max_length)
        placed = jax.device_put(src, spec("batch", None)), jax.device_put(limits, spec("batch"))
        owners = np.arange(len(src))  # whose row it is
        fewer = np.int32(find_fewer_rows(len(src)))
        search, *seen = self._run(
            self._begin, params, *placed, fewer, n_best=n_best, alphas=alphas, room=room
        )
        while True:
            growing, finished = jax.device_get(seen)
            found.tokens[owners, :, :room] = finished.tokens
            for whole, part in zip(found[1:], finished[1:], strict=True):
                whole[owners] = part
            if not growing.any():
                return found
            if growing.sum() <= fewer:
                left = np.argsort(~growing, kind="stable")[:fewer]
                search, owners = self._run(take_rows, search, left), owners[left]
                fewer = np.int32(0)
            else:
                room = min(2 * room, max_length)
            search, *seen = self._run(self._go_on, params, search, fewer, alphas=alphas, room=room)

    def _run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The result of a pure function, which is compiled once for all arguments of a shape."""
        shapes = (jax.typeof(x) for x in jax.tree.leaves(arguments))
        key = function.__name__, *options.values(), *shapes
        if key not in self._compiled:
            started = time.perf_counter()
            lowered = jax.jit(function, static_argnames=tuple(options)).lower(*arguments, **options)
            self._compiled[key] = lowered.compile()
            self.compile_seconds += time.perf_counter() - started
        return self._compiled[key](*arguments)

    def _begin(
        self,
        params: Params,
        src: Int[Array, "B S"],
        limits: Int[Array, "B"],
        few: Int[Array, ""],
        *,
        n_best: int,
        alphas: tuple[float, ...],
        room: int,
    ) -> Stage:
        """Encodes, and searches as far as there is room."""
        model, beam_size = merge(self.structure, params), self.config.beam_size
        cache = model.init_cache(model.encode(src), src, beam_size, room)
        search = start_search(
            cache,
            max_lengths=limits,
            room=room,
            beam_size=beam_size,
            n_best=n_best,
            num_alphas=len(alphas),
        )
        return _show(continue_search(model.decode_step, search, alphas, few))

    def _go_on(
        self,
        params: Params,
        search: Search,
        few: Int[Array, ""],
        *,
        alphas: tuple[float, ...],
        room: int,
    ) -> Stage:
        """Searches on, with room for so many tokens."""
        model = merge(self.structure, params)
        search = extend_search(search, model.extend_cache(search.cache, room), room)
        return _show(continue_search(model.decode_step, search, alphas, few))

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
        text = " ".join(part.text for part in parts if part.text)
        joined.append(Translation(text, score, log_prob, length, len(parts)))
    return joined or [Translation("", -math.inf, -math.inf, 0, len(pieces))]


def _show(search: Search) -> Stage:
    """The search, and what of it the host has to see, whole on each device."""
    joined = (jnp.concatenate(parts, axis=1) for parts in zip(*search.finished, strict=True))
    shown = is_growing(search), Hypotheses(*joined)
    everywhere = spec(None)
    if everywhere is not None:
        shown = jax.tree.map(lambda x: jax.sharding.reshard(x, everywhere), shown)
    return search, *shown


def _describe_model(config: ModelConfig, vocabulary: Vocabulary) -> tuple[Any, Any]:
    """The model's structure and its parameters' shapes, without computing any."""
    structure = None

    def init(key: jax.Array) -> Params:
        nonlocal structure
        sizes = vocabulary.src.vocab_size, vocabulary.tgt.vocab_size
        structure, params = init_model(config, *sizes, key)
        return params

    shapes = jax.eval_shape(init, jax.random.key(0))
    return structure, shapes
