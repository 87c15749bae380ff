"""`tune`: scores checkpoints, averages, beam sizes and alphas of a run, and names the best.

Saved evaluations that are still valid are used again.
"""

import logging
from collections.abc import Mapping, Sequence

from t2t.config.fields import ConfigError
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.measures import format_score
from t2t.evaluation.requests import SelectionRequest
from t2t.evaluation.saved_evaluations import Evaluation
from t2t.runtime.text_tables import format_table
from t2t.training.checkpoint import find_checkpoint, rank

_log = logging.getLogger(__name__)


def tune(
    request: SelectionRequest,
    checkpoints: Sequence[str] = ("best",),
    beam_sizes: Sequence[int] = (),
    alphas: Sequence[float] = (),
) -> str:
    """Scores each checkpoint with each beam size and alpha, in one search per beam size.

    Without `beam_sizes` or `alphas` (exponents of the length penalty) it takes the config's.
    Returns a table, and the path of the best evaluation.
    """
    model = RunModel(request.make_evaluation("last"))
    decoding = model.config.decoding
    if (beam_sizes or alphas) and decoding.strategy != "beam":
        raise ConfigError("--beam_sizes and --alphas are for beam search; add --strategy=beam")
    measure, alphas = request.find_measure(model.config), sorted({*alphas}) or [decoding.alpha]
    searches = [{"beam_size": size} for size in sorted({*beam_sizes})] or [{}]
    evaluators = [Evaluator(request.make_evaluation("last", measure, **own)) for own in searches]
    named = [find_checkpoint(request.workdir, name, model.config) for name in checkpoints]
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
    scores = evaluators[0].scores
    best = scores.is_higher_better(measure)
    described = _describe(found, measure, higher_is_better=best)
    return f"{scores.split}, {measure}\n{described}"


def _describe(
    found: Mapping[tuple[str, int, float], Evaluation], measure: str, *, higher_is_better: bool
) -> str:
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
    return f"{format_table(rows, header, align='lrrr')}\nbest: {evaluation.path}"
