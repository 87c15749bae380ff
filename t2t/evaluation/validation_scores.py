"""`make_validate`: what training measures on the validation corpora, loss, BLEU and chrF."""

import logging
import time
from collections.abc import Mapping

from jax.sharding import Mesh

from t2t.config.fields import Config
from t2t.data.corpus import Corpus
from t2t.data.directions import list_directions, tag_sources
from t2t.data.preparation import tokenize
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translator import Translator
from t2t.evaluation.scores import make_measure, score_bleu
from t2t.model.interface import Params
from t2t.training.loop import Validate
from t2t.training.validation import CorpusLoss, CorpusScorer

_log = logging.getLogger(__name__)


def make_validate(
    config: Config,
    vocabulary: Vocabulary,
    mesh: Mesh,
    corpora: Mapping[str, Corpus],
    params: Params,
) -> Validate:
    """Returns the function that scores parameters on the validation corpora, if there are any.

    With data.directions it returns the loss of all tokens and the means of the directions' BLEU and
    chrF, and each direction's own scores, such as "loss/en-de". Scoring is compiled here, with
    `params`, so that its errors come before training.
    """
    if not corpora:
        return lambda params, step: {}
    vocabularies = {name: tag_sources(vocabulary, each.tag) for name, each in corpora.items()}
    scorers = {
        name: make_scorer(config, vocabulary, corpus, mesh) for name, corpus in corpora.items()
    }
    every = config.training.bleu_every
    languages = {"".join(d.directions): d.tgt_language for d in list_directions(config.data)}
    pairs = {name: [*zip(*corpus, strict=True)] for name, corpus in corpora.items() if every}
    translators: dict[str, Translator] = {}
    for name in pairs:
        make_measure("bleu", languages[name])  # a missing package is an error before training
        first = next(iter(translators.values()), None)
        translators[name] = (
            first.with_vocabulary(vocabularies[name])
            if first
            else Translator(config, vocabularies[name])
        )
    started = time.perf_counter()
    for scorer in scorers.values():
        scorer.compile(params)
    for name, translator in translators.items():
        translator.compile(params, pairs[name][0])
    _log.info("compiled validation in %.0f s", time.perf_counter() - started)

    def translate(params: Params, name: str) -> dict[str, float]:
        sources, references = pairs[name]
        found = [best.text for best in translators[name].translate(params, sources)]
        scores = score_bleu(found, references, languages[name])
        return {measure: score.value for measure, score in scores.items()}

    def validate(params: Params, step: int) -> dict[str, float]:
        losses = {name: scorer.compute_loss(params) for name, scorer in scorers.items()}
        scores = {name: describe_loss(loss) for name, loss in losses.items()}
        if every and step % every == 0:
            for name in scores:
                scores[name] |= translate(params, name)
        nats, tokens = map(sum, zip(*losses.values(), strict=True))
        found = combine_scores(scores) | describe_loss(CorpusLoss(nats, tokens))
        own = {f"{key}/{name}": v for name in scores if name for key, v in scores[name].items()}
        return found | own

    return validate


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
