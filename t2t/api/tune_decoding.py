"""`tune`: scores checkpoints, averages, beam sizes and alphas of a run, and names the best.

Saved evaluations that are still valid are used again.
"""

import logging
from collections.abc import Mapping, Sequence

from t2t.config.fields import ConfigError
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.number_format import format_score
from t2t.evaluation.plots import draw_by_setting, write_figure
from t2t.evaluation.requests import SelectionRequest, count_averaged
from t2t.evaluation.saved_evaluations import Evaluation
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import check_writable, explain_write_errors
from t2t.training.checkpoint import find_checkpoint, rank
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)


def tune(
    request: SelectionRequest,
    checkpoints: Sequence[str] = ("best",),
    beam_sizes: Sequence[int] = (),
    alphas: Sequence[float] = (),
) -> str:
    """Scores each checkpoint with each beam size and alpha, in one search per beam size.

    Args:
        request: the run, and how it is scored.
        checkpoints: names such as best, last, or avg:5 for a mean.
        beam_sizes: empty: the config's.
        alphas: exponents of the length penalty; empty: the config's.

    Returns:
        A table, the path of the best evaluation, and the path of a plot if means of several numbers
        of checkpoints were compared.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: as in `evaluate`, before the first
            search.
    """
    model = RunModel(request.make_evaluation("last"))
    decoding = model.config.decoding
    if (beam_sizes or alphas) and decoding.strategy != "beam":
        raise ConfigError("--beam_sizes and --alphas are for beam search; add --strategy=beam")
    measure, alphas = request.find_measure(model.config), sorted({*alphas}) or [decoding.alpha]
    searches = [{"beam_size": size} for size in sorted({*beam_sizes})] or [{}]
    evaluators = [Evaluator(request.make_evaluation("last", measure, **own)) for own in searches]
    named = [find_checkpoint(request.workdir, name, model.config) for name in checkpoints]
    plot, counts = None, {each.label: len(each.steps) for each in named}
    is_of_averages = all(map(count_averaged, checkpoints))
    if is_of_averages and len(evaluators) * len(alphas) == 1 < len(counts):
        output = evaluators[0].prepare_output(f"averages-{named[-1].steps[-1]}")
        plot = output.with_suffix(f".{measure}.svg")
        with explain_write_errors(RunError, plot):
            check_writable(plot.parent, plot.name)
    saved = [{alpha: each.list_saved(alpha) for alpha in alphas} for each in evaluators]
    found = dict[tuple[str, int, float], Evaluation]()  # by label, beam size and alpha
    for label, checkpoint in {each.label: each for each in named}.items():
        params = None
        for evaluator, known in zip(evaluators, saved, strict=True):
            own = {alpha: known[alpha][label] for alpha in alphas if label in known[alpha]}
            for evaluation in own.values():
                _log.info("%s: used again, as scored on %s", evaluation.path, evaluation.date)
            if missing := [alpha for alpha in alphas if alpha not in own]:
                params = checkpoint.restore(request.workdir) if params is None else params
                own |= zip(missing, evaluator.evaluate(params, label, missing), strict=True)
            size = evaluator.config.decoding.beam_size
            found |= {(label, size, alpha): own[alpha] for alpha in alphas}
    if plot:
        by_count = dict(zip(counts.values(), found.values(), strict=True))
        write_figure(draw_by_setting(by_count, measure, "checkpoints averaged"), plot)
    scores = evaluators[0].scores
    best = scores.is_higher_better(measure)
    lines = [f"{scores.split}, {measure}", *_describe(found, measure, higher_is_better=best)]
    return "\n".join([*lines, *([str(plot)] if plot else [])])


def _describe(
    found: Mapping[tuple[str, int, float], Evaluation], measure: str, *, higher_is_better: bool
) -> list[str]:
    """Returns the table, and the path of the best evaluation: the first of equal ones."""
    values = {number: each.value(measure) for number, each in enumerate(found.values())}
    best = rank(values, higher_is_better=higher_is_better)[0]
    rows = [
        [label, size, f"{alpha:g}", format_score(each.value(measure)), each.interval(measure),
         "best" * (number == best)]
        for number, ((label, size, alpha), each) in enumerate(found.items())
    ]  # fmt: skip
    evaluation = [*found.values()][best]
    header = ["checkpoint", "beam", "alpha", measure, f"95% over {evaluation.unit}", ""]
    return [format_table(rows, header, align="lrrr"), f"best: {evaluation.path}"]
