"""`watch`: scores the checkpoints of a run as training writes them."""

import logging
from collections.abc import Sequence

from t2t.config.fields import ConfigError
from t2t.evaluation.checkpoint_watcher import Watch, wait_for_checkpoint
from t2t.evaluation.evaluator import Evaluator
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import SelectionRequest, count_averaged
from t2t.storage.paths import check_new_run_path

_log = logging.getLogger(__name__)


def watch(
    request: SelectionRequest, checkpoints: Sequence[str], patience: int = 0, timeout: float = 0.0
) -> tuple[bool, str]:
    """Scores checkpoints as training writes them; uses saved scores that are still valid again.

    Args:
        request: the run, and how it is scored.
        checkpoints: what is scored of each new checkpoint: "last", the checkpoint itself; "avg:5",
            the mean of the last 5.
        patience: number of checkpoints without a better score after which training is told to stop;
            0: never.
        timeout: the longest wait for a checkpoint in seconds; 0: no limit.

    Returns:
        True if training has ended, False if no checkpoint came in time; and the table of the
        scores, empty if there are none.

    Raises:
        ConfigError, DataError, PathError, RunError, VocabularyError: as in `evaluate`.
    """
    if not request.workdir.exists():  # training may begin later
        check_new_run_path(request.workdir)
    if not wait_for_checkpoint(request.workdir, timeout):
        _log.info("no checkpoint for %g seconds (--timeout)", timeout)
        return False, ""
    counts = sorted({*map(count_averaged, checkpoints)})
    model = RunModel(request.make_evaluation("last"))
    measure = request.find_measure(model.config)
    evaluator = Evaluator(request.make_evaluation("last", measure), model)
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
        _log.info("no new checkpoint for %g seconds (--timeout)", timeout)
    return finished, following.describe()
