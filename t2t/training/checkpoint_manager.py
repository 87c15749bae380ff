"""Checkpoints of a training: saves them, deletes old ones, restores the newest onto any mesh.

A checkpoint gets its final name, the step, only when it is complete.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from t2t.config.fields import Config
from t2t.model.parameters import Params
from t2t.runtime.mesh import gather_over_data
from t2t.runtime.signals import hold_signals
from t2t.storage.atomic_files import measure_free_space, require_space
from t2t.storage.paths import first_line
from t2t.training.checkpoint import rank_steps
from t2t.training.disk_space import measure_checkpoint
from t2t.training.optimizer import Optimizer
from t2t.training.run_directory import (
    RunError,
    is_regular,
    make_read_error,
    make_write_error,
)
from t2t.training.state import TrainState


class Checkpoints:
    """Writes checkpoints in the background, and deletes those that the config does not keep."""

    def __init__(self, workdir: Path, config: Config, optimizer: Optimizer):
        """Opens `workdir`/checkpoints; `list_scored_measures` has read their validation scores."""
        self.workdir = workdir
        self._config = config
        self._optimizer, self._evaluation_params = optimizer, optimizer.evaluation_params
        self._manager = ocp.CheckpointManager(
            workdir.absolute() / "checkpoints",
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self,  # by `should_preserve`
                best_fn=len,  # with any function Orbax writes the scores, which are ranked there
                cleanup_tmp_directories=True,  # incomplete checkpoints of a killed process
            ),
            item_names=("params", "ema", "training"),
        )

    def evaluation_params(self, state: TrainState) -> Params:
        """Returns the parameters that validation scores and that a checkpoint has for programs.

        Those are the optimiser's evaluation parameters (`t2t.training.optimizer`).
        """
        params = state.params
        if self._evaluation_params is not None:
            params = self._evaluation_params(state.opt_state, params)
        return jax.tree.map(gather_over_data, params)

    def save(self, state: TrainState, metrics: Mapping[str, float] | None = None) -> None:
        """Starts to write a checkpoint in the background, unless the step has one already.

        `metrics` are the validation scores of this step, if there are any.

        Raises:
            RunError: this checkpoint or the previous one could not be written.
        """
        if int(state.step) == self._manager.latest_step():
            return
        self.check_space(state)
        try:
            items = _split(state, self._evaluation_params and self.evaluation_params(state))
            args = {name: ocp.args.StandardSave(item) for name, item in items.items()}
            self._manager.save(
                int(state.step), args=ocp.args.Composite(**args), metrics=metrics or None
            )
        except Exception as error:
            raise make_write_error(self.workdir, first_line(error)) from error

    @hold_signals()
    def restore(self, described: TrainState) -> TrainState:
        """Restores the newest checkpoint, of which there is one.

        `described` has the shapes, dtypes and shardings of the result. Its leaves may be
        `jax.ShapeDtypeStruct` (`abstract_state`), so that memory holds only one state.
        """
        step = self._manager.latest_step()
        assert step is not None
        if not (self.workdir / "checkpoints" / str(step) / "training").exists():
            reason = "holds parameters alone, written by --save_params or t2t.import_model; "
            reason += "continue the original run, or begin another with --init_from"
            raise RunError(f"checkpoint {step} of {self.workdir} {reason}")
        try:
            folder = self.workdir.absolute() / "checkpoints" / str(step) / "training"
            # Asked of the checkpoint: a plugin's optimiser may since have changed its evaluation.
            is_apart = "params" in ocp.StandardCheckpointHandler().metadata(folder).tree
            items = _split(described, described.params if is_apart else None)
            if is_apart:
                del items["params"]  # for evaluation, not for training
            args = {name: ocp.args.StandardRestore(item) for name, item in items.items()}
            saved = self._manager.restore(step, args=ocp.args.Composite(**args))
        except Exception as error:
            raise make_read_error(self.workdir, step, error) from error
        params = saved.training.pop("params") if is_apart else saved.params
        return TrainState(params=params, ema=saved.get("ema"), **saved.training)

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: policy.PreservationContext
    ) -> Sequence[bool]:
        """Returns, for each checkpoint from the oldest to the newest, whether Orbax keeps it.

        It keeps those for which `config.checkpoints` asks: the last regular ones (`is_regular`),
        each `keep_every` steps, and the best ones; and the newest, even if an interruption wrote
        it, because training continues from it.
        """
        del context
        rules, steps = self._config.checkpoints, [checkpoint.step for checkpoint in checkpoints]
        regular = [step for step in steps if is_regular(step, self._config)]
        kept = {*regular[-rules.keep_last :], *steps[-1:]}
        if rules.keep_every:
            kept |= {step for step in steps if step % rules.keep_every == 0}
        # Of equal ones the first, as `find_best_step`; Orbax's own `BestN` keeps the last.
        scores = {
            each.step: each.metrics[rules.best_metric]
            for each in checkpoints
            if each.metrics and rules.best_metric in each.metrics
        }
        kept |= {*rank_steps(scores, rules.best_metric)[: rules.keep_best]}
        return [step in kept for step in steps]

    def check_space(self, state: TrainState) -> int:
        """Returns the bytes of a checkpoint; raises `RunError` if the disk has less space."""
        needed = measure_checkpoint(state, self._optimizer)
        if measure_free_space(self.workdir) < needed:
            self.finish()  # when the write under way ends, Orbax deletes old checkpoints
        try:
            require_space(self.workdir, needed)
        except OSError as error:
            raise make_write_error(self.workdir, str(error.strerror)) from None
        return needed

    def close(self) -> None:
        """As `finish`; nothing can be saved or restored afterwards."""
        try:
            self.finish()
        finally:
            self._manager.close()

    def finish(self) -> None:
        """Waits until the last checkpoint is complete.

        Raises:
            RunError: it could not be written.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise make_write_error(self.workdir, first_line(error)) from error


def _split(state: TrainState, evaluated: Params | None = None) -> dict[str, Any]:
    """Returns the parts of a checkpoint, which can be read separately; `ema` only if it exists.

    Part `params` is what programs evaluate. If that is `evaluated`, then `training` also holds the
    parameters themselves, with which training resumes exactly.
    """
    training = state._asdict()
    del training["teachers"]  # which are read anew
    items = {"params": training.pop("params"), "ema": training.pop("ema"), "training": training}
    if evaluated is not None:
        training["params"], items["params"] = items["params"], evaluated
    return {name: item for name, item in items.items() if item is not None}
