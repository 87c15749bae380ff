"""Translates text: tokenises, groups by length, searches, detokenises and restores the order."""

import copy
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import tqdm

from t2t.config.data_rules import CONTINUED
from t2t.config.fields import Config, ConfigError
from t2t.data.batch import BOS_ID, EOS_ID, group_by_length, pad_sentences
from t2t.data.directions import describe_objective
from t2t.data.sentences import split_sentences
from t2t.data.tokenizer import Vocabulary
from t2t.data.unknown_characters import UnknownCharacters
from t2t.decoding.beam_search import Constraints, Hypotheses, LengthPenalty
from t2t.decoding.sampling import Stream
from t2t.decoding.staged_search import BatchSearch, Sources, search_concurrently
from t2t.decoding.translation import (
    SourcePiece,
    Translation,
    clean_line,
    cut,
    insert,
    join_best,
    join_pieces,
    keep_line,
)
from t2t.model.parameters import Params, check_params
from t2t.ops.build_model import Members
from t2t.ops.select_kernels import choose_policy
from t2t.runtime.saved_programs import SavedPrograms

_log = logging.getLogger(__name__)

_MIN_PREFIX_LENGTH = 8  # prefixes are padded to 8, 16, 32, ...

# Takes one of the translations of a source.
Choose = Callable[[str, Sequence[Translation]], Translation]


class Translator:
    """Translates sentences; compiles the search once per batch shape and stage.

    A line is translated in pieces, which are joined, if it is longer than the sources of training
    (`config.decoding.max_source_length`) or holds several sentences and those of training did not
    (`config.decoding.split_sentences`). `log_lengths` reports such lines. `CTranslate2Translator`
    overrides `search` and `record`; everything else is the same for both engines, JAX and
    CTranslate2.
    """

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        members: Members | None = None,
        described: tuple[Any, Params] | None = None,
        programs: SavedPrograms | None = None,
    ):
        """`config` and `vocabulary` are the run's; `members` form an ensemble.

        `described` is their structure and parameters, as `abstract` returns them, if it is known.
        The identity of `programs`, if they have one, covers the models and the vocabulary's size.

        Raises:
            ConfigError: the run does not translate, or its model has too few positions.
        """
        self.check_run(config)
        self.config = config.decoding
        self.vocabulary = vocabulary
        self.members = members = members or Members((config.model,))
        self.structure, self._expected = described or members.abstract(*vocabulary.sizes)
        self._batches = BatchSearch(self.structure, config.decoding, programs)
        self._model = config.model
        # Of a piece, in sub-words with EOS.
        self.max_source_length = config.decoding.max_source_length or config.data.max_length
        self._max_hypothesis_length = 2**30  # of a hypothesis, in sub-words with EOS
        if (longest := members.position_limit) is not None:
            if config.decoding.min_length + 1 > longest:
                raise ConfigError(
                    f"decoding.min_length={config.decoding.min_length} and EOS exceed the "
                    f"{longest} positions of a model; lower it to {longest - 1} or less"
                )
            self.max_source_length = min(self.max_source_length, longest)
            self._max_hypothesis_length = longest
        self.splits_sentences = vocabulary.splits_sentences(config.decoding)
        self._counts = Counter[str]()  # of lines, for `log_lengths`
        self._unknown = UnknownCharacters()  # likewise
        self.logs_lengths = True  # after each call; else the caller does it, by `log_lengths`
        self.file_number = 0  # of the input file; the samples of each have their own random numbers
        self.shows_progress = False  # a bar of the sentences
        # Gets the text so far, again and again, of a single line with a single hypothesis.
        self.watch: Callable[[str], None] | None = None

    @staticmethod
    def check_run(config: Config) -> None:
        """Raises ConfigError if the config does not train a model to translate."""
        if config.data.is_text_alone:
            is_continued = config.data.objective in CONTINUED
            use = "t2t.generate" if is_continued else "t2t.generate --fill"
            raise ConfigError(
                f"{describe_objective(config.data)} trains no model to translate; {use} uses it, "
                "and t2t.evaluate with a split alone measures perplexity and accuracy"
            )

    def check_lines(self, sentences: Sequence[str], first: int) -> None:
        """Raises what `translate_n_best` raises for these lines, without a search."""
        self._cut_all(sentences, None, first)

    def with_vocabulary(self, vocabulary: Vocabulary) -> "Translator":
        """This translator for another direction of the model, with the same compiled functions."""
        other = copy.copy(self)
        other.vocabulary = vocabulary
        return other

    @property
    def compile_seconds(self) -> float:
        """Total time spent compiling."""
        return self._batches.clock.seconds

    def translate(self, params: Params, sentences: Sequence[str]) -> list[Translation]:
        """Returns the best translation of each sentence; an empty sentence stays empty."""
        return [best for best, *_ in self.translate_n_best(params, sentences, 1)]

    def compile(self, params: Params, sentences: Sequence[str]) -> None:
        """Compiles before `translate`, by searching one batch of each shape of these sentences.

        With sampling it draws `decoding.num_samples` of each sentence. A search that fails or runs
        out of memory does so here. A later `translate` only compiles stages that these batches did
        not reach.
        """
        check_params(self._expected, params)
        samples = self.config.num_samples if self.config.strategy == "sampling" else 1
        pieces = [*itertools.chain.from_iterable(self._cut_all(sentences, None, 0))]
        by_shape: dict[tuple[int, int], list[int]] = {}
        rows = [piece.ids for piece in pieces for _ in range(samples)]
        for length, num_rows, indices in self._group(rows):
            by_shape.setdefault((length, num_rows), indices)
        # `search` groups these pieces again and gets the same batches, since they are still in
        # order of length and only the last batch is not full.
        chosen = [row // samples for indices in by_shape.values() for row in indices]
        chosen_pieces = [pieces[index] for index in dict.fromkeys(chosen)]
        penalty = LengthPenalty(self.config.length_penalty, self.config.alpha)
        self.search(params, chosen_pieces, samples, (penalty,))

    def translate_n_best(
        self,
        params: Params,
        sentences: Sequence[str],
        n_best: int,
        *,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        choose: Choose | None = None,
    ) -> list[list[Translation]]:
        """The `n_best` translations of each line, best first, or that many samples in order.

        A line may have fewer than `n_best`, but has at least one. The only translation of an
        empty sentence is its prefix. Translations that beam search finds have different texts:
        of several divisions of a text into sub-words the best one is kept. Those of a line in
        several pieces are the best of all ways to take one translation of each piece.

        `prefixes` are texts with which each sentence's translations begin. `first` is the number of
        the first sentence in the whole input, for the random numbers. `choose` takes one of the
        `n_best` of each piece, and a line's only translation is made of those; the beam may hold a
        text several times then.

        Raises:
            ConfigError: `params` do not fit the config and vocabulary, `n_best` is not between 1
                and the beam size, or a prefix is too long.
        """
        if n_best < 1 or (self.config.strategy == "beam" and n_best > self.config.beam_size):
            raise ConfigError(
                f"n_best={n_best} does not fit decoding.beam_size={self.config.beam_size}; "
                f"use 1 to {self.config.beam_size}, or a wider beam"
            )
        penalty = LengthPenalty(self.config.length_penalty, self.config.alpha)
        pieces = self._cut_all(sentences, prefixes, first)
        self._count_unknown(sentences, prefixes)
        is_list = self.config.strategy == "beam" and choose is None and n_best > 1
        # The whole beam, since some of it may be dropped.
        count = self.config.beam_size if is_list else n_best
        found = self._search_all(params, pieces, count, (penalty,))
        if choose:
            found = [
                [
                    [choose(piece.text, own)] if own else own
                    for piece, own in zip(*line, strict=True)
                ]
                for line in zip(pieces, found, strict=True)
            ]
        starts = map(keep_line, prefixes or [""] * len(sentences))
        translations = [
            join_best(each, penalty, n_best, start)
            if is_list
            else join_pieces(each, penalty, start)
            for each, start in zip(found, starts, strict=True)
        ]
        self._count_lengths([best for best, *_ in translations])
        return translations

    def translate_with_alphas(
        self, params: Params, sentences: Sequence[str], alphas: Sequence[float]
    ) -> list[list[Translation]]:
        """Returns, for each alpha, the list of each sentence's best translation; searches once."""
        penalties = tuple(LengthPenalty(self.config.length_penalty, alpha) for alpha in alphas)
        pieces = self._cut_all(sentences, None, 0)
        self._count_unknown(sentences, None)
        found = self._search_all(params, pieces, 1, penalties)
        by_alpha = []
        for number, penalty in enumerate(penalties):
            # A piece's list holds one translation for each penalty: the best by that penalty.
            best = [[ranked[number : number + 1] for ranked in each] for each in found]
            by_alpha.append([join_pieces(each, penalty) for each in best])
        self._count_lengths([best for best, *_ in by_alpha[0]])
        return [[first for first, *_ in translations] for translations in by_alpha]

    def _cut_all(
        self, sentences: Sequence[str], prefixes: Sequence[str] | None, first: int
    ) -> list[list[SourcePiece]]:
        """The pieces of each line; a prefix belongs to the first piece.

        A line with a prefix is not split into sentences: the prefix may hold several of them. All
        pieces of a line begin with its task (`Tokenizer.find_task`).
        """
        starts, src = prefixes or [""] * len(sentences), self.vocabulary.src
        given, tasks = self.vocabulary.tgt.encode(starts), [*map(src.find_task, sentences)]
        parts = [
            [task + part for part in split_sentences(line[len(task) :])] or [line]
            if self.splits_sentences and prefix == [EOS_ID]
            else [line]
            for line, prefix, task in zip(sentences, given, tasks, strict=True)
        ]
        encoded = iter(src.encode([*itertools.chain.from_iterable(parts)]))
        heads = {task: len(src.tag_ids) + len(src.encode_words([task])[0]) - 1 for task in {*tasks}}
        cut_lines, tag = [], self.vocabulary.tgt.tag_ids  # with which each translation begins
        lines = enumerate(zip(parts, given, starts, tasks, strict=True), start=first)
        for number, (own, prefix, start, task) in lines:
            pieces: list[SourcePiece] = []
            for part in own:
                cuts = self._cut(next(encoded), heads[task])
                texts = (
                    [part]
                    if len(cuts) == 1
                    else src.decode([ids[len(src.tag_ids) :] for ids in cuts])
                )
                for text, ids in zip(texts, cuts, strict=True):
                    place = number, len(pieces), len(cuts) > 1
                    pieces.append(SourcePiece(ids, tag, *place, text=text))
            if pieces and len(prefix) > (limit := self._find_max_tokens(pieces[0].ids)):
                raise ConfigError(
                    f"the prefix of sentence {number + 1} has {len(prefix) - 1} sub-words, but its "
                    f"translation may have at most {limit - 1} (source length + "
                    f"decoding.max_extra_length={self.config.max_extra_length}, within the model's "
                    "positions); shorten the prefix, or raise decoding.max_extra_length"
                )
            if pieces and len(prefix) > 1:
                begin = prefix[:-1]  # without EOS
                pieces[0] = pieces[0]._replace(prefix=begin, given=[keep_line(start)])
            cut_lines.append(pieces)
        return cut_lines

    def _search_all(
        self,
        params: Params,
        pieces: list[list[SourcePiece]],
        n_best: int,
        penalties: tuple[LengthPenalty, ...],
    ) -> list[list[list[Translation]]]:
        """The translations that `search` finds for each piece of each sentence."""
        check_params(self._expected, params)
        flat = [piece for parts in pieces for piece in parts]
        found = iter(self.search(params, flat, n_best, penalties))
        return [[next(found) for _ in parts] for parts in pieces]

    def record(self) -> dict[str, str | int]:
        """The engine's name, version and number formats, as evaluations record them."""
        policy = choose_policy(self._model)
        dtype = str(policy.dtype) if policy.dtype == policy.product_dtype else "mixed"
        return {
            "name": "jax",
            "version": jax.__version__,
            "compute_type": dtype,
            "products": policy.describe_products(),
        }

    def record_pieces(self) -> dict[str, Any]:
        """How lines are cut, as evaluations record it, with what `config` leaves to training."""
        return {
            "longest_piece": self.max_source_length,  # sub-words with EOS
            "splits_sentences": self.splits_sentences,
        }

    def _cut(self, ids: list[int], head: int) -> list[list[int]]:
        """Cuts a sentence into pieces of at most `max_source_length` ids; none if it is empty.

        Each piece begins with the first `head` ids, those of a tag and of a task.
        """
        if ids == [EOS_ID]:
            return []
        if len(ids) <= self.max_source_length:
            return [ids]
        text = ids[head:-1]
        pieces = cut(self.vocabulary.src.pieces(text), max(self.max_source_length - 1 - head, 1))
        return [[*ids[:head], *text[piece.start : piece.stop], EOS_ID] for piece in pieces]

    def search(
        self,
        params: Params,
        pieces: Sequence[SourcePiece],
        n_best: int,
        penalties: tuple[LengthPenalty, ...],
    ) -> list[list[Translation]]:
        """Searches for the `n_best` translations of each piece, best first, or samples as many.

        They are ranked by the penalties. If there are several, a piece's list holds its `n_best`
        translations by the first, then those by the second, and so on.
        """
        samples = n_best if self.config.strategy == "sampling" else 1  # each is a row of its own
        rows = [(piece, sample) for piece in pieces for sample in range(samples)]
        watch = self._make_watch(pieces[0]) if self.watch and len(rows) == 1 else None

        def search_batch(batch: tuple[int, int, list[int]]) -> tuple[list[int], Hypotheses]:
            length, num_rows, indices = batch
            sources = self._make_batch([rows[index] for index in indices], num_rows, length)
            longest = self._find_longest(length)
            return indices, self._batches.search(
                params, sources, longest, n_best // samples, penalties, watch
            )

        found: list[list[Translation]] = [[] for _ in rows]
        batches = self._group([piece.ids for piece, _ in rows])
        hidden = not self.shows_progress
        with tqdm.tqdm(total=len(rows), unit="sentence", leave=False, disable=hidden) as bar:
            for indices, hypotheses in search_concurrently(search_batch, batches):
                for row, index in enumerate(indices):
                    ranked = zip(*(x[row].tolist() for x in hypotheses), strict=True)
                    found[index] = [
                        self._make_translation(rows[index][0], tokens[:length], score, log_prob)
                        for tokens, length, score, log_prob in ranked
                        if math.isfinite(score)
                    ]
                bar.update(len(indices))
        # The samples of a piece are consecutive rows; their lists are joined into one.
        return [
            [*itertools.chain.from_iterable(found[start : start + samples])]
            for start in range(0, len(rows), samples)
        ]

    def _make_batch(
        self, rows: Sequence[tuple[SourcePiece, int]], num_rows: int, length: int
    ) -> Sources:
        """The arrays of a batch; a row is a piece and the number of the sample."""
        limits = np.zeros(num_rows, np.int32)
        limits[: len(rows)] = [self._find_max_tokens(piece.ids) for piece, _ in rows]
        constraints, stream = None, None
        longest = max(len(piece.prefix) for piece, _ in rows)
        if longest or self.config.min_length:
            width = max(_MIN_PREFIX_LENGTH, 1 << (longest - 1).bit_length())
            prefixes = pad_sentences([piece.prefix for piece, _ in rows], num_rows, width)
            constraints = Constraints(prefixes, np.asarray(self.config.min_length, np.int32))
        if self.config.strategy == "sampling":
            numbers = np.zeros((4, num_rows), np.int32)
            seed = _seed_file(self.config.sampling_seed, self.file_number)
            for row, (piece, sample) in enumerate(rows):
                numbers[:, row] = seed, piece.sentence, piece.number, sample
            stream = Stream(*numbers)
        ids = pad_sentences([piece.ids for piece, _ in rows], num_rows, length)
        first = np.full(num_rows, BOS_ID, np.int32)
        first[: len(rows)] = [piece.first for piece, _ in rows]
        begun = first if (first != BOS_ID).any() else None
        return Sources(ids, limits, constraints, stream, begun)

    def _make_watch(self, piece: SourcePiece) -> Callable[[np.ndarray], None] | None:
        """Returns what shows the only hypothesis of a piece; None if there are several."""
        show = self.watch
        if show is None or (self.config.strategy == "beam" and self.config.beam_size > 1):
            return None
        return lambda tokens: show(self._make_text(piece, tokens[0, 0].tolist()))

    def _group(self, sources: Sequence[list[int]]) -> Iterator[tuple[int, int, list[int]]]:
        """(padded length, rows, indices of the sources) of each batch."""
        lengths = [len(ids) for ids in sources]
        return group_by_length(lengths, self.max_source_length, self.config.batch_size)

    def _find_longest(self, padded: int) -> int:
        """The largest number of tokens of hypotheses whose sources are padded to a length."""
        return min(padded + self.config.max_extra_length, self._max_hypothesis_length)

    def _find_max_tokens(self, source: list[int]) -> int:
        """The largest number of tokens of a source's hypotheses, EOS included."""
        return min(len(source) + self.config.max_extra_length, self._max_hypothesis_length)

    def _make_translation(
        self, piece: SourcePiece, ids: list[int], score: float, log_prob: float
    ) -> Translation:
        """Converts a hypothesis, which ends in EOS, to a translation of its piece."""
        at_limit = len(ids) >= self._find_max_tokens(piece.ids)
        return Translation(
            self._make_text(piece, ids), score, log_prob, len(ids),
            is_cut=piece.is_cut, at_limit=at_limit, ids=tuple(ids),
        )  # fmt: skip

    def _make_text(self, piece: SourcePiece, ids: list[int]) -> str:
        tokenizer = self.vocabulary.tgt
        if any(piece.given):
            return insert(piece.given, [tokenizer.decode_behind(ids[len(piece.prefix) :])])
        [text] = tokenizer.decode([ids])
        return clean_line(text)

    def _count_unknown(self, sentences: Sequence[str], prefixes: Sequence[str] | None) -> None:
        """Counts the characters of these texts that the vocabulary lacks, for `log_lengths`."""
        self._unknown.count(self.vocabulary.src, sentences)
        self._unknown.count(self.vocabulary.tgt, prefixes or ())

    def _count_lengths(self, translations: Sequence[Translation]) -> None:
        """Counts the lines whose length had an effect, by the best translation of each."""
        for best in translations:
            self._counts["lines"] += 1
            self._counts["cut"] += best.is_cut
            self._counts["split"] += best.num_pieces > 1 and not best.is_cut
            self._counts["at_limit"] += best.at_limit
            self._counts["failed"] += best.score == -math.inf
        if self.logs_lengths:
            self.log_lengths()

    def log_lengths(self) -> None:
        """Warns of lines that are not what they seem, since the last call.

        Their length had an effect, they failed, or they hold unknown characters.
        """
        self._unknown.warn()
        for kind, effect in (
            (
                "cut",
                f"have more than {self.max_source_length} sub-words with EOS "
                "(decoding.max_source_length) and were translated in pieces",
            ),
            (
                "split",
                "hold several sentences, each of which was translated by itself "
                "(decoding.split_sentences)",
            ),
            (
                "at_limit",
                "have an output that may be incomplete: it has as many sub-words as it may have, "
                f"by decoding.max_extra_length={self.config.max_extra_length}",
            ),
            ("failed", "have no output: the model's output is not finite"),
        ):
            if self._counts[kind]:
                _log.warning("%d of %d lines %s", self._counts[kind], self._counts["lines"], effect)
        self._counts.clear()


def _seed_file(seed: int, number: int) -> int:
    """The seed of an input file's random numbers: `seed` for the first file, and for a pipe."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1) if number else seed
