"""Measures of translations, with intervals; `text_measures` makes the measures of texts.

A `Measure` maps each sentence to statistics, sums them, and computes the score from the sums. So
intervals and verdicts resample the sentences, or whole documents, of any measure alike. All
measures take raw text.
"""

import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from t2t.config.languages import (
    OWN_TOKENIZERS,
    is_text_without_spaces,
    normalize_language,
    writes_spaces,
)
from t2t.config.measures import MEASURE_FIELD
from t2t.config.variants import make_variant_error
from t2t.evaluation.corpus_loss import compute_perplexity
from t2t.evaluation.number_format import format_score

_log = logging.getLogger(__name__)

LEVEL = 0.05  # significance level; intervals are 95%
RESAMPLES = 1000  # bootstrap resamples of the test set's sentences, sacreBLEU's default
LEFT_OUT = "; left out: "  # begins the end of a definition that names texts without a score
MIN_SENTENCES = 30  # resamples of fewer hold too few different sentences to show how scores vary

Interval = tuple[float, float]
Statistics = Float[np.ndarray, "m n _"]  # m seeds, n sentences: the counts a score is computed from
ScoreFunction = Callable[[Float[np.ndarray, "_"]], float]  # from statistics summed over sentences
# From sources, hypotheses and one or more references to the statistics of each sentence.
Segments = Callable[
    [Sequence[str], Sequence[str], Sequence[Sequence[str]]], Float[np.ndarray, "n _"]
]


class MeasureError(RuntimeError):
    """A measure cannot be computed in this environment; the message names a remedy."""


class TestSet(NamedTuple):
    """The sentences that all systems translate."""

    sources: Sequence[str]
    references: Sequence[Sequence[str]]  # one or more lists; line n of each is of source n
    documents: Int[np.ndarray, "n"] | None = None  # number of each sentence's document, from 0
    name: str = ""  # in file names and scores
    fingerprint: str = ""  # SHA-256 of the texts
    tgt_language: str = ""  # of the references, if the test set says so
    part: Int[np.ndarray, "_"] | None = None  # numbers of the sentences that count; None: all
    kinds: Sequence[str] | None = None  # the kind of each sentence, by which scores are told apart

    @property
    def unit(self) -> str:
        """The unit that is resampled: sentences, or documents if they are known."""
        return "sentences" if self.documents is None else "documents"

    def take_part(self, statistics: Statistics) -> Float[np.ndarray, "m p _"]:
        """Returns the statistics of the sentences that count."""
        return statistics if self.part is None else statistics[:, self.part]

    def sum_units(self, statistics: Statistics) -> Float[np.ndarray, "m d _"]:
        """Sums the statistics of each document, of the sentences that count.

        `statistics` are those of all sentences. Without documents nothing is summed.
        """
        statistics = self.take_part(statistics)
        if self.documents is None:
            return statistics
        documents = self.documents
        if self.part is not None:  # numbered anew, without the documents that do not count
            documents = np.unique(documents[self.part], return_inverse=True)[1]
        seeds, _, width = statistics.shape
        sums = np.zeros((seeds, int(documents.max()) + 1, width))
        for number, document in enumerate(documents):
            sums[:, document] += statistics[:, number]
        return sums


@dataclasses.dataclass(frozen=True)
class Score:
    """The value of one measure on one corpus."""

    value: float  # 0 to 100; TER may exceed 100, perplexity starts at 1
    definition: str  # preprocessing of the text, and sacreBLEU's signature
    detail: str  # sacreBLEU's line: BLEU's four precisions, brevity penalty and lengths in words
    interval: Interval | None = None  # as in `describe_intervals`


def divide(sums: Float[np.ndarray, "2"]) -> float:
    """The mean of values whose statistics are (value, count)."""
    return float(sums[0] / sums[1])


def count_scores(scores: Sequence[float] | Float[np.ndarray, "n"]) -> Float[np.ndarray, "n 2"]:
    """Returns (score, 1) of each sentence, the statistics whose mean `divide` computes."""
    return np.stack([np.array(scores, float), np.ones(len(scores))], axis=-1)


@dataclasses.dataclass(frozen=True)
class Measure:
    """A score of a corpus: a function of statistics that are summed over its sentences."""

    name: str
    definition: str  # preprocessing, settings and version: equal only if scores are comparable
    segments: Segments | None = None  # None: the statistics are not computed from texts
    aggregate: ScoreFunction = divide  # the score of summed statistics
    higher_is_better: bool = True
    limits: Interval = (-math.inf, math.inf)  # of the score
    is_stored: bool = False  # evaluations keep the scores of the sentences: a model computes them
    is_share: bool = False  # statistics are (1 if a sentence is right else 0, 1), the score percent
    describe: Callable[[Float[np.ndarray, "_"]], str] | None = None  # `Score.detail`, from sums
    metric: Any = None  # sacreBLEU's, if it is one

    def clip(self, interval: Interval) -> Interval:
        """Limits an interval of scores to values that a score can have."""
        low, high = np.clip(interval, *self.limits)
        return float(low), float(high)

    @property
    def width(self) -> float:
        """The largest difference of two scores."""
        return self.limits[1] - self.limits[0]

    def collect(self, hypotheses: Sequence[str], test_set: TestSet) -> Float[np.ndarray, "n _"]:
        """Returns the statistics of each sentence.

        Raises:
            ValueError: there is not one hypothesis for each reference, or none at all.
            ConfigError: a registered measure returned something else.
        """
        for references in test_set.references:
            if not hypotheses or len(hypotheses) != len(references):
                raise ValueError(
                    f"{len(hypotheses)} hypotheses and {len(references)} references; a score needs "
                    "one hypothesis for each reference, line by line, and at least one"
                )
        assert self.segments, f"{self.name} is not computed from texts"
        found = np.asarray(self.segments(test_set.sources, hypotheses, test_set.references), float)
        if found.ndim != 2 or len(found) != len(hypotheses) or not np.isfinite(found).all():
            raise make_variant_error(
                MEASURE_FIELD,
                self.name,
                f"has segments of shape {found.shape} for {len(hypotheses)} sentences, all finite: "
                f"{bool(np.isfinite(found).all())}",
            )
        return found

    def score(
        self, hypotheses: Sequence[str], test_set: TestSet, *, with_interval: bool = False
    ) -> Score:
        """Scores a corpus, with an interval on request if its sentences are enough for one."""
        counts = self.collect(hypotheses, test_set)
        return self.score_counts(counts, test_set, with_interval=with_interval)

    def score_sentences(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> Float[np.ndarray, "n"]:
        """Returns the score of each sentence by itself, with one reference each."""
        counts = self.collect(hypotheses, TestSet(sources, [references]))
        return np.array([self.aggregate(one) for one in counts])

    def score_counts(
        self,
        counts: Float[np.ndarray, "n _"],
        test_set: TestSet,
        *,
        with_interval: bool = False,
    ) -> Score:
        """Computes the score from the statistics of each sentence."""
        sums = test_set.take_part(counts[None])[0].sum(axis=0)
        value, interval = self.aggregate(sums), None
        if with_interval:
            interval, _ = resample_sentences(self.aggregate, test_set.sum_units(counts[None]))
        detail = self.describe(sums) if self.describe else f"{self.name} = {format_score(value)}"
        return Score(value, self.definition, detail, interval)


def describe_intervals(unit: str = "sentences") -> str:
    """Describes how the intervals of saved scores are computed."""
    return (
        f"95%, percentiles of {RESAMPLES} bootstrap resamples of the {unit}: covers the choice of "
        f"the {unit}, not the seed of the training; none below {MIN_SENTENCES} {unit}"
    )


def resample_sentences(
    score: ScoreFunction, statistics: Statistics
) -> tuple[Interval | None, Float[np.ndarray, "R m"]]:
    """Scores each seed on resamples of the sentences; returns an interval, and these scores.

    The interval is from the 2.5% to the 97.5% percentile of the mean over seeds. It is None, and
    there are no resamples, if there are fewer than `MIN_SENTENCES`.
    """
    count = statistics.shape[1]
    if count < MIN_SENTENCES:
        return None, np.zeros((0, len(statistics)))
    sums = np.einsum("Rn,mnk->Rmk", draw_sentences(count), statistics, optimize=True)
    resampled = np.array([[score(one) for one in of_seeds] for of_seeds in sums])
    low, high = np.quantile(resampled.mean(axis=1), (LEVEL / 2, 1 - LEVEL / 2))
    return (float(low), float(high)), resampled


@functools.lru_cache(4)
def draw_sentences(count: int) -> Float[np.ndarray, "R n"]:
    """Returns how often each resample holds each sentence.

    The generator's seed is fixed, so all systems get the same resamples, which pairs them. NumPy
    may change the draws of `Generator`, but not those of `RandomState` (NEP 19), which are equal so
    far. So saved intervals stay verifiable.
    """
    random = np.random.RandomState(np.random.PCG64(12345))
    draws = random.multinomial(count, [1 / count] * count, size=RESAMPLES)
    return draws.astype(float)


def make_likelihood(token: str) -> Measure:
    """Returns the mean negative log-likelihood of the references per token, such as a sub-word.

    The statistics, (nats, tokens) of each reference, come from the model.
    """
    return Measure(
        f"nats per {token}", f"nats per {token}", higher_is_better=False, limits=(0.0, math.inf),
    )  # fmt: skip


def make_prediction_measure(name: str, definition: str) -> Measure:
    """Returns perplexity or accuracy of what a run on text alone predicts.

    The statistics, (nats, predicted sub-words, right ones) of each text, come from the model.
    """
    aggregate, higher, limits = {
        "perplexity": (lambda sums: compute_perplexity(*sums[:2]), False, (1.0, math.inf)),
        "accuracy": (lambda sums: float(100 * sums[2] / sums[1]), True, (0.0, 100.0)),
    }[name]
    return Measure(
        name,
        definition,
        aggregate=aggregate,
        higher_is_better=higher,
        limits=limits,
        describe=lambda sums: "{:.1f} nats, {:.0f} sub-words, {:.0f} right".format(*sums),
    )


def have_spaces(tgt_language: str, *references: Iterable[str]) -> bool:
    """Returns whether references have spaces between words; warns where BLEU needs them in vain.

    sacreBLEU's default tokeniser, 13a, takes a Chinese sentence for one word. Of several texts of
    references each has to have spaces.
    """
    language = normalize_language(tgt_language)
    if tgt_language and not language:
        _log.warning(
            "%s is not a language code of ISO 639: to the measures the language is unknown; write "
            "one such as de, deu or zho_Hans",
            tgt_language,
        )
    samples = ("".join(itertools.islice(lines, 1000)) for lines in references)
    if not any(map(is_text_without_spaces, samples)):
        return writes_spaces(tgt_language)
    if language not in OWN_TOKENIZERS:
        remedy = (
            f"sacreBLEU has no tokeniser for {language}: compare chrf"
            if language and not writes_spaces(language)
            else "name their language by data.tgt_language, or --tgt_language of t2t.evaluate, "
            "such as zh or ja; for others compare chrf"
        )
        _log.warning(
            "the references have no spaces between words, and with data.tgt_language=%r BLEU takes "
            "words to be what spaces separate (tokeniser 13a): it means nothing; %s",
            tgt_language, remedy,
        )  # fmt: skip
    return False
