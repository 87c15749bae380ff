"""The training loop (section 5 of the paper)."""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from t2t.config.fields import Config
from t2t.data.batch import DeviceBatch
from t2t.model.parameters import Params
from t2t.runtime.signals import catch_signals
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.patience import Patience
from t2t.training.report import Report
from t2t.training.run_directory import is_regular
from t2t.training.state import TrainState
from t2t.training.step import TrainStep
from t2t.training.stop_request import is_stop_requested


@runtime_checkable
class Validate(Protocol):
    """Scores parameters on held-out data."""

    def compile(self, params: Params) -> None:
        """Compiles what a call runs, so that its errors come early."""

    def __call__(self, params: Params, step: int) -> Mapping[str, float]:
        """Returns the scores by name."""


def train(
    config: Config,
    state: TrainState,
    train_step: TrainStep,
    batches: Iterator[DeviceBatch],
    validate: Validate,
    checkpoints: Checkpoints,
    report: Report,
    until: int | None = None,
) -> tuple[TrainState, bool]:
    """Trains until the last step, a signal or a request to stop, and saves the last state.

    The last step is `training.steps`, or `until` if it comes earlier. Returns the state, and
    whether it has reached the last step.
    """
    training = config.training
    last = min(training.steps, until or training.steps)
    step = start = int(state.step)
    patience = Patience(config, checkpoints.workdir, start)
    with catch_signals(start) as is_interrupted:
        while step < last and not is_interrupted(step):
            with report.waiting():
                batch = next(batches)
            state, metrics = train_step(state, batch)
            step += 1
            report.add(step, metrics)

            # Validation is compiled after the first step, so that its errors come early.
            if step == start + 1 and not is_interrupted(step):
                with report.paused():
                    validate.compile(checkpoints.evaluation_params(state))
                report.note_compiled()
            scores = None
            if step % training.validate_every == 0 or step == training.steps:
                with report.paused():
                    scores = validate(checkpoints.evaluation_params(state), step)
                    report.validation(step, scores)
                patience.add(step, scores)
            if is_regular(step, config):
                report.flush()
                checkpoints.save(state, scores)
                if is_stop_requested(checkpoints.workdir):
                    break
        report.flush()
        checkpoints.save(state)  # does nothing if the last step has a checkpoint
        checkpoints.finish()
    return state, step >= last
