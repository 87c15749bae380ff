"""Scores one run with several checkpoint averages, beam sizes and length penalties.

Saved evaluations that are still valid are reused.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from t2t.config.fields import ConfigError
from t2t.config.files import load_config
from t2t.config.measures import choose_measure
from t2t.evaluation.checkpoint_watcher import make_label
from t2t.evaluation.evaluator import EvaluationRequest, Evaluator
from t2t.evaluation.load_models import override_decoding
from t2t.evaluation.plots import plot_by_setting
from t2t.evaluation.saved_evaluations import Evaluation, report_reuse
from t2t.evaluation.scores import format_interval, make_measure
from t2t.runtime.text_tables import format_table
from t2t.training.checkpoint import average_params, find_average_steps, restore_params

Grid = Mapping[tuple[int, float], Evaluation]  # by beam size and alpha


def scan_averages(request: EvaluationRequest, counts: Sequence[int], measure: str | None) -> str:
    """Scores the mean of the last n checkpoints for each n in `counts`.

    An empty `measure` means the one of `choose_measure`.

    Returns:
        A table, and the path of the plot that is drawn in the folder of the scores.

    Raises:
        ConfigError, RunError: there are fewer than max(counts) consecutive checkpoints, or as in
            `Evaluator`.
    """
    lowercase = load_config(request.workdir / "config.json").tokenizer.lowercase
    measure = choose_measure(measure, lowercase=lowercase)
    evaluator = Evaluator(request.measuring(measure))
    most = max(counts)
    steps = find_average_steps(request.workdir, most)
    saved = evaluator.list_saved(measure)
    found = {}
    for count in sorted(set(counts)):
        label = make_label(steps[-1], count)
        if label in saved:
            report_reuse(saved[label])
        else:
            params = average_params(request.workdir, steps[-count:])
            [saved[label]] = evaluator.evaluate(params, label)
        found[count] = saved[label]
    plot = evaluator.prepare_output(f"averages-{steps[-1]}").with_suffix(f".{measure}.svg")
    plot_by_setting(found, measure, "checkpoints averaged", plot)
    rows = [
        [
            count,
            f"{_value(evaluation, measure):.2f}",
            format_interval(evaluation.result["measures"][measure]["interval"]),
        ]
        for count, evaluation in found.items()
    ]
    table = format_table(rows, ["averaged", measure, "95% over sentences"], align="rr")
    return f"{evaluator.split}, averages of checkpoints up to step {steps[-1]}\n{table}\n{plot}"


def scan_search(
    request: EvaluationRequest,
    beam_sizes: Sequence[int],
    alphas: Sequence[float],
    measure: str | None,
) -> str:
    """Scores a checkpoint with every beam size and alpha, in one search per beam size.

    An empty `beam_sizes` or `alphas` means the config's value, an empty `measure` the one of
    `choose_measure`.

    Returns:
        A table.

    Raises:
        ConfigError, RunError: as in `Evaluator`, before the first search.
    """
    config = override_decoding(load_config(request.workdir / "config.json"), request.decoding)
    if config.decoding.strategy != "beam":
        raise ConfigError("--beam_sizes and --alphas are for beam search; add --strategy=beam")
    measure = choose_measure(measure, lowercase=config.tokenizer.lowercase)
    alphas = sorted(set(alphas)) or [config.decoding.alpha]
    evaluators = {
        size: Evaluator(
            dataclasses.replace(
                request.measuring(measure), decoding={**request.decoding, "beam_size": size}
            )
        )
        for size in sorted(set(beam_sizes)) or [config.decoding.beam_size]
    }
    [first, *_] = evaluators.values()
    params, label = restore_params(request.workdir, request.checkpoint)
    found: dict[tuple[int, float], Evaluation] = {}
    for size, evaluator in evaluators.items():
        saved = {alpha: evaluator.list_saved(measure, alpha).get(label) for alpha in alphas}
        for evaluation in filter(None, saved.values()):
            report_reuse(evaluation)
        missing = [alpha for alpha, evaluation in saved.items() if evaluation is None]
        new = evaluator.evaluate(params, label, missing) if missing else []
        scored = saved | dict(zip(missing, new, strict=True))
        found |= {(size, alpha): each for alpha, each in scored.items() if each}
    title = f"{first.split}, checkpoint {label}, {measure} by beam size and alpha"
    return f"{title}\n{_format_grid(found, measure, first.tgt_language)}"


def _format_grid(found: Grid, measure: str, tgt_language: str) -> str:
    """Table with a row for each beam size and a column for each alpha, then the best evaluation."""
    sign = 1 if make_measure(measure, tgt_language).scale.higher_is_better else -1
    sizes, alphas = (sorted({place[axis] for place in found}) for axis in (0, 1))
    rows = [
        [int(size), *(f"{_value(found[int(size), alpha], measure):.2f}" for alpha in alphas)]
        for size in sizes
    ]
    header = ["beam", *(f"alpha {alpha:g}" for alpha in alphas)]
    best = max(sorted(found), key=lambda place: sign * _value(found[place], measure))
    return f"{format_table(rows, header, align='r' * len(header))}\nbest: {found[best].path}"


def _value(evaluation: Evaluation, measure: str) -> float:
    return float(evaluation.result["measures"][measure]["value"])
