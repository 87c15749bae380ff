"""Reports training metrics: the progress bar, and figures for writers (`metric_writers.py`).

Only the first process writes. Files in a bucket are written every minute and before each
checkpoint. All processes count non-finite steps, and stop after too many.
"""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import tqdm

from t2t.config.fields import TrainingConfig
from t2t.runtime.distributed import is_first
from t2t.training.metric_writers import MetricLog, MetricWriter
from t2t.training.step import Metrics

_log = logging.getLogger(__name__)


class NonFiniteError(RuntimeError):
    """Too many steps in a row had a loss or gradient that was NaN or infinite."""


class Report:
    """Accumulates the metrics of steps, and reports them every `training.log_every` steps.

    The metrics of a step are read after the next step is dispatched, so that the device need not
    wait for the host. Only the first step, and the last one before a validation or a checkpoint,
    are read at once.
    """

    def __init__(
        self,
        workdir: Path,
        training: TrainingConfig,
        start_step: int,
        writers: Mapping[str, MetricWriter] | None = None,
    ):
        """Opens the files; arguments and errors as of `MetricLog`."""
        self._metric_log = MetricLog(workdir, start_step, writers or {}) if is_first() else None
        self._bar = tqdm.tqdm(
            total=training.steps,
            initial=start_step,
            unit="step",
            disable=None if is_first() else True,
            dynamic_ncols=True,
        )
        self._training = training
        self._pending: tuple[int, Metrics] | None = None
        self._compile_seconds: float | None = None  # until the next line of figures has them
        self._restart_interval()
        self._opened = self._last_read = time.perf_counter()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time in this context as waiting for data, if the device is idle at its end.

        If the previous step is still running when the data arrive, nothing is counted. Otherwise
        the count is an upper bound, since that step may have ended at any time in the context.
        """
        started = time.perf_counter()
        yield
        # JAX's type stub lacks `is_ready`.
        if not self._pending or self._pending[-1].loss.is_ready():  # type: ignore[attr-defined]
            self._waited += time.perf_counter() - started

    def add(self, step: int, metrics: Metrics) -> None:
        """Adds a step's metrics, which the device may still be computing."""
        pending, self._pending = self._pending, (step, metrics)
        if pending:
            self._read(*pending)

    def flush(self) -> None:
        """Waits for the metrics of the last step, and writes what a bucket lacks.

        So a run that continues from a checkpoint finds the metrics of the steps before it. The sums
        since the last multiple of `log_every` are lost if training stops here.
        """
        if self._pending:
            self._read(*self._pending)
            self._pending = None
        if self._metric_log:
            self._metric_log.flush()

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Logs validation scores, and writes them under names with the prefix "validation/"."""
        if scores:
            described = (f"{name} {value:.4g}" for name, value in scores.items())
            _log.info("step %d: validation %s", step, ", ".join(described))
            if self._metric_log:
                named = {f"validation/{name}": value for name, value in scores.items()}
                self._metric_log.write(step, named)

    def note_compiled(self) -> None:
        """Notes that all programs are compiled; the next figures have the seconds until now."""
        self._compile_seconds = time.perf_counter() - self._opened

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Flushes; leaves the time in this context, a validation, out of tokens per second."""
        self.flush()
        yield
        self._last_read = time.perf_counter()

    def close(self) -> None:
        """Closes the progress bar and the writers."""
        self._bar.close()
        if self._metric_log:
            self._metric_log.close()

    def _read(self, step: int, metrics: Metrics) -> None:
        loss, predicted = float(metrics.loss), float(metrics.predicted)
        in_a_row, most = int(metrics.skipped_in_a_row), self._training.max_nonfinite_steps
        if predicted == 0 and math.isfinite(loss):
            _log.warning("step %d skipped: its batch has no token to predict", step)
        elif in_a_row == 0:
            self._loss += loss * predicted
            self._loss_tokens += predicted
            for name, counts in metrics.auxiliary.items():
                self._counts[name] = self._counts.get(name, 0) + np.asarray(counts, float)
        else:
            _log.warning("step %d skipped: loss or gradient is not finite", step)
            if in_a_row >= most:
                raise NonFiniteError(
                    f"step {step}: loss or gradient was not finite {most} times in a row "
                    "(training.max_nonfinite_steps); start again in another --workdir with a lower "
                    "training.learning_rate, a longer training.warmup_steps, or training.clip_norm"
                )
        self._steps += 1
        self._tokens += int(metrics.tokens)
        self._padding += int(metrics.padding)
        now = time.perf_counter()
        self._seconds += now - self._last_read
        self._last_read = now
        self._bar.update()
        if step % self._training.log_every == 0 or step == self._training.steps:
            self._show(step, metrics)

    def _show(self, step: int, metrics: Metrics) -> None:
        loss = self._loss / self._loss_tokens if self._loss_tokens else math.nan
        scalars = {
            "train/loss": loss,
            "train/learning_rate": float(metrics.learning_rate),
            "train/gradient_norm": float(metrics.gradient_norm),
            "train/tokens_per_second": self._tokens / self._seconds,
            "train/padding_share": self._padding / (self._tokens + self._padding),
            "train/data_wait_share": self._waited / self._seconds,
            "train/skipped": int(metrics.skipped),
        }
        if self._compile_seconds is not None:
            scalars["train/compile_seconds"] = self._compile_seconds
            self._compile_seconds = None
        text = f"loss {loss:.3f}"
        for name, counts in self._counts.items():
            if counts.ndim:
                shares = enumerate(counts / counts.sum())
                scalars |= {f"train/{name}/{index}": float(share) for index, share in shares}
            else:  # a figure of the loss
                scalars[f"train/{name}"] = float(counts) / self._loss_tokens
                text += f", {name} {scalars[f'train/{name}']:.3f}"
        if self._metric_log:
            self._metric_log.write(step, scalars)
        speed = f"{scalars['train/tokens_per_second']:.0f} tokens/s"
        rate = f"rate {scalars['train/learning_rate']:.2e}"
        self._bar.set_postfix_str(
            f"train {text}, {rate}, {speed}, padding {scalars['train/padding_share']:.0%}"
        )
        if self._bar.disable:
            seconds = self._seconds / self._steps
            left = timedelta(seconds=round(seconds * (self._training.steps - step)))
            _log.info(
                "step %d/%d: %s, %s, gradient norm %.2g, %s, %.3g s/step, %s left",
                step, self._training.steps, text, rate, scalars["train/gradient_norm"], speed,
                seconds, left,
            )  # fmt: skip
        self._restart_interval()

    def _restart_interval(self) -> None:
        self._loss = self._loss_tokens = self._tokens = self._padding = 0.0
        self._seconds = self._waited = 0.0
        self._steps = 0
        self._counts: dict[str, Any] = {}
