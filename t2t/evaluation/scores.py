"""How good translations are: BLEU, chrF, TER and exact match of a corpus, each with its definition.

BLEU compares only where text was treated alike, so besides sacreBLEU's standard there are two
measures in which results were published. All of them are given raw text.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from t2t.evaluation.exact_match import ExactMatch

MEASURES = (
    "bleu", "chrf", "ter", "exact_match", "bleu_lowercase", "chrf_lowercase",
    "exact_match_lowercase", "bleu_multi30k", "bleu_paper",
)  # fmt: skip
RESAMPLES = 1000  # of the test set's sentences, sacreBLEU's own number
INTERVAL_DEFINITION = (
    f"95%, sacreBLEU's bootstrap over sentences ({RESAMPLES} resamples): what other sentences of "
    "this kind would give this model; not what another seed would give"
)


class MeasureError(RuntimeError):
    """A measure that cannot be computed here; the message says what would help."""


@dataclasses.dataclass(frozen=True)
class Score:
    """One measure of one corpus."""

    value: float  # 0 to 100; TER may be more
    definition: str  # what was done to the text, and sacreBLEU's signature
    detail: str  # sacreBLEU's line: BLEU's four precisions, brevity penalty and lengths in words
    interval: tuple[float, float] | None = None  # as in `INTERVAL_DEFINITION`


@dataclasses.dataclass(frozen=True)
class Measure:
    """A metric, and what is done to the text before."""

    metric: Metric
    treatment: str = ""  # in words, for the definition
    treat: Callable[[str], str] = str

    @property
    def higher_is_better(self) -> bool:
        """TER counts errors."""
        return not isinstance(self.metric, TER)

    def score(
        self, hypotheses: Sequence[str], references: Sequence[str], resamples: int = 0
    ) -> Score:
        """The corpus' score, with an interval where there are `resamples`.

        Raises:
            ValueError: there is not one hypothesis for each reference, or none at all.
        """
        if not hypotheses or len(hypotheses) != len(references):
            raise ValueError(
                f"{len(hypotheses)} hypotheses and {len(references)} references; a score needs one "
                "hypothesis for each reference, line by line, and at least one"
            )
        treated = [[*map(self.treat, side)] for side in (hypotheses, references)]
        score = self.metric.corpus_score(treated[0], [treated[1]], n_bootstrap=max(resamples, 1))
        signature = self.metric.get_signature()
        for name in ("bs", "seed"):  # of the interval, not of the score
            signature.update(name, None)
        # sacreBLEU keeps mean and half width of its interval where only its printing reads them.
        low, high = score._mean - score._ci, score._mean + score._ci
        return Score(
            value=float(score.score),
            definition=f"{self.treatment}; {signature}" if self.treatment else str(signature),
            detail=str(score),
            interval=(float(low), float(high)) if resamples else None,
        )


def make_measure(name: str, tgt_language: str) -> Measure:
    """One of `MEASURES`; the language is that of the hypotheses.

    Raises:
        MeasureError: sacreBLEU cuts words of this language with a package that is not installed.
    """
    match name:
        case "bleu" | "bleu_lowercase":
            return Measure(_make_bleu(tgt_language, lowercase=name.endswith("lowercase")))
        case "chrf" | "chrf_lowercase":
            return Measure(CHRF(lowercase=name.endswith("lowercase")))
        case "ter":  # is lower-cased by definition
            return Measure(TER())
        case "exact_match" | "exact_match_lowercase":
            return Measure(ExactMatch(lowercase=name.endswith("lowercase")))
        case "bleu_multi30k":
            treatment = "lower-cased, Moses punctuation normalised and Moses tokenised"
            tokenise = _make_multi30k_tokeniser(tgt_language)
            return Measure(_make_plain_bleu(), f"{treatment} ({tgt_language})", tokenise)
        case "bleu_paper":
            treatment = (
                f"both sides: Unicode punctuation replaced, Moses tokenised ({tgt_language})"
            )
            treatment += ", compounds split at hyphens" if tgt_language == "de" else ""
            return Measure(_make_plain_bleu(), treatment, _make_paper_tokeniser(tgt_language))
        case _:
            raise ValueError(f"measure {name!r} is unknown; use one of {', '.join(MEASURES)}")


def score_corpus(
    hypotheses: Sequence[str], references: Sequence[str], tgt_language: str, resamples: int = 0
) -> dict[str, Score]:
    """All `MEASURES` by name, with intervals where there are `resamples`.

    Raises:
        ValueError: there is not one hypothesis for each reference, or none at all.
    """
    return {
        name: make_measure(name, tgt_language).score(hypotheses, references, resamples)
        for name in MEASURES
    }


def score_bleu(
    hypotheses: Sequence[str], references: Sequence[str], tgt_language: str
) -> dict[str, Score]:
    """The two that are quick enough to validate with: bleu and chrf."""
    return {
        name: make_measure(name, tgt_language).score(hypotheses, references)
        for name in ("bleu", "chrf")
    }


def _make_bleu(tgt_language: str, *, lowercase: bool) -> BLEU:
    """BLEU with the tokeniser that sacreBLEU chooses for the language, of "zh_TW" that of "zh"."""
    language = re.split("[-_]", tgt_language.lower())[0]
    try:
        return BLEU(lowercase=lowercase, trg_lang=language)
    except (ImportError, RuntimeError):
        raise MeasureError(
            f"BLEU of data.tgt_language={tgt_language} needs a package that cuts its words: "
            f"pip install 'sacrebleu[{language}]'"
        ) from None


def _make_plain_bleu() -> BLEU:
    """BLEU of words between blanks, without smoothing."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def format_interval(interval: Sequence[float] | None) -> str:
    """As "[38.10, 41.40]"; nothing for None."""
    return f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""


def _make_multi30k_tokeniser(language: str) -> Callable[[str], str]:
    """As in Wu et al. 2021, whose text-only Transformer has 41.02 on test_2016_flickr."""
    normaliser, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)

    @functools.lru_cache(1 << 16)
    def tokenise(line: str) -> str:
        text = normaliser.normalize(line.lower())
        return str(tokenizer.tokenize(text, return_str=True, escape=False))

    return tokenise


def _make_paper_tokeniser(language: str) -> Callable[[str], str]:
    """The steps of tensor2tensor's `utils/get_ende_bleu.sh`: "rot-weiß" is three words in German.

    There are several revisions of that script. Its last one replaces Unicode punctuation and
    tokenises the hypotheses alone, since its references are tokenised before, and splits compounds
    on both sides; an earlier one replaces no punctuation. Here both sides are raw text and go
    through all steps. Which revision gave the paper's table 2 is not known.
    """
    normaliser, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)

    @functools.lru_cache(1 << 16)
    def tokenise(line: str) -> str:
        text = normaliser.replace_unicode_punct(line)
        text = str(tokenizer.tokenize(text, return_str=True, escape=False))
        return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text) if language == "de" else text

    return tokenise
