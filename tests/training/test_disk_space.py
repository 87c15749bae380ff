"""Space for the checkpoints that a run keeps."""

import shutil
from pathlib import Path

import jax
import pytest

from t2t.config.fields import CheckpointConfig, Config, TrainingConfig
from t2t.training.disk_space import (
    count_bytes_per_parameter,
    count_kept,
    measure_space,
)
from tests.training.toy_run import make_state


def make_config(steps: int = 100_000, **checkpoints: int) -> Config:
    kept = CheckpointConfig(**checkpoints)  # type: ignore[arg-type]
    return Config(training=TrainingConfig(steps=steps), checkpoints=kept)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (make_config(), 5 + 1 + 1),
        (make_config(keep_last=20, keep_best=1), 20 + 1 + 1),
        (make_config(steps=10_000, keep_every=2000), 10),  # all that are written
        (make_config(keep_every=20_000), 5 + 1 + 1 + 5),
        (make_config(keep_every=1500), 5 + 1 + 1 + 33),  # only steps 3000, 6000, ... are written
        (make_config(steps=500), 1),
    ],
    ids=str,
)
def test_checkpoints_on_disk_are_counted(config: Config, expected: int) -> None:
    assert count_kept(config) == expected


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_checkpoint_holds_so_many_bytes_a_parameter(decay: float) -> None:
    config = Config(training=TrainingConfig(ema_decay=decay))
    state = make_state(10, averaged=bool(decay))
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    held = state.params, state.opt_state, state.ema
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(held))
    wanted = count_bytes_per_parameter(config) * count
    assert size == pytest.approx(wanted, abs=16)  # and counters


def test_checkpoints_that_are_there_need_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=11_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    big, parameters = make_config(keep_last=20), 200_000_000
    assert measure_space(tmp_path, big, parameters).missing == 22 * 2_400_000_000 - usage.free
    for step in range(18):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    assert measure_space(tmp_path, big, parameters).missing == 0
