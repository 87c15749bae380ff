"""Evaluates a run on text alone (`data.objective`): perplexity and accuracy of what it predicts.

The predicted tokens are those that its training predicts: each token of a text, the spans that are
left out of it, or its masked tokens. Which ones is drawn once for all, as in validation.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from t2t.config.fields import Config, ConfigError, DataConfig
from t2t.data.corpus_sources import open_split
from t2t.data.objectives import make_objective
from t2t.evaluation.corpus_loss import DTYPE
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.measure import LEFT_OUT, Measure, TestSet, make_prediction_measure
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.text_scores import Output, TextScores, name_task
from t2t.evaluation.validation_scores import make_scorer
from t2t.model.parameters import Params
from t2t.training.provenance import now, summarize_ledger


class PredictionEvaluator(Evaluator):
    """An `Evaluator` of a run on text alone, which translates nothing."""

    modules = (__name__,)

    def _open(self) -> TextScores:
        request, config, vocabulary = self._request, self.config, self._model.vocabulary
        _check_request(request)
        corpus = open_split(config.data, request.split, config.tokenizer)
        texts = [text for _, text in corpus]
        test_set = TestSet(texts, [texts], name=request.split, fingerprint=corpus.fingerprint())
        with jax.set_mesh(self._model.mesh):
            self._scorer = make_scorer(
                config, vocabulary, corpus, self._model.mesh, request.split, count_right=True
            )
        predicted = make_objective(config.data, vocabulary).predicted
        measures = make_measures(config.data, predicted, self._scorer.num_left_out)
        facts = {"objective": config.data.objective, "tgt_language": config.data.tgt_language}
        facts |= name_task(config.data)
        return TextScores(test_set, measures, facts, made=("log_probs", "right"))

    def prepare_output(self, label: str, alpha: float | None = None) -> Path:  # noqa: ARG002
        """As in `Evaluator`; no search is part of the name."""
        folder, task = self._request.workdir / "evaluations", self.config.data.task
        name = "-".join(filter(None, [self.scores.split, task, label]))
        return self.scores.prepare_output(self._request.output, folder, name)

    def _record_search(self, config: Config) -> dict[str, dict[str, Any]]:  # noqa: ARG002
        return {"backend": {"name": "jax"}}

    def _compute(self, params: Params, alphas: Sequence[float]) -> list[Output]:  # noqa: ARG002
        date, started = now(), time.perf_counter()
        self._scorer.compile(params)
        compiled = time.perf_counter()
        counts = self._scorer.score_sentences(params)  # nats, predicted tokens and right ones
        seconds = time.perf_counter() - compiled
        scored = counts[counts[:, 1] > 0]
        facts = {
            "num_left_out": self._scorer.num_left_out,
            "begun": date,
            "seconds": seconds,
            "compile_seconds": compiled - started,
            "sentences_per_second": len(scored) / seconds,
            "tokens_per_second": float(scored[:, 1].sum()) / seconds,
            "run": summarize_ledger(self._request.workdir),
        }
        texts = {
            "log_probs": [f"{-nats:.6f} {count:.0f}" for nats, count, _ in counts],
            "right": [f"{right:.0f}" for *_, right in counts],
        }
        return [Output(texts, dict.fromkeys(self.scores.measures, scored), facts=facts)]


def _check_request(request: EvaluationRequest) -> None:
    """Raises `ConfigError` if something is asked for that needs translations."""
    given = {
        "--src": request.src,
        "--ref": request.ref,
        "--tgt_language": request.tgt_language,
        "--testset": request.testset,
        "--segments": request.segments,
        "--measures": request.measures != EvaluationRequest.measures,
        "--backend": request.backend != EvaluationRequest.backend,
        "--compute_type": request.compute_type,
        "an ensemble": request.workdirs[1:] or "," in request.checkpoint,
        **{f"--{name}": value is not None for name, value in request.decoding.items()},
    }
    if named := [flag for flag, value in given.items() if value]:
        raise ConfigError(
            f"{named[0]} is for translations, but {request.workdir} was trained on text alone; "
            "leave it out: perplexity and accuracy of a split are computed"
        )


def make_measures(data: DataConfig, predicted: str, num_left_out: int = 0) -> dict[str, Measure]:
    """Defines the measures perplexity and accuracy of a model that predicts parts of a text.

    Their definitions name what is predicted, such as "masked sub-words", and the number of texts
    that are too long for the model and have no statistics.
    """
    definition = f"{data.objective}: {predicted}; teacher forcing in JAX in {DTYPE}, no smoothing"
    if num_left_out:
        definition += f"{LEFT_OUT}{num_left_out} texts that are too long for the model"
    formulas = {
        "perplexity": "exp(nats / sub-words)",
        "accuracy": "percent predicted as most probable",
    }
    return {
        name: make_prediction_measure(name, f"{formula}; {definition}")
        for name, formula in formulas.items()
    }
