"""Measures of texts by name: BLEU, chrF, TER, exact match and registered ones.

BLEU values are comparable only if the text was normalised and tokenised alike. Besides sacreBLEU's
standard there are `bleu_paper`, computed as for the paper, and `bleu_multi30k`, computed as in the
literature on Multi30k.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
from jaxtyping import Float
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR

from t2t.config.languages import normalize_language
from t2t.config.measure_names import MEASURE_FIELD, REFERENCE_MEASURES
from t2t.config.variants import call_variant
from t2t.data.sentences import is_missing
from t2t.evaluation.measures import Interval, Measure, MeasureError, count_scores


def make_measure(name: str, tgt_language: str, num_references: int = 1) -> Measure:
    """Returns the measure of this name for hypotheses in this language.

    `tgt_language` is a code that `normalize_language` takes; "": unknown. With several references
    BLEU counts matches with any of them and takes the closest length, chrF takes the best one of
    each sentence, TER the fewest edits over the mean length, and an exact match is one with any.

    Raises:
        ConfigError: the measure is unknown, or a registered function is not as expected.
        MeasureError: sacreBLEU tokenises with a package or model that is missing.
    """
    language = normalize_language(tgt_language)
    words = language or "en"  # whose abbreviations Moses takes where it has none
    wrap = functools.partial(_wrap_metric, name, num_references)
    lowercase = name.endswith("_lowercase")
    match name:
        case "bleu" | "bleu_lowercase":
            return wrap(_make_bleu(language, lowercase=lowercase))
        case "spbleu":
            return wrap(_make_spbleu())
        case "chrf" | "chrf_lowercase":
            return wrap(CHRF(lowercase=lowercase))
        case "chrf++":
            return wrap(CHRF(word_order=2))
        case "ter":  # lower-cases by definition; counts errors, of which there may be many
            return wrap(TER(), higher_is_better=False, limits=(0.0, math.inf))
        case "exact_match" | "exact_match_lowercase":
            return _make_exact_match(name, num_references, lowercase=lowercase)
        case "bleu_multi30k":
            preprocessing = "lower-cased, Moses punctuation normalised and Moses tokenised"
            preprocess = make_multi30k_tokeniser(words)
            return wrap(_make_plain_bleu(), f"{preprocessing} ({words}); ", preprocess)
        case "bleu_paper":
            preprocessing = f"both sides: Unicode punctuation replaced, Moses tokenised ({words})"
            preprocessing += ", compounds split at hyphens" if words == "de" else ""
            return wrap(_make_plain_bleu(), f"{preprocessing}; ", make_paper_tokeniser(words))
        case _:
            found: Measure = call_variant(
                MEASURE_FIELD, name, language, num_references,
                is_valid=lambda made: isinstance(made, Measure) and made.segments is not None,
            )  # fmt: skip
            return dataclasses.replace(found, name=name)


def is_higher_better(name: str, tgt_language: str) -> bool:
    """Returns whether more is better by the measure that chooses a checkpoint or a setting.

    Raises:
        ConfigError, MeasureError: as in `make_measure`.
    """
    return name not in REFERENCE_MEASURES and make_measure(name, tgt_language).higher_is_better


def _wrap_metric(
    name: str,
    num_references: int,
    metric: Metric,
    preprocessing: str = "",
    preprocess: Callable[[str], str] = str,
    *,
    higher_is_better: bool = True,
    limits: Interval = (0.0, 100.0),
) -> Measure:
    """A measure that counts as a sacreBLEU metric does, after preprocessing of all text.

    sacreBLEU has no public function for a sentence's statistics, nor for the score of their sum. Of
    the newest and the oldest version the private ones are held to its command line by tests.
    """
    metric.num_refs = num_references  # of the signature

    def segments(
        _: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Float[np.ndarray, "n _"]:
        texts = [[*map(preprocess, lines)] for lines in (hypotheses, *references)]
        return np.array(metric._extract_corpus_statistics(texts[0], texts[1:]), float)

    def describe(sums: Float[np.ndarray, "_"]) -> str:
        whole = [int(value) if value.is_integer() else value for value in sums.tolist()]
        return str(metric._compute_score_from_stats(whole))  # with lengths as integers

    return Measure(
        name,
        f"{preprocessing}{metric.get_signature()}",
        segments,
        lambda sums: float(metric._compute_score_from_stats(sums.tolist()).score),
        higher_is_better,
        limits,
        describe=describe,
        metric=metric,
    )


def _make_exact_match(name: str, num_references: int, *, lowercase: bool) -> Measure:
    """The percentage of sentences whose words equal those of a reference that is not missing."""

    def normalise(line: str) -> str:
        return " ".join((line.lower() if lowercase else line).split())

    def segments(
        sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Float[np.ndarray, "n 2"]:
        found = [
            any(normalise(line) == normalise(x) and not is_missing(source, x) for x in wanted)
            for source, line, *wanted in zip(sources, hypotheses, *references, strict=True)
        ]
        return count_scores(found)

    return Measure(
        name,
        f"nrefs:{num_references}|case:{'lc' if lowercase else 'mixed'}|space:one|"
        f"version:{sacrebleu.__version__}|missing:unmatched",
        segments,
        lambda sums: float(100 * sums[0] / sums[1]),
        limits=(0.0, 100.0),
        is_share=True,
        describe=lambda sums: f"exact match = {100 * sums[0] / sums[1]:.2f}",
    )


def _make_bleu(language: str, *, lowercase: bool) -> BLEU:
    """BLEU with sacreBLEU's tokeniser for the language."""
    try:
        return BLEU(lowercase=lowercase, trg_lang=language)
    except (ImportError, RuntimeError):
        raise MeasureError(
            f"BLEU of data.tgt_language={language} needs a package that tokenises it: "
            f"pip install 'sacrebleu[{language}]'"
        ) from None


def _make_spbleu() -> BLEU:
    """BLEU of the sub-words of FLORES-200, for any language; sacreBLEU downloads their model."""
    url = SPM_MODELS["flores200"]["url"]
    path = Path(SACREBLEU_DIR, "models", Path(url).name)
    try:
        return BLEU(tokenize="flores200")
    except (OSError, RuntimeError) as error:  # no network, or another file
        raise MeasureError(
            f"spbleu needs the sub-words of FLORES-200, which cannot be read or downloaded "
            f"({error}); download {url} elsewhere and put it to {path}"
        ) from None


def _make_plain_bleu() -> BLEU:
    """BLEU of words separated by spaces, without smoothing."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


@functools.cache
def _make_moses(language: str) -> tuple[Any, Any]:
    """Returns sacremoses' normaliser of punctuation and its tokeniser."""
    import sacremoses  # when text is counted: it takes 0.4 s, in which a device can compute

    return sacremoses.MosesPunctNormalizer(language), sacremoses.MosesTokenizer(language)


def make_multi30k_tokeniser(language: str) -> Callable[[str], str]:
    """The preprocessing of Wu et al. 2021.

    Their text-only Transformer scores 41.02 on test_2016_flickr.
    """

    @functools.lru_cache(1 << 16)
    def tokenise(line: str) -> str:
        normaliser, tokenizer = _make_moses(language)
        text = normaliser.normalize(line.lower())
        return str(tokenizer.tokenize(text, return_str=True, escape=False))

    return tokenise


def make_paper_tokeniser(language: str) -> Callable[[str], str]:
    """The preprocessing of tensor2tensor's `utils/get_ende_bleu.sh`.

    Compounds are split at hyphens in German: "rot-weiß" becomes three words. There are several
    revisions of that script. The last one replaces Unicode punctuation and tokenises in the
    hypotheses only, since its references are already tokenised, and splits compounds on both sides;
    an earlier one does not replace punctuation. Here both sides are raw text and go through all
    steps. It is not known which revision was used for the paper's table 2.
    """

    @functools.lru_cache(1 << 16)
    def tokenise(line: str) -> str:
        normaliser, tokenizer = _make_moses(language)
        text = normaliser.replace_unicode_punct(line)
        text = str(tokenizer.tokenize(text, return_str=True, escape=False))
        return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text) if language == "de" else text

    return tokenise
