"""Fills the gaps of texts with a model of left-out spans, or of masked sub-words."""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from t2t.config.data_rules import CONTINUED
from t2t.config.fields import Config, ConfigError
from t2t.data.batch import EOS_ID
from t2t.data.corpus import DataError
from t2t.data.directions import describe_objective
from t2t.data.sentences import clean_sentence
from t2t.data.tokenizer import SENTINEL, Tokenizer
from t2t.decoding.translation import (
    Gap,
    SourcePiece,
    Translation,
    clean_line,
    insert,
    keep_line,
)
from t2t.decoding.translator import Translator
from t2t.evaluation.load_models import RunModel
from t2t.model.parameters import Params


def make_filler(model: RunModel, config: Config) -> "GapFiller":
    """Creates what fills gaps as the model has learned it.

    Raises:
        ConfigError: the model fills no gaps.
    """
    masked = config.data.objective == "masked_lm"
    return MaskFiller(model, config) if masked else GapFiller(model, config)


class GapFiller(Translator):
    """Fills left-out spans: translates a text with sentinels into the spans.

    An output's text is the whole text, around the gaps as it was given; its score and sub-words are
    those of the spans. The log P of a gap is that of its sub-words and of what ends it, the next
    sentinel or EOS, in float32.
    """

    mark, example = SENTINEL.format(r"\d+"), "<extra_id_0>, <extra_id_1>, ... in this order"

    def __init__(self, model: RunModel, config: Config):
        """`config` is that of the model, perhaps with other fields of decoding.

        Raises:
            ConfigError: the run has not learned to fill gaps.
        """
        super().__init__(config, model.vocabulary, model.members)
        self._scorer: Any = model.make_scorer()
        self._sentinels = self.vocabulary.tgt.sentinel_ids
        # A translation model fills gaps without what tells it to translate.
        self._has_prefix = config.data.is_text_alone
        if not self._sentinels:
            raise ConfigError(
                "the run's vocabulary has no sentinels, so its model fills no gaps; use a run of "
                "data.objective='span_corruption' or 'masked_lm'"
            )

    @staticmethod
    def check_run(config: Config) -> None:
        """Raises ConfigError if the config trains no model to fill gaps, or one to do so and more.

        A translation model may be an imported T5, which does both; its vocabulary tells.
        """
        objective = config.data.objective
        if objective not in ("span_corruption", "masked_lm", "translation"):
            use = "t2t.generate without --fill" if objective in CONTINUED else "t2t.evaluate"
            raise ConfigError(
                f"{describe_objective(config.data)} trains no model to fill gaps; use {use}, or a "
                "run of data.objective='span_corruption' or 'masked_lm'"
            )

    def record_pieces(self) -> dict[str, Any]:
        """Returns the task and lengths, on which outputs depend besides the search."""
        return {"task": "fill", "longest_piece": self.max_source_length}

    def translate_n_best(
        self, params: Params, sentences: Sequence[str], n_best: int, **options: Any
    ) -> list[list[Translation]]:
        """As in `Translator`, with the gaps of each output."""
        found = super().translate_n_best(params, sentences, n_best, **options)
        sources = [piece.ids for [piece] in self._cut_all(sentences, None, 0)]
        both = [(ids, each) for ids, own in zip(sources, found, strict=True) for each in own]
        scores = self._scorer.score(params, [(ids, [*each.ids]) for ids, each in both])
        measured = iter(map(self._measure_gaps, both, scores))
        return [[next(measured) for _ in own] for own in found]

    def _count_unknown(self, sentences: Sequence[str], prefixes: Sequence[str] | None) -> None:
        super()._count_unknown([re.sub(self.mark, " ", text) for text in sentences], prefixes)

    def _make_watch(self, piece: SourcePiece) -> None:
        """Shows nothing: what stands behind a gap is known before the gap is filled."""

    def list_marks(self, count: int) -> tuple[list[str], list[int]]:
        """The marks that a text with so many gaps has, and their ids."""
        ids = self._sentinels[:count]
        return self.vocabulary.src.pieces(ids), ids

    def _cut_all(
        self, sentences: Sequence[str], _prefixes: Sequence[str] | None, first: int
    ) -> list[list[SourcePiece]]:
        """One piece for each text; its target begins with the first sentinel."""
        pieces = []
        for number, text in enumerate(sentences, start=first):
            marks = re.findall(self.mark, text)
            wanted, ids = self.list_marks(len(marks))
            if len(ids) < len(marks):
                raise DataError(
                    f"text {number + 1} has {len(marks)} gaps, but the model knows {len(ids)}; "
                    "fill them in several texts"
                )
            if not marks or marks != wanted:
                raise DataError(
                    f"text {number + 1} has the gaps {', '.join(marks) or '(none)'}; write "
                    f"{self.example}"
                )
            row = encode_marked(self.vocabulary.src, re.split(self.mark, text), ids)
            if self._has_prefix:
                row = [*self.vocabulary.src.tag_ids, *row]
            if len(row) > self.max_source_length:
                raise DataError(
                    f"text {number + 1} has {len(row)} sub-words with EOS, but may have "
                    f"{self.max_source_length} (decoding.max_source_length); shorten it"
                )
            given = re.split(self.mark, keep_line(text))
            pieces.append([SourcePiece(row, ids[:1], number, text=text, given=given)])
        return pieces

    def _find_spans(self, ids: Sequence[int]) -> dict[int, slice]:
        """The span behind each sentinel of an output; the sub-word at `stop` ends it."""
        ends = [n for n, token in enumerate(ids) if token in (*self._sentinels, EOS_ID)]
        return {ids[n]: slice(n + 1, stop) for n, stop in itertools.pairwise(ends)}

    def _make_text(self, piece: SourcePiece, ids: list[int]) -> str:
        spans, sentinels = self._find_spans(ids), self._sentinels[: len(piece.given) - 1]
        return self._insert(piece, [ids[spans.get(token, slice(0))] for token in sentinels])

    def _insert(self, piece: SourcePiece, filled: Sequence[list[int]]) -> str:
        """The text of a piece with its gaps filled; those without text between are decoded as one.

        Bytes that fill several masks may be one character.
        """
        given, written, run = [piece.given[0]], list[str](), list[int]()
        for number, (ids, after) in enumerate(zip(filled, piece.given[1:], strict=True), start=1):
            run += ids
            if after or number == len(filled):
                given.append(after)
                written.append(self.vocabulary.tgt.decode_behind(run))
                run = []
        return insert(given, written)

    def _decode(self, ids: Sequence[int]) -> str:
        [text] = self.vocabulary.tgt.decode([ids])
        return clean_line(text)

    def _measure_gaps(
        self, both: tuple[list[int], Translation], log_probs: np.ndarray
    ) -> Translation:
        """The output of a source with its gaps."""
        source, output = both
        spans, gaps = self._find_spans(output.ids), []
        for sentinel in (token for token in source if token in self._sentinels):
            own = spans.get(sentinel, slice(0, 0))
            total = log_probs[own.start : own.stop + 1].sum(dtype=np.float64)
            log_prob = float(total) if sentinel in spans else -math.inf
            gaps.append(Gap(self._decode(output.ids[own]), log_prob))
        return dataclasses.replace(output, gaps=tuple(gaps))


class MaskFiller(GapFiller):
    """Fills masked sub-words, each by itself: output n has the n-th best sub-word of every mask."""

    mark, example = r"\[MASK\]", "[MASK] in place of each sub-word that is to be found"

    def list_marks(self, count: int) -> tuple[list[str], list[int]]:
        """As in `GapFiller`."""
        return ["[MASK]"] * count, self._sentinels[:1] * count

    def translate_n_best(
        self, params: Params, sentences: Sequence[str], n_best: int, **options: Any
    ) -> list[list[Translation]]:
        """As in `GapFiller`; a score is the sum of the masks' log P."""
        pieces = [own for [own] in self._cut_all(sentences, None, options.get("first", 0))]
        self._count_unknown(sentences, None)
        rows = [piece.ids for piece in pieces]
        mask, words = self._sentinels[0], np.array(self.vocabulary.tgt.word_ids)
        masks = [(n, at) for n, ids in enumerate(rows) for at, t in enumerate(ids) if t == mask]
        found: list[list[dict[int, tuple[int, float]]]]  # of each output: place -> sub-word, log P
        found = [[{} for _ in range(min(n_best, len(words)))] for _ in rows]
        for index, log_probs in self._scorer.predict(params, [(rows[n], at) for n, at in masks]):
            n, at = masks[index]
            best = words[np.argsort(-log_probs[words], kind="stable")[:n_best]]
            for output, token in zip(found[n], best.tolist(), strict=True):
                output[at] = token, float(log_probs[token])
        outputs = [
            [self._make_output(piece, each) for each in own]
            for piece, own in zip(pieces, found, strict=True)
        ]
        self._count_lengths([best for best, *_ in outputs])
        return outputs

    def _make_output(self, piece: SourcePiece, found: dict[int, tuple[int, float]]) -> Translation:
        ids = tuple(found[at][0] if at in found else token for at, token in enumerate(piece.ids))
        filled = [each for _, each in sorted(found.items())]
        gaps = tuple(Gap(self._decode([token]), log_prob) for token, log_prob in filled)
        text = self._insert(piece, [[token] for token, _ in filled])
        total = sum(log_prob for _, log_prob in filled)
        return Translation(text, total, total, len(gaps), ids=ids, gaps=gaps)


def encode_marked(tokenizer: Tokenizer, parts: Sequence[str], ids: Sequence[int]) -> list[int]:
    """Encodes a text whose parts are separated by ids; returns it with EOS.

    What follows an id without a space begins no word.
    """
    row: list[int] = []
    for part, token in zip(parts, [*ids, EOS_ID], strict=True):
        text, is_glued = clean_sentence(part), bool(row and part[:1].strip())
        own = tokenizer.encode_behind(text) if is_glued else tokenizer.encode_words([text])[0][:-1]
        row += [*own, token]
    return row
