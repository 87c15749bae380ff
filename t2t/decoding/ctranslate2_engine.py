"""Translation by CTranslate2 on CPUs, for its speed and its int8 products."""

import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import tqdm

from t2t.config.fields import Config, ConfigError
from t2t.data.batch import EOS_ID
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.beam_search import LengthPenalty
from t2t.decoding.sampling import BANNED_TOKENS
from t2t.decoding.translation import SourcePiece, Translation
from t2t.decoding.translator import Translator
from t2t.interop.ctranslate2_export import MAX_POSITIONS, check_support, write_model
from t2t.model.parameters import Params

# CTranslate2 stops searching for a sentence once beam_size * PATIENCE hypotheses are finished;
# `beam_search` stops once no better hypothesis is possible. A larger value makes their results more
# alike.
PATIENCE = 2


class CTranslate2Translator(Translator):
    """A `Translator` whose search is CTranslate2's.

    CTranslate2 keeps the same W hypotheses alive as `beam_search`, and `_rank` ranks the finished
    ones by the same score. CTranslate2 misses hypotheses that end after it stops (`PATIENCE`), or
    whose EOS is not among the W best continuations; `beam_search` considers the 2W best.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary, compute_type: str = "float32"):
        """`compute_type` is the number format of matrix products: int8, int16, float32, ...

        Raises:
            ConfigError: CTranslate2 cannot run the model, or this CPU cannot use `compute_type`, or
                the config asks for sampling, a minimum length or tags of targets.
        """
        check_support(config.model)
        if vocabulary.tgt.tag_ids:
            raise ConfigError(
                "data.direction_tags='both' begins each translation with a tag, which needs "
                "--backend=jax"
            )
        for name, default in (("strategy", "beam"), ("min_length", 0)):
            if (value := getattr(config.decoding, name)) != default:
                raise ConfigError(
                    f"decoding.{name}={value!r} needs --backend=jax; "
                    f"leave it at {default!r} for ctranslate2"
                )
        supported = sorted(ctranslate2.get_supported_compute_types("cpu"))
        if compute_type not in supported:
            raise ConfigError(
                f"--compute_type={compute_type} is not supported by CTranslate2 on this CPU; use "
                f"one of {', '.join(supported)}"
            )
        super().__init__(config, vocabulary)
        self._max_hypothesis_length = min(self._max_hypothesis_length, MAX_POSITIONS)
        self._compute_type = compute_type
        can_ask = hasattr(os, "sched_getaffinity")
        self._threads = len(os.sched_getaffinity(0)) if can_ask else os.cpu_count() or 1
        src, tgt = vocabulary.src, vocabulary.tgt
        self._pieces = src.pieces(range(src.vocab_size)), tgt.pieces(range(tgt.vocab_size))
        self._ids = {piece: number for number, piece in enumerate(self._pieces[1])}
        self._params: Params | None = None  # those that are loaded into the engine
        self._engine: Any = None

    def record(self) -> dict[str, str | int]:
        """The engine's name, version and settings, as evaluations record them."""
        return {
            "name": "ctranslate2",
            "version": ctranslate2.__version__,
            "compute_type": self._compute_type,
            "threads": self._threads,
            "patience": PATIENCE,
        }

    def search(
        self,
        params: Params,
        pieces: Sequence[SourcePiece],
        n_best: int,
        penalties: tuple[LengthPenalty, ...],
    ) -> list[list[Translation]]:
        """As `Translator.search`; penalties only rank the hypotheses that CTranslate2 finds."""
        if any(piece.prefix for piece in pieces):
            raise ConfigError("prefixes need --backend=jax; leave out one of them")
        sources = [piece.ids for piece in pieces]
        if self._params is not params:
            self._load(params)
        spelled = [[self._pieces[0][i] for i in source[:-1]] for source in sources]  # without EOS
        limits = [self._find_max_tokens(source) for source in sources]
        started: list[tuple[int, int, Any]] = []
        for _, _, indices in self._group(sources):
            longest = max(limits[index] for index in indices)
            futures = self._start([spelled[index] for index in indices], longest)
            started += [
                (index, longest, future) for index, future in zip(indices, futures, strict=True)
            ]
        found: list[list[Translation]] = [[] for _ in sources]
        hidden = not self.shows_progress
        bar = tqdm.tqdm(started, unit="sentence", leave=False, disable=hidden)
        for index, longest, future in bar:
            result, limit = future.result(), limits[index]
            if limit < longest and max(map(len, result.hypotheses)) >= limit:
                # CTranslate2 takes one limit for a batch. This sentence has a lower one and reached
                # it, so it is searched again alone.
                result = self._start([spelled[index]], limit)[0].result()
            scored = self._score(spelled[index], result)
            found[index] = [
                best
                for penalty in penalties
                for best in self._rank(pieces[index], scored, penalty)[:n_best]
            ]
        return found

    def _load(self, params: Params) -> None:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            write_model(self._model, params, self._pieces, Path(directory))
            self._engine = ctranslate2.Translator(
                directory,
                compute_type=self._compute_type,
                # Each thread searches its own batch: twice as fast as all threads on one batch.
                inter_threads=self._threads,
                intra_threads=1,
                max_queued_batches=-1,
            )
        self._params = params
        self._batches.clock.seconds += time.perf_counter() - started  # in place of compiling

    def _start(self, sources: list[list[str]], limit: int) -> list[Any]:
        """Starts a search for hypotheses of at most `limit` tokens; returns a future per source."""
        beam_size = self.config.beam_size
        patience = PATIENCE if beam_size > 1 else 1
        futures: list[Any] = self._engine.translate_batch(
            sources,
            beam_size=beam_size,
            patience=patience,
            num_hypotheses=beam_size * patience,
            length_penalty=0,  # scores are then log-probabilities; `_rank` applies the penalty
            max_input_length=0,  # no limit: long sources are already cut
            max_decoding_length=limit - 1,  # without EOS
            min_decoding_length=0,
            return_scores=True,
            return_end_token=True,
            asynchronous=True,
        )
        return futures

    def _score(self, source: list[str], result: Any) -> list[tuple[list[int], float]]:
        """The hypotheses of one sentence with their log-probabilities."""
        end = self._pieces[1][EOS_ID]
        hypotheses = []
        for found, score in zip(result.hypotheses, result.scores, strict=True):
            tokens, log_prob = found, score
            if found[-1:] != [end]:  # stopped at the limit: add EOS and score it, too
                [scored] = self._engine.score_batch([source], [found], max_input_length=0)
                tokens, log_prob = [*found, end], sum(scored.log_probs)
            ids = [self._ids[token] for token in tokens]
            # Banned tokens are filtered here, because CTranslate2 would renormalise the others'
            # probabilities if it suppressed them.
            if math.isfinite(log_prob) and not any(token in ids for token in BANNED_TOKENS):
                hypotheses.append((ids, log_prob))
        return hypotheses

    def _rank(
        self, piece: SourcePiece, hypotheses: list[tuple[list[int], float]], penalty: LengthPenalty
    ) -> list[Translation]:
        """Translations of scored hypotheses (ids, log-probability), best first."""
        translations = [
            self._make_translation(piece, ids, log_prob / float(penalty(len(ids))), log_prob)
            for ids, log_prob in hypotheses
        ]
        return sorted(translations, key=lambda found: -found.score)
