"""What breaks in a run directory is said, and what was whole stays so; whose run it is."""

import contextlib
import functools
import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from t2t.config import variants
from t2t.config.fields import CheckpointConfig, Config, ModelConfig, TrainingConfig
from t2t.config.files import save_config
from t2t.config.variants import register
from t2t.storage.atomic_files import list_files
from t2t.training.checkpoint import restore_params
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.disk_space import (
    estimate_checkpoint,
    find_missing_space,
)
from t2t.training.optimizer import make_optimizer
from t2t.training.resume import keep_source, open_run
from t2t.training.run_directory import RunError, list_steps, lock_run
from t2t.training.state import init_state
from t2t.training.stop_request import StopRequest, read_stop_request, record_stop, request_stop
from tests import tiny_training
from tests.full_disk import full_disk
from tests.training.toy_run import (
    CONFIG,
    OPTIMIZER,
    assert_same,
    make_state,
    restore_state,
    write_run,
)

change = functools.partial(tiny_training.change, CONFIG)

# Where its files break, Orbax leaves unfinished work behind, which complains when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module", autouse=True)
def _collect() -> Iterator[None]:
    """No complaint is left for the tests of other modules."""
    yield
    gc.collect()


@pytest.mark.parametrize(
    "names",
    [{"manifest.ocdbt", "metrics"}, pytest.param(None, marks=pytest.mark.slow)],
    ids=["a few", "all"],
)
def test_each_file_cut_short_is_noticed_or_does_no_harm(copy: Path, names: set[str] | None) -> None:
    folder = copy / "checkpoints" / "30"
    noticed = {}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for file in [path for path in files if names is None or path.name in names]:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        try:
            assert_same(restore_state(copy), make_state(30))
        except RunError as error:
            noticed[file.relative_to(folder).parts[0]] = str(error)
        file.write_bytes(content)
    assert set(noticed) == {"params", "training", "metrics"}
    for message in noticed.values():
        assert message.startswith(f"checkpoint 30 of {copy} cannot be read (")
        assert message.endswith(f"move {folder} elsewhere to go on with the one before it, 20")


def test_damage_of_the_only_checkpoint_is_an_error(tmp_path: Path) -> None:
    workdir = write_run(tmp_path / "run", {5: None})
    shutil.rmtree(workdir / "checkpoints" / "5" / "params")
    with pytest.raises(RunError, match=r"checkpoint 5 .* there is none before it"):
        restore_params(workdir, "last")


def test_half_written_checkpoint_is_ignored_and_removed(copy: Path) -> None:
    half = copy / "checkpoints" / "40.orbax-checkpoint-tmp"
    shutil.copytree(copy / "checkpoints" / "30", half)
    shutil.rmtree(half / "training")
    assert restore_params(copy, "last")[1] == "30"
    assert int(restore_state(copy).step) == 30
    assert not half.exists()


@pytest.mark.parametrize("notices", ["save", "close"])
def test_full_disk_is_an_error_that_leaves_the_last_checkpoint(copy: Path, notices: str) -> None:
    checkpoints = Checkpoints(copy, CONFIG, OPTIMIZER)
    with full_disk():
        checkpoints.save(make_state(40))
        with pytest.raises(RunError, match=r"written .* space .* continues from checkpoint 30"):
            checkpoints.close() if notices == "close" else checkpoints.save(make_state(50))
    if notices == "save":
        checkpoints.close()
    assert_same(restore_state(copy), make_state(30))
    write_run(copy, {40: None})
    assert_same(restore_state(copy), make_state(40))


def test_space_is_checked_before_anything_is_written(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(copy)._replace(free=1000)
    with contextlib.closing(Checkpoints(copy, CONFIG, OPTIMIZER)) as checkpoints:
        checkpoints.save(make_state(40))
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path: usage)
            with pytest.raises(RunError, match=r"MB are needed, .* continues from checkpoint 40"):
                checkpoints.save(make_state(50))
        checkpoints.save(make_state(60))
    assert list_steps(copy) == [10, 20, 30, 40, 60]


def test_source_of_fine_tuning_is_kept_and_no_other_is_taken(copy: Path) -> None:
    config = change(training={"init_from": "old:best"})
    save_config(config, copy / "config.json")
    assert keep_source(copy, CONFIG) == config
    other = change(training={"init_from": "other"})
    assert keep_source(copy, other) is other  # which is refused
    assert keep_source(copy / "new", CONFIG) is CONFIG


def test_refused_config_names_each_change_and_is_not_saved(copy: Path) -> None:
    content = (copy / "config.json").read_bytes()
    message = (
        rf"{copy} was written with another config:\n  model\.d_model: 512 -> 256\n"
        r"  data\.batch_tokens: 25000 -> 30000\nchoose another --workdir"
    )
    free = {"training": {"steps": 7, "log_every": 3}, "mesh": {"fsdp": 2}}
    with pytest.raises(RunError, match=message):
        open_run(copy, change(model={"d_model": 256}, data={"batch_tokens": 30_000}, **free))
    assert (copy / "config.json").read_bytes() == content
    open_run(copy, change(**free))
    assert (copy / "config.json").read_bytes() != content


def test_run_without_checkpoints_takes_another_config_without_its_vocabulary(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    other = change(data={"batch_tokens": 30_000}, tokenizer={"vocab_size": 90})
    (copy / "vocab").mkdir(exist_ok=True)
    with pytest.raises(RunError, match=f"\nremove {copy}/vocab, which was made for the old values"):
        open_run(copy, other)
    shutil.rmtree(copy / "vocab")
    open_run(copy, other)


def test_run_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    workdir = tmp_path / "file" / "run"
    message = "file/run cannot be written"
    with pytest.raises(RunError, match=message):
        open_run(workdir, CONFIG)
    with pytest.raises(RunError, match=message), lock_run(workdir):
        pass


def test_checkpoints_without_their_config_are_not_continued(copy: Path) -> None:
    (copy / "config.json").unlink()
    with pytest.raises(RunError, match=r"config\.json is missing, without which checkpoint 30"):
        open_run(copy, CONFIG)


def make_config(steps: int = 100_000, **checkpoints: int) -> Config:
    kept = CheckpointConfig(**checkpoints)  # type: ignore[arg-type]
    return Config(training=TrainingConfig(steps=steps), checkpoints=kept)


@pytest.mark.parametrize(
    ("config", "there", "count"),
    [
        (make_config(), 0, 5 + 1 + 1),
        (make_config(keep_last=20), 18, 22 - 18),
        (make_config(keep_last=20), 30, 0),
        (make_config(steps=10_000, keep_every=2000), 0, 10),  # all that are written
        (make_config(keep_every=1500), 0, 5 + 1 + 1 + 33),  # steps 3000, 6000, ... are written
        (make_config(steps=500), 0, 1),
    ],
    ids=str,
)
def test_space_is_missing_for_checkpoints_that_are_not_there(
    config: Config, there: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    for step in range(there):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    missing = find_missing_space(tmp_path, config, 12 * 10**6)
    assert missing == (count * 12 * 10**6 - 1000 if count else 0)


@pytest.mark.parametrize(
    ("training", "bytes_per_parameter"),
    [
        ({}, 12),
        ({"ema_decay": 0.9}, 16),
        ({"optimizer": "muon"}, 8),  # and little for what is no matrix
        ({"optimizer": "schedule_free_adamw", "schedule": "constant"}, 16),
        ({"optimizer": "momentum"}, 8),
        ({"frozen": ("encoder.*", "decoder.*")}, 5),  # and 12 of the embedding
    ],
    ids=str,
)
def test_bytes_of_a_checkpoint_are_known_before_there_is_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    training: dict[str, Any],
    bytes_per_parameter: int,
) -> None:
    monkeypatch.setattr(variants, "_registered", {})
    register("training.optimizer", "momentum")(lambda *_: optax.sgd(0.1, momentum=0.9))
    model = ModelConfig(num_layers=1, d_model=64, d_ff=512, num_heads=2)
    config = Config(model=model, training=TrainingConfig(**training))
    config.tokenizer.vocab_size = 400
    estimated = estimate_checkpoint(config)
    optimizer = make_optimizer(config)
    _, state = init_state(config, optimizer, 400, 400)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert estimated / count == pytest.approx(bytes_per_parameter, rel=0.1)
    noise = np.random.default_rng(0)  # which no file packs
    filled = jax.tree.map(
        lambda x: np.frombuffer(noise.bytes(x.nbytes), x.dtype).reshape(x.shape), state
    )
    checkpoints = Checkpoints(tmp_path, config, optimizer)
    checkpoints.save(filled._replace(step=np.int32(1)))
    checkpoints.close()
    written = sum(path.stat().st_size for path in list_files(tmp_path / "checkpoints"))
    assert written == pytest.approx(estimated, rel=0.1)


def test_empty_file_is_a_request(tmp_path: Path) -> None:
    (tmp_path / "stop.json").touch()
    request_stop(tmp_path, "later")  # the first one counts
    record_stop(tmp_path, 30)
    assert read_stop_request(tmp_path) == StopRequest("no reason given", obeyed_at=30)


def test_file_that_is_no_request_is_named(tmp_path: Path) -> None:
    (tmp_path / "stop.json").write_text("now")
    with pytest.raises(RunError, match=r"stop\.json cannot be read .*; remove it to continue"):
        read_stop_request(tmp_path)
