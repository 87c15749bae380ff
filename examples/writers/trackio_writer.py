"""Metrics in trackio, a local dashboard: trackio show --project t2t.

python -m t2t.train ... --plugins=examples.writers.trackio_writer --writers=trackio
"""

import secrets
from collections.abc import Mapping
from pathlib import Path

import trackio

from t2t.config import Config
from t2t.config.fields import flatten
from t2t.config.variants import register


@register("training.writer", "trackio")
class TrackioWriter:
    """A run of the project t2t; training that continues goes on with the same one."""

    def __init__(self, config: Config, workdir: Path):
        known = workdir / "trackio_name.txt"
        if not known.exists():
            known.write_text(f"{workdir.name}-{secrets.token_hex(3)}")
        name = known.read_text()
        self._run = trackio.init("t2t", name, config=flatten(config), resume="allow", embed=False)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """A row for each call."""
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """Waits until trackio has everything."""
        self._run.finish()
