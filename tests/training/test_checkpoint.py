"""Checkpoints: bit for bit, kept by rule, restored onto any mesh and by any name."""

import contextlib
import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from t2t.config.fields import CheckpointConfig, Config, MeshConfig, ModelConfig, TrainingConfig
from t2t.config.files import save_config
from t2t.config.variants import register
from t2t.runtime.mesh import make_mesh
from t2t.training.checkpoint import (
    find_best_step,
    list_scored_measures,
    rank,
    restore_params,
)
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.optimizer import Optimizer, make_optimizer
from t2t.training.run_directory import RunError, list_last_steps, list_steps
from t2t.training.state import abstract_state, init_state
from tests.training.toy_run import (
    CONFIG,
    OPTIMIZER,
    Scores,
    assert_same,
    make_state,
    restore_state,
    write_run,
)


def test_training_restores_groups_of_parameters_without_making_another_state(
    tmp_path: Path,
) -> None:
    """Arrays that are cut, and some that every device has."""
    model = ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2)
    factors = "decoder.*=0.5", "*=2"  # of which none is 1
    own = dataclasses.replace(
        CONFIG.training, ema_decay=0.9, frozen=("encoder.*",), rate_factors=factors
    )
    training = dataclasses.replace(CONFIG, model=model, training=own)
    optimizer = make_optimizer(training)
    save_config(training, tmp_path / "config.json")
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        _, saved = init_state(training, optimizer, 48, 48)
        with contextlib.closing(Checkpoints(tmp_path, training, optimizer)) as checkpoints:
            checkpoints.save(saved._replace(step=saved.step + 7))
        before = len(jax.live_arrays())
        _, described = abstract_state(training, optimizer, 48, 48)
        assert len(jax.live_arrays()) == before
        assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(described))
        with contextlib.closing(Checkpoints(tmp_path, training, optimizer)) as checkpoints:
            restored = checkpoints.restore(described)
    assert_same(restored, saved._replace(step=saved.step + 7))
    for one, other in zip(jax.tree.leaves(restored), jax.tree.leaves(saved), strict=True):
        assert one.sharding.is_equivalent_to(other.sharding, one.ndim)


LOSSES: dict[int, Scores] = {
    step: {"loss": loss, "bleu": loss, "perplexity": 1.0}
    for step, loss in enumerate([5.0, 1.0, 4.0, 9.0, 3.0, 2.0], start=1)
}


# 2 and 3 are equal.
TIES: dict[int, Scores] = {step: {"loss": 1.0 if step in (2, 3) else 2.0} for step in range(1, 6)}
UNUSABLE: dict[int, Scores] = {
    1: {"loss": 7.0}, 2: {}, 3: None, 4: {"loss": math.nan}, 5: {"perplexity": 1.0}
}  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "fields", "kept", "best"),
    [
        (LOSSES, {"keep_last": 2, "keep_best": 0}, [5, 6], 6),
        (LOSSES, {"keep_last": 1, "keep_every": 3, "keep_best": 0}, [3, 6], 6),
        (LOSSES, {"keep_last": 1, "keep_best": 2, "best_metric": "bleu"}, [1, 4, 6], 4),
        (LOSSES, {"keep_last": 1, "keep_best": 2, "best_metric": "perplexity"}, [1, 2, 6], 1),
        (TIES, {"keep_last": 1, "keep_best": 1}, [2, 5], 2),
        (UNUSABLE, {"keep_last": 2, "keep_best": 1}, [1, 4, 5], 1),
    ],
    ids=str,
)
def test_checkpoints_are_kept_by_rule_and_the_first_of_equal_ones_is_the_best(
    tmp_path: Path, scores: dict[int, Scores], fields: dict[str, Any], kept: list[int], best: int
) -> None:
    workdir = write_run(tmp_path / "run", scores, CheckpointConfig(every=1, **fields))
    assert list_steps(workdir) == kept
    assert find_best_step(workdir) == best


def test_scores_that_are_no_numbers_come_last() -> None:
    assert rank({2: math.nan, 3: 1.0, 4: 1.0, 5: math.nan}, higher_is_better=True) == [3, 4, 2, 5]


def test_best_checkpoint_survives_a_restart(copy: Path) -> None:
    config = CheckpointConfig(every=10, keep_last=1, keep_best=1)
    write_run(copy, {40: {"loss": 2.0}, 50: None}, config)
    assert list_steps(copy) == [20, 50]
    write_run(copy, {60: {"loss": 0.5}, 70: {"loss": 4.0}}, config)
    assert list_steps(copy) == [60, 70]
    assert find_best_step(copy) == 60


def test_average_is_the_mean(whole: Path) -> None:
    params, label = restore_params(whole, "avg:2")
    assert label == "avg2-30"
    states = [make_state(step).params for step in (20, 30)]
    expected = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0, dtype=np.float64), *states)
    for mean, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mean, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("40", "no checkpoint of step 40; it has 10, 20, 30"),
        (
            "avg:4",
            "has 3 checkpoints in a row at the regular interval, too few for an average of 4",
        ),
        ("avg:0", "'avg:0' is unknown; use last, best, STEP, avg:COUNT, ema or ema:STEP"),
        ("ema", "checkpoint 30 of .* no moving .*ema_decay=0, or --save_params .*; use last"),
        ("ema:40", "no checkpoint of step 40; it has 10, 20, 30"),
    ],
)
def test_checkpoint_that_is_not_there_is_an_error(whole: Path, which: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        restore_params(whole, which)


def test_moving_average_is_restored_by_name(tmp_path: Path) -> None:
    save_config(CONFIG, tmp_path / "config.json")
    with contextlib.closing(Checkpoints(tmp_path, CONFIG, OPTIMIZER)) as checkpoints:
        for step in (10, 20):
            checkpoints.save(make_state(step, averaged=True))
    for which, step in (("ema", 20), ("ema:10", 10)):
        params, label = restore_params(tmp_path, which)
        assert label == f"ema-{step}"
        assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(params))
        assert_same(params, make_state(step, averaged=True).ema)


def test_best_needs_a_score(tmp_path: Path) -> None:
    workdir = write_run(tmp_path / "run", {1: None})
    with pytest.raises(RunError, match="no checkpoint with a validation loss; use last"):
        restore_params(workdir, "best")


@pytest.mark.parametrize("text", ["{", "[1]", '{"loss": "low"}'])
def test_damaged_scores_are_an_error_that_names_the_checkpoint(copy: Path, text: str) -> None:
    (copy / "checkpoints" / "20" / "metrics" / "metrics").write_text(text)
    for read in (list_scored_measures, find_best_step, restore_state):
        with pytest.raises(RunError, match=r"20 of .* cannot be read .* the one before it, 10"):
            read(copy)


def test_checkpoint_that_loses_a_file_is_read_as_it_was_or_not_at_all(copy: Path) -> None:
    """While training removes it, that is; what were missing must not count as zero."""
    expected, _ = restore_params(copy, "30")
    refused = 0
    for path in [*(copy / "checkpoints" / "30" / "params").rglob("*")]:
        if path.is_file():
            content = path.read_bytes()
            path.unlink()
            try:
                params, _ = restore_params(copy, "30")
            except RunError:
                refused += 1
            else:
                assert_same(params, expected)
            path.write_bytes(content)
    assert refused


def test_average_is_of_regular_checkpoints_without_a_gap(tmp_path: Path) -> None:
    for step in (20, 70, 75, 80, 90, 93, 97):  # their names alone count
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    for last, count, until, wanted in (
        (1000, 2, None, [80, 90]),  # 75, 93 and 97 are of interruptions
        (1000, 5, None, [70, 80, 90]),
        (1000, 2, 75, [70]),
        (1000, 2, 10, []),
        (97, 3, None, [80, 90, 97]),  # the end of training is regular
    ):
        config = Config(training=TrainingConfig(steps=last), checkpoints=CheckpointConfig(every=10))
        assert list_last_steps(tmp_path, count, until, config) == wanted


def test_interruptions_push_no_regular_checkpoint_out(tmp_path: Path) -> None:
    config = CheckpointConfig(every=10, keep_last=3)
    steady = write_run(tmp_path / "steady", dict.fromkeys((10, 20, 30, 40)), config)
    steps = (10, 13, 17, 20, 22, 30, 36, 40)
    interrupted = write_run(tmp_path / "interrupted", dict.fromkeys(steps), config)
    assert list_steps(steady) == list_steps(interrupted) == [20, 30, 40]
    write_run(interrupted, {44: None}, config)
    assert list_steps(interrupted) == [20, 30, 40, 44]  # what training goes on from, too
    averages = [restore_params(run, "avg:3") for run in (steady, interrupted)]
    assert averages[0][1] == averages[1][1] == "avg3-40"
    assert_same(*(jax.tree.map(np.asarray, params) for params, _ in averages))


def test_checkpoint_removed_while_it_is_read_is_not_called_damaged(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(folder: Path) -> None:
        shutil.rmtree(folder.parent)
        raise FileNotFoundError(folder)

    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "metadata", lambda self, path: remove(path))
    with pytest.raises(RunError, match=r"20 of .* was removed while it was read"):
        restore_params(copy, "20")
    monkeypatch.undo()
    (copy / "checkpoints" / "30" / "params" / "_METADATA").write_text("{")
    with pytest.raises(RunError, match=r"30 of .* cannot be read .* the one before it, 10"):
        restore_params(copy, "30")


def test_parameters_for_evaluation_are_restored_by_name_and_training_has_its_own(
    tmp_path: Path,
) -> None:
    own = dataclasses.replace(
        CONFIG.training, optimizer="schedule_free_adamw", schedule="constant", warmup_steps=1
    )
    config = dataclasses.replace(CONFIG, training=own)
    save_config(config, tmp_path / "config.json")
    optimizer, states, evaluated = make_optimizer(config), [], []
    assert optimizer.evaluation_params
    state = make_state(0)
    state = state._replace(opt_state=optimizer.init(state.params))
    with contextlib.closing(Checkpoints(tmp_path, config, optimizer)) as checkpoints:
        for step in (10, 20):
            for _ in range(3):
                updates, opt_state = optimizer.update(state.params, state.opt_state, state.params)
                params = jax.tree.map(jnp.add, state.params, updates)
                state = state._replace(params=params, opt_state=opt_state)
            state = state._replace(step=jnp.asarray(step))
            checkpoints.save(state, {"loss": 1.0 * step})
            states.append(state)
            evaluated.append(optimizer.evaluation_params(state.opt_state, state.params))
    for which, index, label in (("last", 1, "20"), ("best", 0, "best-10")):
        params, found = restore_params(tmp_path, which)
        assert found == label
        assert_same(params, evaluated[index])
        assert np.abs(params["table"] - states[index].params["table"]).max() > 1e-3
    with contextlib.closing(Checkpoints(tmp_path, config, optimizer)) as checkpoints:
        assert_same(checkpoints.restore(states[0]), states[1])


@pytest.mark.parametrize("hooks", [(False, True), (True, False)], ids=["gained", "lost"])
def test_run_continues_when_a_plugin_changes_its_evaluation_parameters(
    tmp_path: Path, hooks: tuple[bool, bool]
) -> None:
    has_hook = True

    @register("training.optimizer", "evaluated_at_half")
    def make(*_: Any) -> Optimizer:
        halve = lambda state, params: jax.tree.map(lambda x: x / 2, params)  # noqa: E731
        sgd = optax.sgd(0.1)
        return Optimizer(sgd.init, sgd.update, halve if has_hook else None)

    training = dataclasses.replace(CONFIG.training, optimizer="evaluated_at_half", clip_norm=0.0)
    config = dataclasses.replace(CONFIG, training=training)
    state = make_state(10)._replace(opt_state=optax.sgd(0.1).init({}))
    save_config(CONFIG, tmp_path / "config.json")
    for has_hook, saved_before in zip(hooks, (False, True), strict=True):
        optimizer = make_optimizer(config)
        with contextlib.closing(Checkpoints(tmp_path, config, optimizer)) as checkpoints:
            if saved_before:
                assert_same(checkpoints.restore(state), state)
            checkpoints.save(state._replace(step=state.step + 10 * saved_before))
        params, _ = restore_params(tmp_path, "last")
        np.testing.assert_array_equal(params["table"] * (1 + has_hook), state.params["table"])
