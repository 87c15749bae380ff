"""Chooses the measures that mean something for a run, and the one by which it is judged.

The table of measures is in `t2t.config.measures`.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from t2t.config.fields import ConfigError
from t2t.config.languages import OWN_TOKENIZERS, normalize_language, writes_spaces
from t2t.config.measures import MEASURE_FIELD, MEASURES, PREDICTION_MEASURES, MeasureRow
from t2t.config.variants import call_variant, choices, takes_model

_DIRECTION = "higher_is_better"  # attribute of a measure


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
        tgt_language: language of the references; "": unknown, which leaves out bleu_paper.
        sources: names in `data.source`; bleu_multi30k is for runs of multi30k.
        spaces: whether the references have spaces between words. Without them ter, bleu_paper and
            chrf++ are left out, and BLEU comes last unless it has a tokeniser for the language.
        lowercase: `tokenizer.lowercase` of the run; with it measures without case come first.
        kind: `tokenizer.kind` of the run. Symbols are not words, so only an exact match, their
            error rate and the measures of plugins are left.
    """
    language = normalize_language(tgt_language)

    def fits(row: MeasureRow) -> bool:
        return (
            (spaces or row.words != "spaces")
            and (bool(language) or not row.needs_language)
            and (not row.source or row.source in sources)
            and (row.takes_symbols if kind == "symbols" else row.takes_text)
        )

    names = [n for n in choices(MEASURE_FIELD) if n not in MEASURES or fits(MEASURES[n])]
    if not spaces and language not in OWN_TOKENIZERS:
        names.sort(key=lambda name: name in MEASURES and MEASURES[name].words == "tokeniser")
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
    """Returns the measure that --measure names, or else the default.

    The default is perplexity for a run on text alone, and else the first of `list_measures`: BLEU,
    or chrF where no words can be counted, or an exact match for symbols; without case if outputs
    are lower-case. `lowercase` and `kind` are fields of the run's `tokenizer`, `language` and
    `spaces` (None: as the language usually has) describe the references.
    """
    if flag or text_alone:
        return flag or PREDICTION_MEASURES[0]
    spaces = writes_spaces(language) if spaces is None else spaces
    return list_measures(language, spaces=spaces, lowercase=lowercase, kind=kind)[0]


def is_higher_better(name: str) -> bool:
    """Returns whether more is better by a measure of the table, a registered one or a loss.

    Raises:
        ConfigError: there is no such measure.
    """
    if name in ("loss", "perplexity"):
        return False
    if name in MEASURES:
        return MEASURES[name].higher_is_better
    made = call_variant(MEASURE_FIELD, name, "", 1, is_valid=lambda x: hasattr(x, _DIRECTION))
    return bool(getattr(made, _DIRECTION))


def needs_model(name: str) -> bool:
    """Returns whether the model of a run computes a measure, of the table or a registered one."""
    return bool(MEASURES[name].architecture) if name in MEASURES else takes_model(name)


def check_model(name: str, models: Mapping[str, Path]) -> None:
    """Raises `ConfigError` if a measure lacks its model, or has one that it does not need.

    `models` are the runs of --measure_model, by measure. An unknown name may belong to a plugin
    that is not imported yet.
    """
    if needs_model(name) and name not in models:
        raise ConfigError(
            f"measure {name} needs --measure_model={name}=RUN, the run of the model that computes "
            "it (t2t.import_model)"
        )
    if name in models and name in choices(MEASURE_FIELD) and not needs_model(name):
        raise ConfigError(
            f"--measure_model={name}={models[name]}: no model computes {name}; leave this out"
        )
