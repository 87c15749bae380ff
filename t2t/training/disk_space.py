"""Space on the disk for the checkpoints that a config keeps."""

import logging
import math
import shutil
from pathlib import Path
from typing import NamedTuple

from t2t.config.fields import Config
from t2t.runtime.distributed import is_first
from t2t.training.run_directory import list_steps

_log = logging.getLogger(__name__)

BYTES_PER_PARAMETER = 12  # the parameter and both of Adam's moments, in float32


class DiskSpace(NamedTuple):
    """Free space in a run directory, and what the run's checkpoints take."""

    free: int  # bytes
    number: int  # checkpoints that are there at once, at most
    size: int  # bytes of each
    existing: int  # of them are there already

    @property
    def missing(self) -> int:
        """Bytes that have to be freed; 0 where all checkpoints fit."""
        return max(0, max(0, self.number - self.existing) * self.size - self.free)

    def describe(self) -> str:
        """The checkpoints in words."""
        total = self.number * self.size / 1e9
        return f"{self.number} checkpoints of {self.size / 1e9:.2f} GB, {total:.1f} GB"


def measure_space(workdir: Path, config: Config, num_parameters: int) -> DiskSpace:
    """Compares the disk of an existing run directory with what `config` keeps there."""
    size = BYTES_PER_PARAMETER * num_parameters
    free = shutil.disk_usage(workdir).free
    return DiskSpace(free, count_kept(config), size, len(list_steps(workdir)))


def warn_of_missing_space(workdir: Path, config: Config, num_parameters: int) -> None:
    """Says at the start of training that the disk will be full before its end."""
    space = measure_space(workdir, config, num_parameters)
    if space.missing and is_first():
        _log.warning(
            "%s has %.1f GB free, %.1f GB too few for the checkpoints that the config keeps (%s): "
            "training stops when the disk is full; free some space, or lower checkpoints.keep_last",
            workdir, space.free / 1e9, space.missing / 1e9, space.describe(),
        )  # fmt: skip


def count_kept(config: Config) -> int:
    """The most checkpoints that are on disk at once, the one being written included."""
    checkpoints, steps = config.checkpoints, config.training.steps
    kept = checkpoints.keep_last + checkpoints.keep_best
    if checkpoints.keep_every:
        kept += steps // math.lcm(checkpoints.every, checkpoints.keep_every)
    return min(kept + 1, math.ceil(steps / checkpoints.every))
