"""`ValidationTranslations`: computes BLEU and chrF on the validation corpora."""

import logging
from collections.abc import Mapping

from t2t.config.fields import Config
from t2t.data.corpus import Corpus
from t2t.data.directions import list_directions
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translator import Translator
from t2t.evaluation.measure import MeasureError, TestSet, have_spaces
from t2t.evaluation.text_measures import make_measure
from t2t.model.parameters import Params

_log = logging.getLogger(__name__)


class ValidationTranslations:
    """Translates the validation corpora and scores their translations."""

    def __init__(self, config: Config, vocabulary: Vocabulary, corpora: Mapping[str, Corpus]):
        """Reads the corpora, which are keyed by the names of their directions."""
        self._suffix = "_lowercase" if config.tokenizer.lowercase else ""
        self._pairs = {name: [*zip(*corpus, strict=True)] for name, corpus in corpora.items()}
        self._languages = {
            "".join(each.directions): each.tgt_language for each in list_directions(config.data)
        }
        self._translators: dict[str, Translator] = {}
        self._measures: dict[str, list[str]] = {}
        for name in self._pairs:
            self._measures[name] = self._list_measures(name, config.checkpoints.best_metric)
            have_spaces(self._languages[name], self._pairs[name][1])  # warns
            tagged = vocabulary.with_tag(corpora[name].tag)
            first = next(iter(self._translators.values()), None)
            self._translators[name] = (
                first.with_vocabulary(tagged) if first else Translator(config, tagged)
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
        """Returns BLEU and chrF of a direction."""
        sources, references = self._pairs[name]
        found = [best.text for best in self._translators[name].translate(params, sources)]
        test_set, language = TestSet(sources, [references]), self._languages[name]
        return {
            each: make_measure(f"{each}{self._suffix}", language).score(found, test_set).value
            for each in self._measures[name]
        }

    def _list_measures(self, name: str, best: str) -> list[str]:
        """Names the measures of a direction's translations.

        Raises:
            MeasureError: a package is missing without which checkpoints cannot be ranked.
        """
        try:
            make_measure("bleu", self._languages[name])
        except MeasureError as error:
            if best != "chrf":
                raise
            _log.warning("validation has chrF, but no BLEU: %s", error)
            return ["chrf"]
        return ["bleu", "chrf"]
