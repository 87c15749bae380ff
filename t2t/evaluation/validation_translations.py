"""`ValidationTranslations`: computes BLEU, chrF and other measures on the validation corpora."""

import logging
from collections.abc import Mapping

from t2t.config.fields import Config
from t2t.config.measures import MEASURE_FIELD, MEASURES
from t2t.config.variants import choices
from t2t.data.corpus import Corpus
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translator import Translator
from t2t.evaluation.measure import MeasureError, TestSet, have_spaces
from t2t.evaluation.text_measures import make_measure
from t2t.model.parameters import Params

_log = logging.getLogger(__name__)


class ValidationTranslations:
    """Translates the validation corpora and scores their translations."""

    def __init__(
        self,
        tasks: Mapping[str, Config],
        vocabulary: Vocabulary,
        corpora: Mapping[str, Corpus],
    ):
        """Reads the corpora; they and the configs are keyed by the names of tasks."""
        config = next(iter(tasks.values()))
        self._suffix = "_lowercase" if config.tokenizer.lowercase else ""
        is_symbols, rules = config.tokenizer.kind == "symbols", config.checkpoints
        own = ["exact_match"] * (is_symbols or rules.patience > 0)  # which says what translates
        own += [rules.best_metric] * (rules.best_metric in choices(MEASURE_FIELD))
        self._own = [*dict.fromkeys(([] if is_symbols else ["bleu", "chrf"]) + own)]
        self._pairs = {name: [*zip(*corpus, strict=True)] for name, corpus in corpora.items()}
        self._languages = {name: each.data.tgt_language for name, each in tasks.items()}
        self._translators: dict[str, Translator] = {}
        self._measures: dict[str, list[str]] = {}
        for name in self._pairs:
            self._measures[name] = self._list_measures(name, rules.best_metric)
            if not is_symbols:
                have_spaces(self._languages[name], self._pairs[name][1])  # warns
            tagged = vocabulary.with_tag(corpora[name].tag, corpora[name].prefix)
            first = next(iter(self._translators.values()), None)
            self._translators[name] = (
                first.with_vocabulary(tagged) if first else Translator(tasks[name], tagged)
            )

    def compile(self, params: Params) -> None:
        """Compiles the searches, so that their errors come early."""
        for name, translator in self._translators.items():
            translator.compile(params, self._pairs[name][0])

    def explain(self) -> None:
        """Logs which measures of `t2t.evaluate` these are."""
        if any("bleu" in names for names in self._measures.values()):
            _log.info(
                "validation BLEU and chrF are bleu%s and chrf%s of t2t.evaluate, with the "
                "parameters of their step, not a moving average",
                self._suffix, self._suffix,
            )  # fmt: skip

    def score(self, params: Params, name: str) -> dict[str, float]:
        """Returns the scores of a direction by measure, such as BLEU and chrF."""
        sources, references = self._pairs[name]
        found = [best.text for best in self._translators[name].translate(params, sources)]
        test_set, language = TestSet(sources, [references]), self._languages[name]
        return {
            each: make_measure(self._find_name(each), language).score(found, test_set).value
            for each in self._measures[name]
        }

    def _find_name(self, measure: str) -> str:
        """Returns the name of a measure, or of its variant without case for a lower-case run."""
        folded = f"{measure}{self._suffix}"
        return folded if folded in MEASURES else measure

    def _list_measures(self, name: str, best: str) -> list[str]:
        """Names the measures of a direction's translations.

        Raises:
            MeasureError: a package is missing without which checkpoints cannot be ranked.
        """
        measures = []
        for measure in self._own:
            try:
                make_measure(self._find_name(measure), self._languages[name])
                measures.append(measure)
            except MeasureError as error:
                if measure == best or measure != "bleu" or best == "loss":
                    raise
                _log.warning("validation has no BLEU: %s", error)
        return measures
