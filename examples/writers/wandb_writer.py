"""Metrics in Weights & Biases; WANDB_MODE=offline needs no account.

python -m t2t.train ... --plugins=examples.writers.wandb_writer --writers=wandb
"""

import secrets
from collections.abc import Mapping
from pathlib import Path

import wandb

from t2t.config import Config
from t2t.config.fields import flatten
from t2t.config.variants import register


@register("training.writer", "wandb")
class WandbWriter:
    """A run of the project t2t; training that continues goes on with the same one."""

    def __init__(self, config: Config, workdir: Path):
        known = workdir / "wandb_id.txt"
        if not known.exists():
            known.write_text(secrets.token_hex(4))
        name, run_id = workdir.name, known.read_text()
        self._run = wandb.init(
            project="t2t", name=name, id=run_id, resume="allow", config=flatten(config)
        )
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """A row for each call, since W&B would hold back what is logged with `step=`."""
        self._run.log({"step": step, **figures})

    def close(self) -> None:
        """Waits until W&B has everything."""
        self._run.finish()
