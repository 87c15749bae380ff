"""Evaluates a run on text alone (`data.objective`): perplexity and accuracy of what it predicts.

The predicted tokens are those that its training predicts: each token of a text, the spans that are
left out of it, or its masked tokens. Which ones is drawn once for all, as in validation.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from t2t.config.fields import ConfigError, DataConfig
from t2t.data.corpus_sources import open_split
from t2t.data.objectives import make_objective
from t2t.evaluation.corpus_loss import DTYPE
from t2t.evaluation.load_models import RunModel, describe_run
from t2t.evaluation.measures import (
    LEFT_OUT,
    Score,
    TestSet,
    describe_intervals,
    make_prediction_measure,
)
from t2t.evaluation.passport import Passport, write_passport
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.saved_evaluations import Evaluation, name_texts, save_evaluation
from t2t.evaluation.text_scores import prepare_output
from t2t.evaluation.validation_scores import make_scorer
from t2t.model.interface import Params
from t2t.runtime.distributed import is_first
from t2t.storage.atomic_files import explain_write_errors
from t2t.training.provenance import find_commit, hash_params, now, summarize_ledger
from t2t.training.run_directory import RunError

Counts = Float[np.ndarray, "n 3"]  # nats, predicted tokens and right ones of each text


def evaluate_predictions(
    request: EvaluationRequest, model: RunModel, held: tuple[Params, list[str]] | None = None
) -> Evaluation:
    """Scores a split of the text of a run, and saves the scores and those of each text.

    `model` is that of the request; `held` are parameters and label, instead of those that the
    request names.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: the request names something that does
            not exist or is for translations, or the scores cannot be written.
    """
    _check_request(request)
    config = model.config
    corpus = open_split(config.data, request.split, config.tokenizer)
    params, [label] = held or model.restore()

    def list_names(path: Path) -> dict[str, str]:
        """Returns the names of the texts beside the scores at `path`."""
        names = name_texts(path, request.split, corpus.fingerprint())
        kept = {text: names[text] for text in ("log_probs", "references")}
        return kept | {"right": f"{path.stem}.right.txt"}

    folder = request.workdir / "evaluations"
    path = prepare_output(request, folder, f"{request.split}-{label}", list_names)
    placed = model.place(params)
    with jax.set_mesh(model.mesh):
        scorer = make_scorer(
            config, model.vocabulary, corpus, model.mesh, request.split, count_right=True
        )
        started = time.perf_counter()
        scorer.compile(placed)
        compiled = time.perf_counter()
        counts = scorer.score_sentences(placed)
        seconds = time.perf_counter() - compiled
    texts = [text.replace("\n", " ") for _, text in corpus]
    scored = counts[counts[:, 1] > 0]
    predicted = make_objective(config.data, model.vocabulary.tgt).predicted
    scores = score_predictions(config.data, predicted, scored, scorer.num_left_out)
    found = describe_run(model, [label], [__name__])
    found["backend"] |= {"name": "jax"}
    found["origin"] |= {"checkpoint": label, "parameters": hash_params(params)}
    data = {"objective": config.data.objective, "tgt_language": config.data.tgt_language}
    passport = Passport(**found, data={"split": request.split, **data})
    result: dict[str, Any] = {
        "measures": {name: dataclasses.asdict(score) for name, score in scores.items()},
        "interval": describe_intervals(),
        "num_sentences": len(texts),
        "num_left_out": scorer.num_left_out,
        "seconds": seconds,
        "compile_seconds": compiled - started,
        "sentences_per_second": len(scored) / seconds,
        "tokens_per_second": float(scored[:, 1].sum()) / seconds,
        "run": summarize_ledger(request.workdir),
        "date": now(),
        **find_commit(),
        "passport": write_passport(passport),
        "texts": list_names(path),
    }
    if not is_first():
        return Evaluation(path, result)
    lines = {
        "log_probs": [f"{-nats:.6f} {count:.0f}" for nats, count, _ in counts],
        "references": texts,
        "right": [f"{right:.0f}" for *_, right in counts],
    }
    with explain_write_errors(RunError, path):
        return save_evaluation(path, result, lines)


def _check_request(request: EvaluationRequest) -> None:
    """Raises `ConfigError` if something is asked for that needs translations."""
    given = {
        "--src": request.src,
        "--ref": request.ref,
        "--tgt_language": request.tgt_language,
        "--testset": request.testset,
        "--segments": request.segments,
        "--measures": request.measures != EvaluationRequest.measures,
        "--save_params": request.save_params,
        "--backend": request.backend != EvaluationRequest.backend,
        "--compute_type": request.compute_type,
        "an ensemble": request.others or "," in request.checkpoint,
        **{f"--{name}": value is not None for name, value in request.decoding.items()},
    }
    if named := [flag for flag, value in given.items() if value]:
        raise ConfigError(
            f"{named[0]} is for translations, but {request.workdir} was trained on text alone; "
            "leave it out: perplexity and accuracy of a split are computed"
        )


def score_predictions(
    data: DataConfig, predicted: str, counts: Counts, num_left_out: int = 0
) -> dict[str, Score]:
    """Computes perplexity and accuracy of what is predicted, with intervals over the texts.

    The texts of `counts` are those that are not too long for the model.
    """
    definition = f"{data.objective}: {predicted}; teacher forcing in JAX in {DTYPE}, no smoothing"
    if num_left_out:
        definition += f"{LEFT_OUT}{num_left_out} texts that are too long for the model"
    formulas = {
        "perplexity": "exp(nats / sub-words)",
        "accuracy": "percent predicted as most probable",
    }
    texts = TestSet([""] * len(counts), [])
    return {
        name: make_prediction_measure(name, f"{formula}; {definition}").score_counts(
            counts, texts, with_interval=True
        )
        for name, formula in formulas.items()
    }
