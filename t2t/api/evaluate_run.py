"""`evaluate`: one evaluation of a run or an ensemble, always computed anew."""

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

import jax

from t2t.config.fields import ConfigError
from t2t.config.files import load_config
from t2t.config.measures import CASED_MEASURES
from t2t.data.directions import choose_task
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.kinds import make_score_table
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.measure import MIN_SENTENCES
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.saved_evaluations import Evaluation, format_measures
from t2t.model.parameters import Params
from t2t.storage.atomic_files import explain_write_errors
from t2t.storage.paths import check_new_run_path, make_run_path
from t2t.training.checkpoint import save_params
from t2t.training.run_directory import RunError
from t2t.training.sharing import Sharing, make_plain

_log = logging.getLogger(__name__)


def evaluate(
    request: EvaluationRequest, held: tuple[Params, list[str]] | None = None
) -> Evaluation:
    """Translates, scores and saves.

    `held` are the parameters of a loaded run and the labels of their checkpoints, which are scored
    instead of those that the request names. A run on text alone (`data.objective`) is scored by
    what it predicts.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: the request names something that does
            not exist, does not fit the run, or cannot be written.
    """
    if request.save_params and len(request.members) > 1:
        raise ConfigError("an ensemble has no parameters of its own; leave out --save_params")
    if request.save_params and jax.process_count() > 1:
        raise ConfigError("--save_params works in one process; start only one")
    model = RunModel(request)
    if model.config.data.is_text_alone:
        from t2t.evaluation.predictions import PredictionEvaluator  # it imports training

        evaluator: Evaluator = PredictionEvaluator(request, model)
    else:
        evaluator = Evaluator(request, model)
        if model.config.tokenizer.lowercase:
            _log.info(
                "outputs are lower-case (tokenizer.lowercase): %s count that as errors",
                ", ".join(CASED_MEASURES),
            )
    params, label = evaluator.restore(held)
    if request.save_params:
        evaluator.prepare_output(label)  # its errors come before the parameters are saved
        save_run(request, params, label)
    [evaluation] = evaluator.evaluate(params, label)
    return evaluation


def save_run(request: EvaluationRequest, params: Params, label: str) -> None:
    """Saves the evaluated parameters as a new run directory."""
    target = make_run_path(request.save_params, "--save_params")
    if target.exists():
        raise ConfigError(f"--save_params={target} exists already; choose a new directory")
    check_new_run_path(target, "--save_params")
    config = load_config(request.workdir / "config.json")
    own = None
    if not Sharing(config).is_plain:
        own = make_plain(config, choose_task(config.data, request.task))
    with explain_write_errors(RunError, f"--save_params={target}"):
        step = int(label.split("-")[-1])
        save_params(request.workdir, target, params, step, own)


def describe(evaluation: Evaluation) -> str:
    """Returns a summary of the evaluation as text."""
    result, passport, unit = evaluation.result, evaluation.passport, evaluation.unit
    left_out = result.get("num_left_out", 0)
    title = f"{passport.data['split']}, "
    if passport.is_of_run:
        title += f"checkpoint {passport.checkpoint}, {passport.describe_search()}: "
    else:
        title += f"{passport.describe_origin()}: "
    title += f"{result['num_sentences']} sentences"
    if "seconds" in result:  # text by another program took no time here
        title += (
            f"{f', {left_out} of them left out,' * bool(left_out)} in "
            f"{result['seconds']:.1f} s ({result['sentences_per_second']:.1f} sentences/s, "
            f"{result['tokens_per_second']:.0f} tokens/s), after {result['compile_seconds']:.1f} s "
            "of compilation"
        )
    lines = [title, format_measures(result["measures"])]
    lines += describe_lengths(result["measures"])
    if "kinds" in result:
        lines.append(make_score_table(result["kinds"]).format())
    if passport.objective:
        lines.append(describe_nats(result["measures"]["perplexity"]))
    if result[f"num_{unit}"] < MIN_SENTENCES:
        lines.append(
            f"no 95% intervals: resamples of fewer than {MIN_SENTENCES} {unit} do not show how "
            "scores vary"
        )
    return "\n".join([*lines, str(evaluation.path)])


def describe_lengths(measures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describes the lengths of the first BLEU: brevity penalty, ratio, and words as it counts."""
    pattern = r"BP = (\S+) ratio = (\S+) hyp_len = (\d+) ref_len = (\d+)"  # sacreBLEU's line
    for name, score in measures.items():
        if found := re.search(pattern, score.get("detail", "")):
            penalty, ratio, length, wanted = found.groups()
            return [
                f"{name}: brevity penalty {penalty}, length ratio {ratio} ({length} tokens, "
                f"{wanted} in the references)"
            ]
    return []


def describe_nats(perplexity: Mapping[str, Any]) -> str:
    """Describes a perplexity by its logarithm, with digits that tell close models apart."""
    limits = [f"{math.log(limit):.4f}" for limit in perplexity["interval"] or ()]
    interval = f" [{', '.join(limits)}]" if limits else ""
    return f"{math.log(perplexity['value']):.4f}{interval} nats per sub-word: log of the perplexity"
