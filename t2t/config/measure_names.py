"""The names of the measures that `t2t.evaluation.measures` computes, and which are used."""

from collections.abc import Collection

from t2t.config.languages import OWN_TOKENIZERS, normalize_language, writes_spaces
from t2t.config.variants import CHOICES, choices

MEASURE_FIELD = "evaluation.measure"  # by which a plugin registers one
METRICX = "metricx"  # registered by --metricx (`t2t.evaluation.metricx`)
METRICX_INPUTS = ("23", "23-qe", "24", "24-qe")  # --metricx_input; qe: without reference
MEASURES = CHOICES[MEASURE_FIELD]
# Computed on request: of long or bad outputs TER's search for shifts takes most of the time, spBLEU
# needs a download, and chrF++ differs little from chrF.
ON_REQUEST = ("ter", "chrf++", "spbleu")
# Of runs on text alone (`data.objective`), the main one first.
PREDICTION_MEASURES = ("perplexity", "accuracy")
# Of the references of translations, the main one first; every evaluation has them.
REFERENCE_MEASURES = ("perplexity", "perplexity_word")
# These count lower-case outputs as errors.
CASED_MEASURES = ("bleu", "chrf", "exact_match", "bleu_paper", "chrf++", "spbleu")


def list_measures(
    tgt_language: str,
    sources: Collection[str] = (),
    *,
    spaces: bool,
    lowercase: bool = False,
    kind: str = "",
) -> tuple[str, ...]:
    """Returns the measures that mean something for a run, the main one first.

    Args:
        tgt_language: language of the references; bleu_paper needs a known one.
        sources: names in `data.source`; bleu_multi30k is for runs of that data.
        spaces: whether the references have spaces between words: ter, bleu_paper and chrf++ count
            words. So does BLEU but for the languages that it cuts by a tokeniser of its own; it
            then comes last.
        lowercase: `tokenizer.lowercase` of the run: measures without case come first.
        kind: `tokenizer.kind` of the run: symbols are no words, and only an exact match, or a
            measure of a plugin, means something.
    """
    left_out = set() if spaces else {"ter", "bleu_paper", "chrf++"}
    if not normalize_language(tgt_language):
        left_out.add("bleu_paper")
    if "multi30k" not in sources:
        left_out.add("bleu_multi30k")
    if kind == "symbols":
        left_out |= {*MEASURES} - {"exact_match", "exact_match_lowercase"}
    names = [name for name in choices(MEASURE_FIELD) if name not in left_out]
    if not spaces and normalize_language(tgt_language) not in OWN_TOKENIZERS:
        names.sort(key=lambda name: name.startswith("bleu"))
    if lowercase:  # the sort is stable: bleu_lowercase is the first of those without case
        names.sort(key=lambda name: not name.endswith("_lowercase"))
    return tuple(names)


def choose_measure(
    flag: str | None,
    *,
    lowercase: bool,
    kind: str = "",
    text_alone: bool = False,
    language: str = "",
    spaces: bool | None = None,
) -> str:
    """Returns the measure that --measure names.

    By default it is the first of `list_measures`: BLEU, chrF where no words can be counted, or of
    symbols the exact match; without case if outputs have none. Of a run on text alone it is the
    perplexity. `lowercase` and `kind` are the fields of `tokenizer` of the run, `language` is that
    of the references. `spaces` says whether they have spaces between words; None: as the language
    has.
    """
    if flag or text_alone:
        return flag or PREDICTION_MEASURES[0]
    spaces = writes_spaces(language) if spaces is None else spaces
    return list_measures(language, spaces=spaces, lowercase=lowercase, kind=kind)[0]
