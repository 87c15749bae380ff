"""The loop: what is done at which step, how it is stopped, and what a failure leaves behind."""

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from t2t.config.fields import CheckpointConfig, Config, TrainingConfig
from t2t.config.files import save_config
from t2t.data.batch import Batch, DeviceBatch
from t2t.model.parameters import Params
from t2t.training.checkpoint import find_best_step
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.loop import train
from t2t.training.optimizer import make_optimizer
from t2t.training.report import NonFiniteError, Report
from t2t.training.run_directory import list_steps
from t2t.training.state import TrainState
from t2t.training.step import Metrics
from t2t.training.stop_request import read_stop_request, request_stop

OPTIMIZER = make_optimizer(Config())


def make_state() -> TrainState:
    params = {"sum": jnp.zeros(())}
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, OPTIMIZER.init(params), jnp.zeros(2, jnp.uint32), zero, zero)


def make_batches(start: int, stop: int) -> Iterator[DeviceBatch]:
    """Batch i holds the number i."""
    for number in range(start, stop):
        rows = jnp.full((1, 1), number)
        yield Batch(rows, rows, rows, rows)


def add(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
    """Instead of a training step: params["sum"] is the sum of (i + 1) * batch i."""
    step = state.step + 1
    params = {"sum": state.params["sum"] + step * batch.src[0, 0]}
    one, zero = jnp.ones(()), jnp.zeros((), jnp.int32)
    return state._replace(step=step, params=params), Metrics(
        one, one, one, one, one, one, zero, zero
    )


def expected_sum(steps: int) -> float:
    return float(sum((number + 1) * number for number in range(steps)))


class Run:
    """A run directory, the loop called on it, and its validation."""

    def __init__(self, workdir: Path, steps: int = 10):
        self.workdir = workdir
        self.config = TrainingConfig(
            steps=steps, validate_every=4, log_every=1, max_nonfinite_steps=2
        )
        self.validated: list[int] = []
        self.compiled: list[float] = []  # the parameters' sum at each compilation
        self.all = Config(training=self.config, checkpoints=CheckpointConfig(every=4))
        save_config(self.all, workdir / "config.json")

    def compile(self, params: Params) -> None:
        self.compiled.append(float(params["sum"]))

    def __call__(self, params: Params, step: int) -> dict[str, float]:
        self.validated.append(step)
        assert float(params["sum"]) == expected_sum(step)
        return {"loss": abs(step - 8.0)}

    def train(
        self, step: Callable[[TrainState, DeviceBatch], Any] = add
    ) -> tuple[TrainState, bool]:
        with contextlib.ExitStack() as stack:
            checkpoints = Checkpoints(self.workdir, self.all, OPTIMIZER)
            stack.callback(checkpoints.close)
            state = make_state()
            if list_steps(self.workdir):
                state = checkpoints.restore(state)
            first = int(state.step)
            report = Report(self.workdir, self.config, first)
            stack.callback(report.close)
            batches = make_batches(first, self.config.steps)
            return train(self.all, state, step, batches, self, checkpoints, report)

    def logged_steps(self) -> list[int]:
        lines = (self.workdir / "metrics.jsonl").read_text().splitlines()
        return [int(line.split(",")[0].split(":")[1]) for line in lines if "train/" in line]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def at_step(number: int, act: Callable[[], None]) -> Callable[[TrainState, DeviceBatch], Any]:
    """`add`, and in the middle of one step something else."""

    def step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
        if int(state.step) + 1 == number:
            act()
        return add(state, batch)

    return step


def test_validates_and_saves_at_its_steps_and_at_the_end(run: Run) -> None:
    state, finished = run.train()
    assert finished
    assert float(state.params["sum"]) == expected_sum(10)
    assert run.validated == [4, 8, 10]
    assert run.compiled == [expected_sum(1)]  # once, after the first step
    assert list_steps(run.workdir) == [4, 8, 10]
    assert find_best_step(run.workdir) == 8
    assert run.logged_steps() == list(range(1, 11))


class Scripted(Run):
    """A run that validates and saves after each step, with scores that are given."""

    def __init__(self, workdir: Path, scores: Sequence[Mapping[str, float]], **rules: Any):
        super().__init__(workdir, len(scores))
        self.scores = scores
        self.config.validate_every = self.config.translate_every = 1
        self.all.checkpoints = CheckpointConfig(every=1, **rules)
        save_config(self.all, workdir / "config.json")

    def __call__(self, params: Params, step: int) -> dict[str, float]:
        del params
        return {"loss": 1.0, **self.scores[step - 1]}


def name_scores(name: str, *values: float) -> list[dict[str, float]]:
    return [{name: value} for value in values]


def join(*scores: list[dict[str, float]]) -> list[dict[str, float]]:
    return [
        {name: x for each in found for name, x in each.items()}
        for found in zip(*scores, strict=True)
    ]


@pytest.mark.parametrize(
    ("metric", "scores", "stopped_at"),
    [
        ("loss", name_scores("loss", 3, 2, 2, math.nan, 1), 4),
        ("loss", name_scores("loss", 3, 2, 2, 1, 2, 1), None),
        ("exact_match", name_scores("exact_match", 0, 0, 0, 5, 5, 4, 6), 6),  # once it is right
        ("bleu", name_scores("bleu", 0.1, 0.05, 0.02, 30, 29, 31, 1, 1, 1), 8),
        # less is better; an error rate alone does not say what translates
        (
            "symbol_error_rate",
            join(
                name_scores("symbol_error_rate", 90, 95, 99, 50, 60, 40, 40, 40, 1),
                name_scores("exact_match", 0, 0, 0, 1, 1, 1, 1, 1, 1),
            ),
            8,
        ),
        ("exact_match", name_scores("exact_match", 5, 5, 5), None),  # the last step is the end
    ],
)
@pytest.mark.parametrize("interrupted", [False, True], ids=["whole", "resumed"])
def test_training_stops_after_validations_without_a_better_score(
    metric: str,
    scores: list[dict[str, float]],
    stopped_at: int | None,
    interrupted: bool,
    tmp_path: Path,
) -> None:
    run = Scripted(tmp_path, scores, best_metric=metric, patience=2)
    if interrupted:
        state, finished = run.train(at_step(2, lambda: os.kill(os.getpid(), signal.SIGINT)))
        assert int(state.step) == 2
    state, finished = run.train()
    assert (int(state.step), finished) == (stopped_at or len(scores), not stopped_at)
    request = read_stop_request(tmp_path)
    assert bool(request) == bool(stopped_at)
    if request:
        assert request.reason.startswith(f"2 validations without a better {metric} than ")
    kept = {each[metric]: step for step, each in reversed([*enumerate(scores, 1)])}
    best = (min if metric in ("loss", "symbol_error_rate") else max)(
        each[metric] for each in scores[: int(state.step)] if not math.isnan(each[metric])
    )
    assert find_best_step(tmp_path) == kept[best]


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 6), (signal.SIGTERM, 1)])
def test_signal_ends_the_step_and_saves(run: Run, number: signal.Signals, step: int) -> None:
    before = signal.getsignal(number)
    state, finished = run.train(at_step(step, lambda: os.kill(os.getpid(), number)))
    assert not finished
    assert signal.getsignal(number) is before
    assert len(run.compiled) == (step > 1)  # validation is not compiled after the signal
    assert int(state.step) == step
    assert list_steps(run.workdir) == ([4, 6] if step == 6 else [1])
    assert run.logged_steps() == list(range(1, step + 1))
    state, finished = run.train()
    assert finished
    assert float(state.params["sum"]) == expected_sum(10)
    assert run.logged_steps() == list(range(1, 11))


def test_sigterms_while_the_last_checkpoint_is_written_have_no_effect(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Checkpoints.finish
    sent: list[int] = []

    def terminate(self: Checkpoints) -> None:
        while len(sent) < 2:
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            sent.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        finish(self)

    monkeypatch.setattr(Checkpoints, "finish", terminate)
    _, finished = run.train(at_step(6, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert not finished
    assert list_steps(run.workdir) == [4, 6]


def test_request_to_stop_is_obeyed_behind_the_next_checkpoint(run: Run) -> None:
    state, finished = run.train(at_step(2, lambda: request_stop(run.workdir, "enough")))
    assert not finished
    assert int(state.step) == 4
    assert list_steps(run.workdir) == [4]


def test_second_signal_is_not_held_up(run: Run) -> None:
    def press_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.train(at_step(6, press_twice))
    assert list_steps(run.workdir) == [4]


def test_state_after_too_many_skipped_steps_is_not_saved(run: Run) -> None:
    def diverge(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
        state, metrics = add(state, batch)
        in_a_row = jnp.maximum(state.step - 6, 0)
        return state, metrics._replace(loss=jnp.asarray(np.nan), skipped_in_a_row=in_a_row)

    with pytest.raises(NonFiniteError, match="step 8"):
        run.train(diverge)
    assert list_steps(run.workdir) == [4]
    assert run.validated == [4]
