"""The table of the measures of translations: a row for each measure, with the name of its function.

A new measure is a row here and its function. The table imports nothing heavy, since `--help` and
the checks of configs read it; `t2t.evaluation.text_measures.make_measure` imports the function.
`t2t.config.measure_rules` chooses the measures that mean something for a run.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

MEASURE_FIELD = "evaluation.measure"  # the name by which a plugin registers a measure


class MeasureRow(NamedTuple):
    """A measure: its function, the texts for which it means something, and its uses."""

    function: str  # MODULE.NAME of (tgt_language, num_references, **options) -> Measure
    options: Mapping[str, Any] = {}
    # The words that it counts, if any: between spaces, or by sacreBLEU's tokeniser of the language.
    words: Literal["", "spaces", "tokeniser"] = ""
    is_cased: bool = False  # counts lower-case outputs as errors
    higher_is_better: bool = True
    takes_text: bool = True  # means something for text
    takes_symbols: bool = False  # means something for sequences of symbols (`tokenizer.kind`)
    needs_language: bool = False  # means nothing if the language of the references is unknown
    source: str = ""  # means something for runs of this `data.source` alone
    is_utility: bool = False  # `decoding.mbr` takes it
    on_request: bool = False  # computed only if it is named; not among the default measures
    # Only of a measure that a model computes (--measure_model), whose function has the argument
    # `model`, a run: the class in the config.json of the model that is imported, and MODULE.NAME of
    # the function that reads this config.json.
    architecture: str = ""
    importer: str = ""


def _of_text(function: str, options: Mapping[str, Any] = {}, **facts: Any) -> MeasureRow:
    return MeasureRow(f"t2t.evaluation.text_measures.{function}", options, **facts)


_LOWERCASE, _WORDS = {"lowercase": True}, {"word_order": 2}
_ERROR_RATE: Mapping[str, Any] = {"higher_is_better": False, "is_cased": True, "is_utility": True}
_METRICX = MeasureRow(
    "t2t.evaluation.metricx.make_metricx", higher_is_better=False, is_utility=True,
    architecture="MT5ForRegression", importer="t2t.interop.metricx.prepare_config",
)  # fmt: skip
MEASURES = {  # in the order of evaluations and reports
    "bleu": _of_text("make_bleu", words="tokeniser", is_cased=True, is_utility=True),
    "chrf": _of_text("make_chrf", is_cased=True, is_utility=True),
    # Of long or bad outputs the search for shifts takes most of the time.
    "ter": _of_text(
        "make_ter", words="spaces", higher_is_better=False, is_utility=True, on_request=True
    ),
    "exact_match": _of_text("make_exact_match", is_cased=True, takes_symbols=True, is_utility=True),
    "bleu_lowercase": _of_text("make_bleu", _LOWERCASE, words="tokeniser"),
    "chrf_lowercase": _of_text("make_chrf", _LOWERCASE),
    "exact_match_lowercase": _of_text("make_exact_match", _LOWERCASE, takes_symbols=True),
    "symbol_error_rate": _of_text(
        "make_word_error_rate", takes_text=False, takes_symbols=True, **_ERROR_RATE
    ),
    "bleu_multi30k": _of_text("make_multi30k_bleu", words="tokeniser", source="multi30k"),
    "bleu_paper": _of_text("make_paper_bleu", words="spaces", is_cased=True, needs_language=True),
    # It differs little from chrF.
    "chrf++": _of_text(
        "make_chrf", _WORDS, words="spaces", is_cased=True, is_utility=True, on_request=True
    ),
    "wer": _of_text("make_word_error_rate", words="spaces", on_request=True, **_ERROR_RATE),
    "cer": _of_text("make_character_error_rate", on_request=True, **_ERROR_RATE),
    # It needs a download.
    "spbleu": _of_text("make_spbleu", is_cased=True, is_utility=True, on_request=True),
    "metricx": _METRICX,
    "metricx_qe": _METRICX._replace(options={"has_reference": False}),
}
UTILITIES = tuple(name for name, row in MEASURES.items() if row.is_utility)
ON_REQUEST = tuple(name for name, row in MEASURES.items() if row.on_request)
CASED_MEASURES = tuple(name for name, row in MEASURES.items() if row.is_cased)
MEASURE_MODULES = sorted({row.function.rpartition(".")[0] for row in MEASURES.values()})
# Of runs on text alone (`data.objective`), the main one first.
PREDICTION_MEASURES = ("perplexity", "accuracy")
# Of the references of translations, the main one first; every evaluation has them.
REFERENCE_MEASURES = ("perplexity", "perplexity_word")
USELESS = 1.0  # BLEU, from 0 to 100: less comes from chance matches of frequent words


def translates(scores: Mapping[str, float]) -> bool:
    """Returns whether outputs have `USELESS` BLEU or more, or an exact match, by their scores.

    True if neither was measured.
    """
    bleu = [value for name, value in scores.items() if name.startswith("bleu")]
    exact = [value for name, value in scores.items() if name.startswith("exact_match")]
    return max(bleu, default=0) >= USELESS or max(exact, default=0) > 0 or not (bleu or exact)


def import_function(name: str) -> Any:
    """Imports a function that a row names."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)


def list_scored(architectures: Any) -> list[str]:
    """Returns the measures that a foreign model computes, by `architectures` of its config.json."""
    return [
        name
        for name, row in MEASURES.items()
        if row.architecture and architectures == [row.architecture]
    ]
