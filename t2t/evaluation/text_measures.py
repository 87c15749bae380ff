"""Makes measures by name; the functions of BLEU, chrF, TER and exact match.

Their table is in `t2t.config.measures`. The functions take the language of the references, as
`normalize_language` writes it or "", and the number of references.

BLEU values are comparable only if the text was normalised and tokenised alike. Besides sacreBLEU's
standard there are `bleu_paper`, computed as for the paper, and `bleu_multi30k`, computed as in the
literature on Multi30k.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
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
from t2t.config.measure_rules import check_model
from t2t.config.measures import MEASURE_FIELD, MEASURES, import_function
from t2t.config.variants import call_variant
from t2t.data.sentences import is_missing
from t2t.evaluation.measure import Interval, Measure, MeasureError, count_scores

_ERRORS = 0.0, math.inf  # percentages of errors, of which there may be many
_MOSES = "en"  # the language whose abbreviations Moses takes if the text's is unknown


def make_measure(
    name: str,
    tgt_language: str,
    num_references: int = 1,
    models: Mapping[str, Path] = MappingProxyType({}),
) -> Measure:
    """Returns the measure of this name for hypotheses in this language.

    `tgt_language` is a code that `normalize_language` takes; "": unknown. With several references
    BLEU counts matches with any of them and takes the closest length, chrF takes the best one of
    each sentence, TER the fewest edits over the mean length, and an exact match is one with any.
    `models` are runs whose models compute measures, by measure (--measure_model).

    Raises:
        ConfigError: the measure is unknown or lacks its model, or a registered function is not as
            expected.
        MeasureError: sacreBLEU tokenises with a package or model that is missing.
    """
    check_model(name, models)
    arguments = normalize_language(tgt_language), num_references
    model = {"model": models[name]} if name in models else {}
    found: Measure
    if row := MEASURES.get(name):
        found = import_function(row.function)(*arguments, **row.options, **model)
    else:
        found = call_variant(
            MEASURE_FIELD, name, *arguments, **model,
            is_valid=lambda made: isinstance(made, Measure) and made.segments is not None,
        )  # fmt: skip
    higher = MEASURES[name].higher_is_better if row else found.higher_is_better
    return dataclasses.replace(found, name=name, higher_is_better=higher)


def _wrap_metric(
    num_references: int,
    metric: Metric,
    preprocessing: str = "",
    preprocess: Callable[[str], str] = str,
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
        "",  # `make_measure` names it
        f"{preprocessing}{metric.get_signature()}",
        segments,
        lambda sums: float(metric._compute_score_from_stats(sums.tolist()).score),
        limits=limits,
        describe=describe,
        metric=metric,
    )


def make_exact_match(_: str, num_references: int, *, lowercase: bool = False) -> Measure:
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
        "",
        f"nrefs:{num_references}|case:{'lc' if lowercase else 'mixed'}|space:one|"
        f"version:{sacrebleu.__version__}|missing:unmatched",
        segments,
        lambda sums: float(100 * sums[0] / sums[1]),
        limits=(0.0, 100.0),
        is_share=True,
        describe=lambda sums: f"exact match = {100 * sums[0] / sums[1]:.2f}",
    )


def make_word_error_rate(_: str, num_references: int) -> Measure:
    """WER: edits of what stands between spaces, such as words, phones or symbols."""
    return _make_error_rate(str.split, "words", num_references)


def make_character_error_rate(_: str, num_references: int) -> Measure:
    """CER: edits of characters, with single spaces between words."""
    return _make_error_rate(lambda line: " ".join(line.split()), "characters", num_references)


def _make_error_rate(
    cut: Callable[[str], Sequence[str]], unit: str, num_references: int
) -> Measure:
    """The edits (Levenshtein distance) of all sentences, in percent of the references' lengths.

    Insertions, deletions and substitutions cost 1. With several references the fewest edits count,
    and the mean length, as for TER.
    """

    def segments(
        _: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Float[np.ndarray, "n 2"]:
        rows = []
        for line, *wanted in zip(hypotheses, *references, strict=True):
            found, texts = cut(line), [*map(cut, wanted)]
            edits = min(count_edits(found, text) for text in texts)
            rows.append((edits, sum(map(len, texts)) / len(texts)))
        return np.array(rows, float)

    def aggregate(sums: Float[np.ndarray, "_"]) -> float:
        edits, length = sums.tolist()
        return 100 * edits / length if length else 100.0 * bool(edits)

    return Measure(
        "",
        f"nrefs:{num_references}|case:mixed|edits:{unit}|space:one|version:1",
        segments,
        aggregate,
        limits=_ERRORS,
        describe=lambda sums: f"{aggregate(sums):.2f}, {sums[0]:.0f} edits of {sums[1]:.0f} {unit}",
    )


def count_edits(one: Sequence[str], other: Sequence[str]) -> int:
    """The Levenshtein distance of two sequences, by the bit vectors of Hyyrö (2003).

    Bit i of a number belongs to item i of `one`. Column j of the table of distances is kept as its
    differences: bit i of `up` says that row i + 1 is one more than row i, of `down` one less.
    """
    if not one:
        return len(other)
    places: dict[str, int] = {}
    for index, item in enumerate(one):
        places[item] = places.get(item, 0) | 1 << index
    whole, last, distance = (1 << len(one)) - 1, 1 << len(one) - 1, len(one)
    up, down = whole, 0
    for item in other:
        equal = places.get(item, 0)
        diagonal = (((equal & up) + up) ^ up) | equal | down  # equal to the cell above and left
        more, less = down | ~(diagonal | up) & whole, up & diagonal  # than the column before
        distance += bool(more & last) - bool(less & last)
        more = (more << 1 | 1) & whole
        up, down = (less << 1 & whole) | ~(diagonal | more) & whole, more & diagonal
    return distance


def make_bleu(language: str, num_references: int, *, lowercase: bool = False) -> Measure:
    """BLEU with sacreBLEU's tokeniser for the language."""
    try:
        metric = BLEU(lowercase=lowercase, trg_lang=language)
    except (ImportError, RuntimeError):
        raise MeasureError(
            f"BLEU of data.tgt_language={language} needs a package that tokenises it: "
            f"pip install 'sacrebleu[{language}]'"
        ) from None
    return _wrap_metric(num_references, metric)


def make_chrf(_: str, num_references: int, **options: Any) -> Measure:
    """chrF2; with word_order=2 it counts words and pairs of words, too (chrF2++)."""
    return _wrap_metric(num_references, CHRF(**options))


def make_ter(_: str, num_references: int) -> Measure:
    """TER, which lower-cases by definition; it counts errors, of which there may be many."""
    return _wrap_metric(num_references, TER(), limits=_ERRORS)


def make_spbleu(_: str, num_references: int) -> Measure:
    """BLEU of the sub-words of FLORES-200, for any language; sacreBLEU downloads their model."""
    url = SPM_MODELS["flores200"]["url"]
    path = Path(SACREBLEU_DIR, "models", Path(url).name)
    try:
        return _wrap_metric(num_references, BLEU(tokenize="flores200"))
    except (OSError, RuntimeError) as error:  # no network, or another file
        raise MeasureError(
            f"spbleu needs the sub-words of FLORES-200, which cannot be read or downloaded "
            f"({error}); download {url} elsewhere and put it to {path}"
        ) from None


def make_multi30k_bleu(language: str, num_references: int) -> Measure:
    """BLEU as in the literature on Multi30k."""
    words = language or _MOSES
    preprocessing = f"lower-cased, Moses punctuation normalised and Moses tokenised ({words}); "
    preprocess = make_multi30k_tokeniser(words)
    return _wrap_metric(num_references, _make_plain_bleu(), preprocessing, preprocess)


def make_paper_bleu(language: str, num_references: int) -> Measure:
    """BLEU as of the paper."""
    words = language or _MOSES
    preprocessing = f"both sides: Unicode punctuation replaced, Moses tokenised ({words})"
    preprocessing += ", compounds split at hyphens; " if words == "de" else "; "
    preprocess = make_paper_tokeniser(words)
    return _wrap_metric(num_references, _make_plain_bleu(), preprocessing, preprocess)


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
