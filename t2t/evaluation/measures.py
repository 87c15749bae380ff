"""Measures of translations: BLEU, chrF, TER and exact match, with definitions and intervals.

BLEU values are comparable only if the text was normalised and tokenised alike. Besides sacreBLEU's
standard there are `bleu_paper`, computed as for the paper, and `bleu_multi30k`, computed as in the
literature on Multi30k. All measures take raw text.
"""

import dataclasses
import functools
import itertools
import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics import base as sacrebleu_base
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from t2t.config.languages import (
    OWN_TOKENIZERS,
    is_text_without_spaces,
    normalize_language,
    writes_spaces,
)
from t2t.config.measure_names import MEASURES

_log = logging.getLogger(__name__)

LEVEL = 0.05  # significance level; intervals are 95%
RESAMPLES = 1000  # bootstrap resamples of the test set's sentences, sacreBLEU's default
MIN_SENTENCES = 30  # resamples of fewer hold too few different sentences to show how scores vary
INTERVAL_DEFINITION = (
    f"95%, percentiles of {RESAMPLES} bootstrap resamples of the sentences: covers the choice of "
    f"the sentences, not the seed of the training; none below {MIN_SENTENCES} sentences"
)

Interval = tuple[float, float]
Texts = Sequence[Sequence[str]]  # the hypotheses of each seed
Statistics = Float[np.ndarray, "m n _"]  # m seeds, n sentences: the counts a score is computed from
ScoreFunction = Callable[[Float[np.ndarray, "_"]], float]  # from statistics summed over sentences


@dataclasses.dataclass(frozen=True)
class Scale:
    """The values that a score can have, and which of them are better."""

    higher_is_better: bool = True
    limits: Interval = (0.0, 100.0)
    is_share: bool = False  # the score is the percentage of the sentences that are right

    def clip(self, interval: Interval) -> Interval:
        """Limits an interval of scores to values that a score can have."""
        low, high = np.clip(interval, *self.limits)
        return float(low), float(high)

    def clip_difference(self, interval: Interval) -> Interval:
        """Limits an interval of differences of two scores."""
        width = self.limits[1] - self.limits[0]
        low, high = np.clip(interval, -width, width)
        return float(low), float(high)


class ExactMatchSignature(sacrebleu_base.Signature):
    """The signature of `ExactMatch`."""

    def __init__(self, args: dict[str, Any]):
        super().__init__(args)
        self.update("case", "lc" if args["lowercase"] else "mixed")
        self.update("space", "one")  # any sequence of white space counts as one space


class ExactMatch(Metric):
    """The percentage of sentences whose words equal those of a reference."""

    _SIGNATURE_TYPE = ExactMatchSignature

    def __init__(self, lowercase: bool = False):
        super().__init__()  # type: ignore[no-untyped-call]  # of sacreBLEU
        self.lowercase = lowercase

    def _preprocess_segment(self, sent: str) -> str:
        return " ".join((sent.lower() if self.lowercase else sent).split())

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        """Returns [1 if the hypothesis matches else 0, 1 sentence]."""
        return [int(hypothesis in ref_kwargs["references"]), 1]

    def _aggregate_and_compute(self, stats: list[list[int]]) -> sacrebleu_base.Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: Sequence[Any] | np.ndarray) -> sacrebleu_base.Score:
        matches, sentences = stats
        return sacrebleu_base.Score("exact match", float(100 * matches / sentences))


class MeasureError(RuntimeError):
    """A measure cannot be computed in this environment; the message names a remedy."""


@dataclasses.dataclass(frozen=True)
class Score:
    """The value of one measure on one corpus."""

    value: float  # 0 to 100; TER may exceed 100, perplexity starts at 1
    definition: str  # preprocessing of the text, and sacreBLEU's signature
    detail: str  # sacreBLEU's line: BLEU's four precisions, brevity penalty and lengths in words
    interval: Interval | None = None  # as in `INTERVAL_DEFINITION`


@dataclasses.dataclass(frozen=True)
class Measure:
    """A sacreBLEU metric, and the preprocessing of the text before it."""

    metric: Metric
    preprocessing: str = ""  # in words, for the definition
    preprocess: Callable[[str], str] = str

    @property
    def scale(self) -> Scale:
        """The values of the score. TER counts errors and may exceed 100."""
        if isinstance(self.metric, TER):
            return Scale(higher_is_better=False, limits=(0.0, math.inf))
        return Scale(is_share=isinstance(self.metric, ExactMatch))

    def score(
        self, hypotheses: Sequence[str], references: Sequence[str], *, with_interval: bool = False
    ) -> Score:
        """Scores a corpus, with an interval over sentences on request if they are enough for one.

        Raises:
            ValueError: there is not one hypothesis for each reference, or none at all.
        """
        if not hypotheses or len(hypotheses) != len(references):
            raise ValueError(
                f"{len(hypotheses)} hypotheses and {len(references)} references; a score needs one "
                "hypothesis for each reference, line by line, and at least one"
            )
        counts = self._count([*map(self.preprocess, references)], hypotheses)
        score = self.metric._aggregate_and_compute(counts)  # as in sacreBLEU's `corpus_score`
        signature = self.metric.get_signature()
        for name in ("bs", "seed"):  # they describe sacreBLEU's interval, not the score
            signature.update(name, None)
        interval = None
        if with_interval:
            statistics = np.array([counts], float)
            interval, _ = resample_sentences(sacrebleu_score(self.metric), statistics)
        return Score(
            value=float(score.score),
            definition=f"{self.preprocessing}; {signature}"
            if self.preprocessing
            else str(signature),
            detail=str(score),
            interval=interval,
        )

    def _count(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[list[Any]]:
        """sacreBLEU's counts for each sentence; the references are preprocessed already."""
        lines = [*map(self.preprocess, hypotheses)]
        counts: list[list[Any]] = self.metric._extract_corpus_statistics(lines, [references])
        return counts


def collect_statistics(measure: Measure, system: Texts, references: Sequence[str]) -> Statistics:
    """Returns sacreBLEU's counts for each sentence of each seed's translations."""
    prepared = [*map(measure.preprocess, references)]
    return np.array([measure._count(prepared, lines) for lines in system], float)


def sacrebleu_score(metric: Metric) -> ScoreFunction:
    """Returns the function that computes the metric's score from summed statistics."""
    return lambda sums: float(metric._compute_score_from_stats(sums.tolist()).score)


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

    The generator's seed is fixed, so all systems get the same resamples, which pairs them.
    """
    draws = np.random.default_rng(12345).multinomial(count, [1 / count] * count, size=RESAMPLES)
    return draws.astype(float)


def make_measure(name: str, tgt_language: str) -> Measure:
    """Returns the measure of this name in `MEASURES` for hypotheses in this language.

    `tgt_language` is a code that `normalize_language` takes; "": unknown.

    Raises:
        MeasureError: sacreBLEU tokenises this language with a package that is not installed.
    """
    language = normalize_language(tgt_language)
    words = language or "en"  # whose abbreviations Moses takes where it has none
    match name:
        case "bleu" | "bleu_lowercase":
            return Measure(_make_bleu(language, lowercase=name.endswith("lowercase")))
        case "chrf" | "chrf_lowercase":
            return Measure(CHRF(lowercase=name.endswith("lowercase")))
        case "ter":  # lower-cases by definition
            return Measure(TER())
        case "exact_match" | "exact_match_lowercase":
            return Measure(ExactMatch(lowercase=name.endswith("lowercase")))
        case "bleu_multi30k":
            preprocessing = "lower-cased, Moses punctuation normalised and Moses tokenised"
            tokenise = _make_multi30k_tokeniser(words)
            return Measure(_make_plain_bleu(), f"{preprocessing} ({words})", tokenise)
        case "bleu_paper":
            preprocessing = f"both sides: Unicode punctuation replaced, Moses tokenised ({words})"
            preprocessing += ", compounds split at hyphens" if words == "de" else ""
            return Measure(_make_plain_bleu(), preprocessing, _make_paper_tokeniser(words))
        case _:
            raise ValueError(f"measure {name!r} is unknown; use one of {', '.join(MEASURES)}")


def make_utility(name: str, tgt_language: str) -> Metric:
    """Returns sacreBLEU's chrF, or its BLEU with the effective order, as meant for sentences.

    Raises:
        MeasureError: as in `make_measure`.
    """
    metric = make_measure(name, tgt_language).metric
    if isinstance(metric, BLEU):
        metric.effective_order = True
    return metric


def score_corpus(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tgt_language: str,
    names: Sequence[str] = MEASURES,
    *,
    with_intervals: bool = False,
) -> dict[str, Score]:
    """Scores a corpus by the measures of these names, with intervals over sentences on request.

    Raises:
        ValueError: there is not one hypothesis for each reference, or none at all.
    """
    return {
        name: make_measure(name, tgt_language).score(
            hypotheses, references, with_interval=with_intervals
        )
        for name in names
    }


def have_spaces(tgt_language: str, references: Iterable[str]) -> bool:
    """Returns whether references have spaces between words; warns where BLEU needs them in vain.

    sacreBLEU's default tokeniser, 13a, takes a Chinese sentence for one word.
    """
    language = normalize_language(tgt_language)
    if tgt_language and not language:
        _log.warning(
            "%s is no language code of ISO 639: to the measures the language is unknown; write "
            "one such as de, deu or zho_Hans",
            tgt_language,
        )
    sample = "".join(itertools.islice(references, 1000))
    if not is_text_without_spaces(sample):
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


def _make_bleu(language: str, *, lowercase: bool) -> BLEU:
    """BLEU with sacreBLEU's tokeniser for the language."""
    try:
        return BLEU(lowercase=lowercase, trg_lang=language)
    except (ImportError, RuntimeError):
        raise MeasureError(
            f"BLEU of data.tgt_language={language} needs a package that tokenises it: "
            f"pip install 'sacrebleu[{language}]'"
        ) from None


def _make_plain_bleu() -> BLEU:
    """BLEU of words separated by spaces, without smoothing."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def format_interval(interval: Sequence[float] | None) -> str:
    """Formats an interval like "[38.10, 41.40]"; empty for None."""
    return f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""


def _make_moses(language: str) -> tuple[Any, Any]:
    """Returns sacremoses' normaliser of punctuation and its tokeniser."""
    import sacremoses  # here because it takes 0.2 s, and a training without BLEU does not need it

    return sacremoses.MosesPunctNormalizer(language), sacremoses.MosesTokenizer(language)


def _make_multi30k_tokeniser(language: str) -> Callable[[str], str]:
    """The preprocessing of Wu et al. 2021.

    Their text-only Transformer scores 41.02 on test_2016_flickr.
    """
    normaliser, tokenizer = _make_moses(language)

    @functools.lru_cache(1 << 16)
    def tokenise(line: str) -> str:
        text = normaliser.normalize(line.lower())
        return str(tokenizer.tokenize(text, return_str=True, escape=False))

    return tokenise


def _make_paper_tokeniser(language: str) -> Callable[[str], str]:
    """The preprocessing of tensor2tensor's `utils/get_ende_bleu.sh`.

    Compounds are split at hyphens in German: "rot-weiß" becomes three words. There are several
    revisions of that script. The last one replaces Unicode punctuation and tokenises in the
    hypotheses only, since its references are already tokenised, and splits compounds on both sides;
    an earlier one does not replace punctuation. Here both sides are raw text and go through all
    steps. It is not known which revision was used for the paper's table 2.
    """
    normaliser, tokenizer = _make_moses(language)

    @functools.lru_cache(1 << 16)
    def tokenise(line: str) -> str:
        text = normaliser.replace_unicode_punct(line)
        text = str(tokenizer.tokenize(text, return_str=True, escape=False))
        return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text) if language == "de" else text

    return tokenise
