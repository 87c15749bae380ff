"""Trains in a bucket, and compares the run with one in a folder."""

from pathlib import Path
from unittest import mock

import numpy as np

from t2t.api import train_run
from t2t.config.fields import Config
from t2t.storage.atomic_files import upload
from t2t.storage.paths import make_path
from t2t.training.run_directory import list_steps
from tests.bucket_server import die_at
from tests.tiny_training import assert_same_training, change, make_small_mesh

FIELDS = ("train_src", "train_tgt", "validation_src", "validation_tgt", "cache_directory")


def move_data(config: Config, folder: Path, bucket: Path) -> Config:
    """Uploads the text files of `folder`; returns the config with all paths in the bucket."""
    for path in (*folder.glob("*.en"), *folder.glob("*.de")):
        upload(path, bucket / path.name)
    moved = {}
    for field in FIELDS:
        value = getattr(config.data, field)
        place = [str(bucket / Path(path).name) for path in np.atleast_1d(value)]
        moved[field] = tuple(place) if isinstance(value, tuple) else place[0]
    return change(config, data=moved)


def train_on_one_device(config: Config, workdir: str, moment: str = "") -> None:
    if moment:
        die_at(moment)
    with mock.patch.object(train_run, "make_mesh", make_small_mesh):
        train_run.train(config, make_path(workdir))


def assert_same_run(workdir: Path | str, other: Path, steps: int) -> None:
    workdir = make_path(workdir)
    assert_same_training(workdir, other, steps, "train/", "validation/")
    assert list_steps(workdir) == list_steps(other)
