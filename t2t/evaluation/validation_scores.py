"""`Validation`: computes loss, BLEU and chrF on the validation corpora."""

import logging
import time
from collections.abc import Mapping

from jax.sharding import Mesh

from t2t.config.fields import Config, ConfigError
from t2t.data.corpus import Corpus
from t2t.data.directions import list_directions, tag_sources
from t2t.data.preparation import tokenize
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translator import Translator
from t2t.evaluation.measures import have_spaces, make_measure, score_corpus
from t2t.evaluation.perplexity import CorpusLoss, CorpusScorer
from t2t.model.interface import Params

_log = logging.getLogger(__name__)


class Validation:
    """Scores parameters on the validation corpora; without corpora it has no scores."""

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        mesh: Mesh,
        corpora: Mapping[str, Corpus],
    ):
        """Plans the scoring of each direction's corpus, keyed by the name of the direction.

        Raises:
            ConfigError: no pair of a corpus can be scored, or the config decodes otherwise than
                validation does.
            MeasureError: a package is missing.
        """
        self._every, self._last = config.training.bleu_every, config.training.steps
        if self._every and (config.decoding.strategy, config.decoding.mbr) != ("beam", "none"):
            raise ConfigError(
                "training.bleu_every scores the best output of beam search: use the defaults of "
                "decoding.strategy and decoding.mbr, and give --strategy or --mbr to t2t.evaluate"
            )
        self._lowercase = config.tokenizer.lowercase
        self._scorers = {
            name: make_scorer(config, vocabulary, corpus, mesh) for name, corpus in corpora.items()
        }
        self._pairs = {
            name: [*zip(*corpus, strict=True)] for name, corpus in corpora.items() if self._every
        }
        self._languages = {
            "".join(each.directions): each.tgt_language for each in list_directions(config.data)
        }
        self._translators: dict[str, Translator] = {}
        for name in self._pairs:
            make_measure("bleu", self._languages[name])  # a missing package is an error
            have_spaces(self._languages[name], self._pairs[name][1])  # warns
            tagged = tag_sources(vocabulary, corpora[name].tag)
            first = next(iter(self._translators.values()), None)
            self._translators[name] = (
                first.with_vocabulary(tagged) if first else Translator(config, tagged)
            )

    def compile(self, params: Params) -> None:
        """Compiles what scoring runs, so that its errors come early."""
        started = time.perf_counter()
        for scorer in self._scorers.values():
            scorer.compile(params)
        for name, translator in self._translators.items():
            translator.compile(params, self._pairs[name][0])
        if self._scorers:
            _log.info("compiled validation in %.0f s", time.perf_counter() - started)
        if self._translators:
            suffix = "_lowercase" if self._lowercase else ""
            _log.info(
                "validation BLEU and chrF are bleu%s and chrf%s of t2t.evaluate, with the "
                "parameters of their step, not a moving average",
                suffix, suffix,
            )  # fmt: skip

    def __call__(self, params: Params, step: int) -> dict[str, float]:
        """Returns the scores of these parameters by name.

        With data.directions they are the loss of all tokens and the means of the directions' BLEU
        and chrF, and each direction's own scores, such as "loss/en-de".
        """
        if not self._scorers:
            return {}
        losses = {name: scorer.compute_loss(params) for name, scorer in self._scorers.items()}
        scores = {name: describe_loss(loss) for name, loss in losses.items()}
        if self._every and (step % self._every == 0 or step == self._last):
            for name in scores:
                scores[name] |= self._translate(params, name)
        nats, tokens = map(sum, zip(*losses.values(), strict=True))
        found = combine_scores(scores) | describe_loss(CorpusLoss(nats, tokens))
        own = {f"{key}/{name}": v for name in scores if name for key, v in scores[name].items()}
        return found | own

    def _translate(self, params: Params, name: str) -> dict[str, float]:
        """Returns BLEU and chrF of a direction."""
        sources, references = self._pairs[name]
        found = [best.text for best in self._translators[name].translate(params, sources)]
        suffix = "_lowercase" if self._lowercase else ""
        measures = {each: f"{each}{suffix}" for each in ("bleu", "chrf")}
        scores = score_corpus(found, references, self._languages[name], [*measures.values()])
        return {each: scores[measure].value for each, measure in measures.items()}


def make_scorer(config: Config, vocabulary: Vocabulary, corpus: Corpus, mesh: Mesh) -> CorpusScorer:
    """Returns the scorer of a validation corpus; says how many of its pairs are left out."""
    scorer = CorpusScorer(config, vocabulary, tokenize(corpus, vocabulary, config.data), mesh)
    if scorer.num_left_out:
        _log.warning(
            "validation: %d of %d pairs have more sub-words than model.max_positions=%d and are "
            "excluded from the loss",
            scorer.num_left_out, len(corpus), config.model.max_positions,
        )  # fmt: skip
    return scorer


def describe_loss(loss: CorpusLoss) -> dict[str, float]:
    """Returns a corpus's mean loss and its perplexity."""
    return {"loss": loss.mean, "perplexity": loss.perplexity(loss.tokens)}


def combine_scores(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each measure over the directions."""
    first = next(iter(scores.values()))
    return {key: sum(each[key] for each in scores.values()) / len(scores) for key in first}
