"""A step of training: weights, parts, skipping, clipping, rate, and the same on any mesh."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from t2t.config.fields import (
    Config,
    DataConfig,
    MeshConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, Batch, DeviceBatch, HostBatch
from t2t.data.loader import put_batch
from t2t.model.interface import Model
from t2t.model.parameters import merge
from t2t.planning.compile_step import compile_step
from t2t.planning.hlo_traffic import measure_cost
from t2t.runtime.mesh import make_mesh
from t2t.training.optimizer import make_optimizer
from t2t.training.state import TrainState, init_state
from t2t.training.step import TrainStep, make_eval_step, make_train_step
from tests import tiny_training
from tests.training.toy_run import assert_same

VOCAB_SIZE, ROWS, LENGTH = 24, 16, 7
CONFIG = Config(
    model=ModelConfig(
        num_layers=1, d_model=16, d_ff=32, num_heads=2, dropout=0.0, tie_embeddings="none"
    ),
    data=DataConfig(rows_multiple=ROWS),
    training=TrainingConfig(warmup_steps=20, learning_rate=0.5),
)


class Trainer(NamedTuple):
    """The parts of a run. A step consumes its state: `fresh` is a new copy each time."""

    structure: nnx.GraphDef[Model]
    first: TrainState
    step: TrainStep

    @property
    def fresh(self) -> TrainState:
        copy: TrainState = jax.tree.map(jnp.copy, self.first)
        return copy


change = functools.partial(tiny_training.change, CONFIG)


def make_trainer(config: Config = CONFIG) -> Trainer:
    optimizer = make_optimizer(config)
    structure, state = init_state(config, optimizer, VOCAB_SIZE, VOCAB_SIZE)
    return Trainer(structure, state, make_train_step(structure, config, optimizer))


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return make_trainer()


AVERAGING = change(training={"ema_decay": 0.3})


@pytest.fixture(scope="module")
def averaging() -> Trainer:
    """The same with a moving average."""
    return make_trainer(AVERAGING)


def make_batch(seed: int = 0, rows: int = ROWS) -> HostBatch:
    """Copy the source: 1 to LENGTH - 1 tokens, so rows and parts have different weights."""
    random = np.random.default_rng(seed)
    tokens = np.full((rows, LENGTH), PAD_ID, np.int32)
    for row in tokens:
        length = random.integers(1, LENGTH)
        row[:length], row[length] = random.integers(4, VOCAB_SIZE, length), EOS_ID
    tgt_in = np.roll(tokens, 1, axis=1)
    tgt_in[:, 0] = BOS_ID
    tgt_in[tokens == PAD_ID] = PAD_ID
    return Batch(tokens, tgt_in, tokens, (tokens != PAD_ID).astype(np.float32))


def on_device(batch: HostBatch) -> DeviceBatch:
    return jax.tree.map(jnp.asarray, batch)


def spoil(batch: HostBatch) -> HostBatch:
    """One weight that is not a number."""
    weights = batch.weights.copy()
    weights[0, 0] = np.nan
    return batch._replace(weights=weights)


def moment(state: TrainState) -> Any:
    """Adam's first moment; after one step (1 - b1) times the gradient."""
    return optax.tree.get(state.opt_state, "mu")


def assert_close(one: Any, other: Any, rtol: float, atol: float = 0) -> None:
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(left, right, rtol, atol)


@pytest.mark.slow
def test_frozen_parameters_take_no_part_in_a_step(trainer: Trainer) -> None:
    names = {"encoder", "src_embedding"}
    frozen = make_trainer(change(training={"frozen": tuple(f"{name}.*" for name in names)}))
    batch = on_device(make_batch())
    whole, _ = trainer.step(trainer.fresh, batch)
    state, metrics = frozen.step(frozen.fresh, batch)
    trained = {name: tree for name, tree in moment(whole).items() if name not in names}
    assert_close(moment(state), trained, rtol=1e-5, atol=1e-7)
    norm = optax.tree.norm(trained) / (1 - CONFIG.training.adam_b1)
    np.testing.assert_allclose(metrics.gradient_norm, norm, rtol=1e-5)


def test_validation_gives_each_sentence_its_plain_log_likelihood(trainer: Trainer) -> None:
    batch = on_device(make_batch())
    params = trainer.first.params
    losses, tokens = make_eval_step(trainer.structure)(params, batch)
    logits = jax.jit(lambda: merge(trainer.structure, params)(batch.src, batch.tgt_in))()
    exp = np.exp(np.asarray(logits, np.float64))
    own = np.take_along_axis(exp, np.asarray(batch.tgt_out)[..., None], axis=2)[..., 0]
    naive = -np.log(own / exp.sum(axis=2))
    is_token = np.asarray(batch.tgt_out) != PAD_ID
    np.testing.assert_array_equal(tokens, is_token.sum(axis=1))
    np.testing.assert_allclose(losses, (naive * is_token).sum(axis=1), rtol=1e-5)


@pytest.mark.equality
def test_gradient_is_a_mean_over_real_tokens(trainer: Trainer) -> None:
    """Half of the rows are padding, or the others once more."""
    half = make_batch(rows=ROWS // 2)
    padded = jax.tree.map(lambda x: np.pad(x, [(0, ROWS // 2), (0, 0)]), half)
    twice = jax.tree.map(lambda x: np.concatenate([x, x]), half)
    one, one_metrics = trainer.step(trainer.fresh, on_device(padded))
    two, two_metrics = trainer.step(trainer.fresh, on_device(twice))
    assert float(one_metrics.tokens) == float(two_metrics.tokens) / 2 == half.weights.sum()
    assert float(one_metrics.loss) == pytest.approx(float(two_metrics.loss), rel=1e-6)
    assert_close(moment(one), moment(two), rtol=1e-4, atol=1e-8)
    norm = optax.tree.norm(moment(one)) / (1 - CONFIG.training.adam_b1)
    assert float(norm) == pytest.approx(float(one_metrics.gradient_norm), rel=1e-5)


@pytest.mark.equality
@pytest.mark.parametrize(
    "model", [{}, pytest.param({"feed_forward": "moe", "num_experts": 4}, marks=pytest.mark.slow)]
)
def test_parts_give_the_gradient_of_the_whole(model: dict[str, Any]) -> None:
    """Also if one part has no token to predict.

    The parts of a mixture have the same rows, so that the balance of each is that of all.
    """
    batch = make_batch(rows=ROWS // 4 if model else ROWS)
    batch = jax.tree.map(lambda x: np.repeat(x, ROWS // len(x), axis=0), batch)
    batch.weights[:: 1 if model else 4] *= bool(model)
    one, four = (
        make_trainer(change(model=model, training={"accumulation_steps": count}))
        for count in (1, 4)
    )
    whole, whole_metrics = one.step(one.first, on_device(batch))
    parts, parts_metrics = four.step(four.first, on_device(batch))
    for name in ("loss", "tokens", "gradient_norm"):
        expected = pytest.approx(float(getattr(whole_metrics, name)), rel=1e-5)
        assert float(getattr(parts_metrics, name)) == expected
    assert_close(moment(whole), moment(parts), rtol=1e-4, atol=1e-7)


def test_finite_loss_with_a_gradient_that_is_not_is_skipped(trainer: Trainer) -> None:
    state = trainer.fresh
    # Logits of 1e25: their gradient's square is infinite.
    state.params["own_output_embedding"]["table"] *= 1e25
    before = jax.tree.map(jnp.copy, state)
    after, metrics = trainer.step(state, on_device(make_batch()))
    assert np.isfinite(metrics.loss)
    assert not np.isfinite(metrics.gradient_norm)
    assert_same((after.params, after.opt_state), (before.params, before.opt_state))
    assert int(after.skipped) == 1


def test_training_goes_on_after_skipped_steps_as_if_they_had_not_been(trainer: Trainer) -> None:
    """A batch without a token to predict is skipped as well, but its loss is finite."""
    good, bad = on_device(make_batch()), on_device(spoil(make_batch()))
    empty = good._replace(weights=jnp.zeros_like(good.weights))
    state = trainer.fresh
    counts = []
    for batch in (bad, bad, empty, good, empty, bad):
        state, metrics = trainer.step(state, batch)
        counts.append((int(metrics.skipped), int(metrics.skipped_in_a_row)))
        assert float(metrics.loss) == 0 or batch is not empty
    assert counts == [(1, 1), (2, 2), (3, 2), (3, 0), (4, 0), (5, 1)]
    expected, _ = trainer.step(trainer.fresh, good)
    assert_same(
        (state.params, state.opt_state, state.key),
        (expected.params, expected.opt_state, expected.key),
    )


def test_moving_average_follows_its_recurrence_and_no_skipped_step(averaging: Trainer) -> None:
    state = averaging.fresh
    expected = jax.tree.map(np.asarray, state.params)
    good, bad = make_batch(), spoil(make_batch())
    update = 0
    for batch in (bad, good, good, bad, good, good):
        state, _ = averaging.step(state, on_device(batch))
        if batch is good:
            update += 1
            decay = min(0.3, (1 + update) / (10 + update))  # 2/11, 3/12, 0.3, 0.3
            expected = jax.tree.map(
                lambda old, new, d=decay: d * old + (1 - d) * np.asarray(new),
                expected, state.params,
            )  # fmt: skip
        assert_close(state.ema, expected, rtol=1e-5, atol=1e-7)
    assert update == 4


@pytest.mark.equality
def test_mesh_trains_and_skips_as_one_device(averaging: Trainer) -> None:
    """The loss of the fourth step is not finite, for the rows of one device.

    Those of another device have no token to predict in the second step.
    """
    alone, mesh = averaging.fresh, make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(mesh):
        trainer = make_trainer(AVERAGING)
    state, skipped = trainer.fresh, []
    for seed in range(5):
        batch = spoil(make_batch(seed)) if seed == 3 else make_batch(seed)
        batch.weights[-4:] *= seed != 1
        alone, wanted = averaging.step(alone, on_device(batch))
        with jax.set_mesh(mesh):
            state, metrics = trainer.step(state, put_batch(batch, mesh))
        assert_close(metrics, wanted, rtol=1e-4)
        skipped.append(int(metrics.skipped))
    assert skipped == [0, 0, 0, 1, 1]
    assert_close((state.params, state.ema), (alone.params, alone.ema), rtol=1e-2, atol=1e-4)
    params, *updated = map(count_own, (state.params, state.ema, moment(state)))
    assert updated == [[count / 2 for count in params]] * 2  # those of the update over data, too
    assert sum(params) < sum(leaf.size for leaf in jax.tree.leaves(state.params))


GPU_MESHES = {
    "data": MeshConfig(data=8),
    "tensor": MeshConfig(data=4, tensor=2),
    "fsdp": MeshConfig(data=2, fsdp=4),
}


@pytest.mark.equality
@pytest.mark.parametrize(
    ("axis", "parts"),
    [
        ("data", 1),
        *(
            pytest.param(axis, parts, marks=pytest.mark.slow)
            for axis, parts in (("data", 2), ("tensor", 1), ("tensor", 2), ("fsdp", 1))
        ),
    ],
)
def test_step_with_twins_for_gpus_is_that_of_the_formulas_on_any_mesh(
    axis: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tied = change(model={"tie_embeddings": "all"}, training={"accumulation_steps": parts})
    textbook = make_trainer(
        dataclasses.replace(tied, model=dataclasses.replace(tied.model, kernels="textbook"))
    )
    batch, mesh = make_batch(), make_mesh(GPU_MESHES[axis])
    alone, wanted = textbook.step(textbook.first, on_device(batch))
    monkeypatch.setattr("t2t.ops.select_kernels.platform", lambda: "gpu")
    config = dataclasses.replace(tied, model=dataclasses.replace(tied.model, dtype="float32"))
    with jax.set_mesh(mesh):
        trainer = make_trainer(config)
        state, metrics = trainer.step(trainer.first, put_batch(batch, mesh))
    assert_close(metrics, wanted, rtol=1e-4)
    assert_close(moment(state), moment(alone), rtol=1e-3, atol=1e-6)


def test_gradient_of_a_table_with_three_uses_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs; look-ups of both sides and the loss use it."""
    monkeypatch.setattr("t2t.ops.select_kernels.platform", lambda: "gpu")
    vocabulary = TokenizerConfig(vocab_size=1024)
    model = dataclasses.replace(CONFIG.model, tie_embeddings="all", dtype="float32")
    config = dataclasses.replace(CONFIG, model=model, tokenizer=vocabulary)
    mesh = make_mesh(MeshConfig(data=4), jax.devices()[:4])
    program = compile_step(config, mesh, ROWS, LENGTH, LENGTH)
    table = 4 * 1024 * model.d_model
    sums = [one for one in measure_cost(program.text).collectives if "gather" not in one.kind]
    assert table <= sum(one.times * one.num_bytes for one in sums) < 2 * table


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_devices_add_up_gradients_of_weights_once_for_all_parts(dtype: str) -> None:
    parts, model = 4, dataclasses.replace(CONFIG.model, d_model=64, d_ff=128, dtype=dtype)
    config = change(training={"accumulation_steps": parts})
    config = dataclasses.replace(
        config, model=model, tokenizer=TokenizerConfig(vocab_size=VOCAB_SIZE)
    )
    mesh = make_mesh(MeshConfig(data=4), jax.devices()[:4])
    program = compile_step(config, mesh, ROWS, LENGTH, LENGTH)
    sums = [one for one in measure_cost(program.text).collectives if "gather" not in one.kind]
    once, repeated = (
        sum(one.num_bytes for one in sums if one.times == times) for times in (1, parts)
    )
    weights = 4 * 64 * (3 * 4 * 64 + 2 * 2 * 128)  # bytes of the matrices of both layers
    assert once >= weights
    assert repeated < 0.2 * weights  # of tables, norms and biases


def count_own(tree: Any) -> list[int]:
    """Counts the numbers of each array on one device."""
    return [math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(tree)]
