"""The measures that mean something for a run, the one that judges it, and those that need a model.

Their names are in `t2t.config.measure_names`.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from t2t.config.fields import ConfigError
from t2t.config.languages import OWN_TOKENIZERS, normalize_language, writes_spaces
from t2t.config.measure_names import MEASURE_FIELD, MEASURES, PREDICTION_MEASURES, MeasureRow
from t2t.config.variants import choices, takes_model


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
    language = normalize_language(tgt_language)

    def fits(row: MeasureRow) -> bool:
        return (
            (spaces or row.words != "spaces")
            and (bool(language) or not row.needs_language)
            and (not row.source or row.source in sources)
            and (kind != "symbols" or row.takes_symbols)
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


def needs_model(name: str) -> bool:
    """Returns whether the model of a run computes a measure, of the table or a registered one."""
    return bool(MEASURES[name].architecture) if name in MEASURES else takes_model(name)


def check_model(name: str, models: Mapping[str, Path]) -> None:
    """Raises `ConfigError` if a measure lacks its model, or has one that it does not need.

    `models` are those of --measure_model, by measure. An unknown name may be that of a plugin that
    is not imported yet.
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
