"""`TextScorer`: the probability of given translations; and the reranking of n-best lists."""

import functools
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float

from t2t.config.fields import ConfigError
from t2t.data.batch import find_limit
from t2t.data.corpus import TextFile
from t2t.data.tokenizer import Vocabulary
from t2t.data.unknown_characters import UnknownCharacters
from t2t.decoding.beam_search import LengthPenalty
from t2t.decoding.translation import Translation, clean_line, drop_repeated
from t2t.evaluation.likelihood import TEXT_MODELS, count_several, warn_of_whole_pairs
from t2t.evaluation.load_models import RunModel
from t2t.model.parameters import Params

_log = logging.getLogger(__name__)

Scores = Float[np.ndarray, "T"]  # log P of each token
CHUNK = 1024  # pairs scored together


class TextScorer:
    """Computes log-probabilities of pairs of text with a run's model."""

    def __init__(self, model: RunModel):
        """The parameters are restored when the first pair is scored."""
        config, self._model, self.vocabulary = model.config, model, model.vocabulary
        self.penalty = LengthPenalty(config.decoding.length_penalty, config.decoding.alpha)
        self._scorer = model.make_scorer(find_limit(config, model.members.position_limit))
        self._longest = config.data.max_length
        self.is_of_text = config.data.objective in TEXT_MODELS  # and sources are not read

    def check_sources(self, given: bool, listed: bool) -> None:
        """Raises ConfigError if sources are missing, or are of no use.

        The sources of a list tell whose translations stand in a line.
        """
        if self.is_of_text and given and not listed:
            raise ConfigError(
                f"--src is given, but data.objective={self._model.config.data.objective!r} is of "
                "text alone; leave it out"
            )
        if not (self.is_of_text or given):
            raise ConfigError("--src is missing; name the file of the source sentences")

    @functools.cached_property
    def _params(self) -> Params:
        return self._model.place(self._model.restore()[0])

    def score(
        self, pairs: Iterator[tuple[str, str]]
    ) -> Iterator[tuple[tuple[str, str], list[int], Scores]]:
        """Yields each pair with the target's ids and their log-probabilities.

        Raises:
            RunError: a checkpoint does not exist or cannot be read.
        """
        total = too_long = longer = several = 0
        unknown = UnknownCharacters()
        while chunk := list(itertools.islice(pairs, CHUNK)):
            texts = [("", tgt) for _, tgt in chunk] if self.is_of_text else chunk
            encoded = self.vocabulary.encode_pairs(texts)
            unknown.count_pairs(self.vocabulary, texts)
            with jax.set_mesh(self._model.mesh):
                scores = self._scorer.score(self._params, encoded)
            total += len(chunk)
            too_long += sum(bool(np.isnan(score).any()) for score in scores)
            longer += sum(
                self._longest < max(map(len, pair)) <= self._scorer.limit for pair in encoded
            )
            several += count_several(self._model.config, self.vocabulary, [src for src, _ in texts])
            ids = [tgt[: len(own)] for (_, tgt), own in zip(encoded, scores, strict=True)]
            yield from zip(chunk, ids, scores, strict=True)  # of masked sub-words without EOS
        warn_of_whole_pairs(longer, several, total, self._longest)
        unknown.warn()
        if too_long:
            _log.warning(
                "%d pairs have the score nan: a side exceeds %d sub-words with EOS, or the model's "
                "output is not finite", too_long, self._scorer.limit,
            )  # fmt: skip


def format_scores(scores: Scores, ids: Sequence[int], vocabulary: Vocabulary | None) -> str:
    """Formats the line of a pair; with a vocabulary, log P and spelling of each token follow."""
    total = f"{float(np.sum(scores, dtype=np.float64)):.6f}"
    if vocabulary is None:
        return f"{total}\n"
    pieces = (clean_line(piece) or "?" for piece in vocabulary.tgt.pieces(ids))
    return f"{total}\t{' '.join(f'{score:.6f}' for score in scores)}\t{' '.join(pieces)}\n"


def read_list(n_best_list: Path, num_sources: int) -> list[tuple[int, float, str]]:
    """Returns number, score and text of each line of a list, by the number of the source line.

    Lists of one source may have been concatenated.

    Raises:
        ConfigError: a line has another form, or no source line has its number.
    """
    listed, entries = TextFile(n_best_list), []
    for place, line in enumerate(listed.read(0, len(listed)), start=1):
        number, score, text = [*line.split("\t", 2), "", ""][:3]
        try:
            value = float(score)
        except ValueError:
            value = None
        if value is None or not number.isdecimal() or line.count("\t") != 2:
            raise ConfigError(
                f"--n_best_list, line {place}: {line[:40]!r} is not a number, a score and a text "
                "with tabs between; make the list with t2t.translate --n_best=N --scores, without "
                "--alignments"
            )
        if not 1 <= int(number) <= num_sources:
            raise ConfigError(
                f"--n_best_list, line {place}: there is no line {number} in --src, which has "
                f"{num_sources}; give the source of this list"
            )
        entries.append((int(number), value, text))
    return sorted(entries, key=lambda entry: entry[0])


def rerank(
    scorer: TextScorer, src: Path, n_best_list: Path, share: float, reverse: bool
) -> Iterator[tuple[int, list[Translation]]]:
    """Yields the number of each source line in the list, and its translations, best first.

    A text that the list has several times for a line is yielded once, with its best score. An empty
    one has no sub-word that could be masked: for a model of masked sub-words it is no translation,
    with the score -inf.

    Raises:
        ConfigError: as in `read_list`.
    """
    sources = TextFile(src)
    entries = read_list(n_best_list, len(sources))

    def make_pairs() -> Iterator[tuple[str, str]]:
        for number, _, text in entries:
            [source] = sources.read(number - 1, number)
            yield (text, source) if reverse else (source, text)

    found = zip(entries, scorer.score(make_pairs()), strict=True)
    for number, group in itertools.groupby(found, key=lambda each: each[0][0]):
        translations = []
        for (_, old, text), (_, ids, scores) in group:
            log_prob = float(np.sum(scores, dtype=np.float64))
            new = log_prob / float(scorer.penalty(len(ids))) if ids else -math.inf
            # A sentence without a translation has the score -inf, and 0 * -inf is NaN.
            score = sum(part * each for part, each in ((1 - share, old), (share, new)) if part)
            translations.append(Translation(text, score, log_prob, len(ids)))
        ranked = sorted(translations, key=lambda x: (np.isnan(x.score), -x.score))
        yield number, drop_repeated(ranked)
