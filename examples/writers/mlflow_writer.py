"""Metrics in MLflow, on the server or in the folder that MLFLOW_TRACKING_URI names.

python -m t2t.train ... --plugins=examples.writers.mlflow_writer --writers=mlflow
"""

from collections.abc import Mapping
from pathlib import Path

import mlflow

from t2t.config import Config
from t2t.config.fields import flatten
from t2t.config.variants import register


@register("training.writer", "mlflow")
class MlflowWriter:
    """A run of MLflow; training that continues goes on with the same one."""

    def __init__(self, config: Config, workdir: Path):
        known = workdir / "mlflow_id.txt"
        if known.exists():
            mlflow.start_run(run_id=known.read_text())
        else:
            run = mlflow.start_run(run_name=workdir.name)
            known.write_text(run.info.run_id)
            mlflow.log_params(flatten(config))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """A point for each figure."""
        mlflow.log_metrics(dict(figures), step=step)

    def close(self) -> None:
        """Marks the run as ended."""
        mlflow.end_run()
