"""Evaluations of a run: one, of each checkpoint that training writes, or over several settings.

`evaluate` always scores anew; the others use saved evaluations that are still valid.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from t2t.config.fields import Config, ConfigError
from t2t.config.files import load_config
from t2t.config.measure_names import CASED_MEASURES
from t2t.config.measure_rules import choose_measure
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.measures import MIN_SENTENCES, format_score
from t2t.evaluation.requests import EvaluationRequest
from t2t.evaluation.saved_evaluations import Evaluation, format_measures, report_reuse
from t2t.model.interface import Params
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import check_writable, explain_write_errors
from t2t.storage.paths import check_new_run_path, make_run_path
from t2t.training.checkpoint import (
    average_params,
    find_average_steps,
    rank,
    restore_params,
    save_params,
)
from t2t.training.run_directory import RunError

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
        raise ConfigError("an ensemble is one evaluation; leave out --save_params")
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
    with explain_write_errors(RunError, f"--save_params={target}"):
        save_params(request.workdir, target, params, step=int(label.split("-")[-1]))


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


def watch(
    request: EvaluationRequest,
    counts: Sequence[int],
    measure: str | None,
    patience: int,
    timeout: float,
) -> tuple[bool, str]:
    """Scores checkpoints as training writes them.

    For each checkpoint, n in `counts` is the mean of the last n. No `measure` means the one of
    `choose_measure`. Training is told to stop after `patience` checkpoints without a better score;
    0: never.

    Returns whether training has ended; if not, no checkpoint came for `timeout` seconds. Also
    returns the table of the scores, empty if there are none.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: as in `evaluate`.
    """
    from t2t.evaluation.checkpoint_watcher import Watch, wait_for_checkpoint

    if not wait_for_checkpoint(request.workdir, timeout):
        _log.info("no checkpoint for %g seconds (--watch_timeout)", timeout)
        return False, ""
    request = dataclasses.replace(request, checkpoint="last")
    model = RunModel(request)
    measure, request = add_measure(request, model.config, measure)
    evaluator = Evaluator(request, model)
    keeping = evaluator.config.checkpoints
    if max(counts) > keeping.keep_last and keeping.keep_every != keeping.every:
        raise ConfigError(
            f"--checkpoint=avg:{max(counts)} needs as many checkpoints at a time, but training "
            f"keeps checkpoints.keep_last={keeping.keep_last}; average fewer"
        )
    chosen = "-".join("last" if count == 1 else f"avg{count}" for count in counts)
    output = evaluator.prepare_output(f"watch-{chosen}")
    folder = output.with_name(f"{output.stem}-{measure}")
    more = evaluator.scores.is_higher_better(measure)
    following = Watch(request.workdir, folder, counts, measure, patience, higher_is_better=more)
    finished = following.follow(evaluator, timeout)
    if not finished:
        _log.info("no new checkpoint for %g seconds (--watch_timeout)", timeout)
    return finished, following.describe()


def add_measure(
    request: EvaluationRequest, config: Config, measure: str | None
) -> tuple[str, EvaluationRequest]:
    """Returns the measure to choose by, and the request with it added.

    No `measure` means the one of `choose_measure`.
    """
    tokenizer = config.tokenizer
    language = request.tgt_language or config.data.tgt_language
    measure = choose_measure(
        measure, lowercase=tokenizer.lowercase, kind=tokenizer.kind, language=language
    )
    return measure, dataclasses.replace(request, measures=(*request.measures, measure))


def scan_averages(request: EvaluationRequest, counts: Sequence[int], measure: str | None) -> str:
    """Scores the mean of the last n checkpoints for each n in `counts`.

    No `measure` means the one of `choose_measure`. Returns a table, and the path of the plot that
    is drawn in the folder of the scores.

    Raises:
        ConfigError, RunError: there are fewer than max(counts) consecutive checkpoints, or as in
            `Evaluator`.
    """
    from t2t.evaluation.checkpoint_watcher import make_label
    from t2t.evaluation.plots import draw_by_setting, write_figure

    model = RunModel(request)
    measure, request = add_measure(request, model.config, measure)
    evaluator = Evaluator(request, model)
    steps = find_average_steps(request.workdir, max(counts), model.config)
    plot = evaluator.prepare_output(f"averages-{steps[-1]}").with_suffix(f".{measure}.svg")
    with explain_write_errors(RunError, plot):
        check_writable(plot.parent, plot.name)
    saved = evaluator.list_saved()
    found = {}
    for count in sorted(set(counts)):
        label = make_label(steps[-1], count)
        if label in saved:
            report_reuse(saved[label])
        else:
            params = average_params(request.workdir, steps[-count:])
            [saved[label]] = evaluator.evaluate(params, label)
        found[count] = saved[label]
    write_figure(draw_by_setting(found, measure, "checkpoints averaged"), plot)
    rows = [
        [count, format_score(each.value(measure)), each.interval(measure)]
        for count, each in found.items()
    ]
    header = ["averaged", measure, f"95% over {next(iter(found.values())).unit}"]
    table = format_table(rows, header, align="rr")
    title = f"{evaluator.scores.split}, averages of checkpoints up to step {steps[-1]}"
    return f"{title}\n{table}\n{plot}"


def scan_search(
    request: EvaluationRequest,
    beam_sizes: Sequence[int],
    alphas: Sequence[float],
    measure: str | None,
) -> str:
    """Scores a checkpoint with every beam size and alpha, in one search per beam size; as a table.

    No `beam_sizes` or `alphas` means the config's value, no `measure` the one of `choose_measure`.

    Raises:
        ConfigError, RunError: as in `Evaluator`, before the first search.
    """
    given = {**request.decoding, **({"alpha": alphas[0]} if alphas else {})}
    config = load_config(request.workdir / "config.json", given)
    if config.decoding.strategy != "beam":
        raise ConfigError("--beam_sizes and --alphas are for beam search; add --strategy=beam")
    alphas = sorted(set(alphas)) or [config.decoding.alpha]
    sizes = sorted(set(beam_sizes)) or [config.decoding.beam_size]
    measure, request = add_measure(request, config, measure)
    evaluators = [
        Evaluator(dataclasses.replace(request, decoding={**request.decoding, "beam_size": size}))
        for size in sizes
    ]
    params, label = restore_params(request.workdir, request.checkpoint, config)
    found: dict[tuple[int, float], Evaluation] = {}
    for size, evaluator in zip(sizes, evaluators, strict=True):
        for alpha in alphas:
            if evaluation := evaluator.list_saved(alpha).get(label):
                report_reuse(evaluation)
                found[size, alpha] = evaluation
        missing = [alpha for alpha in alphas if (size, alpha) not in found]
        new = evaluator.evaluate(params, label, missing) if missing else []
        found |= {(size, alpha): each for alpha, each in zip(missing, new, strict=True)}
    rows = [
        [size, *(format_score(found[size, alpha].value(measure)) for alpha in alphas)]
        for size in sizes
    ]
    header = ["beam", *(f"alpha {alpha:g}" for alpha in alphas)]
    table = format_table(rows, header, align="r" * len(header))
    higher_is_better = evaluators[0].scores.is_higher_better(measure)
    scores = {setting: evaluation.value(measure) for setting, evaluation in found.items()}
    best = found[rank(scores, higher_is_better=higher_is_better)[0]]
    title = f"{evaluators[0].scores.split}, checkpoint {label}, {measure} by beam size and alpha"
    return f"{title}\n{table}\nbest: {best.path}"
