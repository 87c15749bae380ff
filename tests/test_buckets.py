"""Runs in a bucket: gcsfs, TensorStore and Orbax talk to a server on this machine.

A run there is killed, continued, and compared bit for bit with an uninterrupted one in a folder.
"""

import multiprocessing
import signal
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from t2t import train
from t2t.config.fields import Config
from t2t.storage.atomic_files import upload
from t2t.storage.paths import make_path
from t2t.training.run_directory import list_steps
from tests.bucket_server import die_at
from tests.tiny_training import (
    STEPS,
    change,
    make_config,
    make_small_mesh,
    read_figures,
    read_state,
)

ROOT = Path(__file__).parents[1]
FIELDS = ("train_src", "train_tgt", "validation_src", "validation_tgt", "cache_directory")

# In the order in which they occur in a run: requests at whose arrival the run is killed.
KILLS = [
    r'"name": "\S*run/config\.json"',
    r'"name": "\S*run/vocab/joint\.model"',
    r'"name": "\S*cache/\w+/tgt\.ids"',  # some files of a token cache are there
    r'"name": "\S*cache/\w+/cache\.json"',  # all files but the last
    r"run/checkpoints/10/params/\S*manifest",  # being written
    r'"name": "\S*run/checkpoints/15/commit_success\.txt"',  # written, not yet complete
    r"DELETE \S*run/checkpoints/10/",  # being removed for a newer one
    r'"name": "\S*run/metrics\.jsonl"',
]


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
    with mock.patch.object(train, "make_mesh", make_small_mesh):
        train.main(config, make_path(workdir))


def assert_same_run(workdir: Path, other: Path, steps: int) -> None:
    for one, two in zip(read_state(workdir, steps), read_state(other, steps), strict=True):
        np.testing.assert_array_equal(one, two)
    for prefix in ("train/", "validation/"):
        assert read_figures(workdir, prefix) == read_figures(other, prefix)
    assert list_steps(workdir) == list_steps(other)


def test_run_in_a_bucket_is_continued_and_equals_one_in_a_folder(
    bucket: Path, tmp_path: Path
) -> None:
    config = change(make_config(tmp_path), training={"steps": 10})
    moved = move_data(config, tmp_path, bucket)
    train_on_one_device(change(moved, training={"steps": 5}), str(bucket / "run"))
    train_on_one_device(moved, str(bucket / "run"))
    train_on_one_device(config, str(tmp_path / "run"))
    assert_same_run(bucket / "run", tmp_path / "run", 10)
    assert {path.name for path in (bucket / "run").iterdir()} == {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert not [*tmp_path.glob("gs:*")]


@pytest.mark.slow
def test_run_killed_at_bad_moments_is_the_same_bit_for_bit(bucket: Path, tmp_path: Path) -> None:
    """Kills each start at the next moment of the list, and lets the last one finish."""
    config = make_config(tmp_path)
    moved = move_data(config, tmp_path, bucket)
    train_on_one_device(config, str(tmp_path / "run"))
    context = multiprocessing.get_context("spawn")
    newest = 0
    for moment in KILLS:
        process = context.Process(
            target=train_on_one_device, args=(moved, str(bucket / "run"), moment)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, moment
        before, newest = newest, max(list_steps(bucket / "run"), default=0)
        assert newest >= before, moment
    assert newest < STEPS
    train_on_one_device(moved, str(bucket / "run"))
    assert_same_run(bucket / "run", tmp_path / "run", STEPS)
