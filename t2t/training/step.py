"""The jitted steps of training and of validation."""

import functools
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.tree_util import tree_map_with_path
from jaxtyping import Array, Float, Int

from t2t.config.fields import Config
from t2t.config.variants import CHOICES, explain_shardings
from t2t.data.batch import DeviceBatch, Route
from t2t.model.interface import Model
from t2t.model.loss import compute_log_probs
from t2t.model.parameters import Params, find_name, merge
from t2t.model.stack import Auxiliary
from t2t.ops import gradient_norm
from t2t.ops.build_model import list_parameters
from t2t.ops.select_kernels import COMPILER_OPTIONS, uses_gpu_twins
from t2t.runtime.mesh import (
    keep_partial_gradient,
    platform,
    reshard,
    reshard_like,
    shard_over_data,
    spec,
    zero_gradient,
)
from t2t.runtime.saved_programs import SavedPrograms
from t2t.training.averages import update_average
from t2t.training.divided_weights import gather
from t2t.training.losses import add_auxiliary_loss, make_loss
from t2t.training.optimizer import Optimizer, apply_updates, make_optimizer
from t2t.training.parameter_groups import freeze
from t2t.training.schedule import make_schedule
from t2t.training.sharing import Sharing
from t2t.training.state import TrainState, pick_state, put_state

LossAndPredicted = tuple[Float[Array, ""], Float[Array, ""]]  # (sum of losses, sum of weights)
LossAndOthers = tuple[Float[Array, ""], tuple[Float[Array, ""], Auxiliary]]  # as JAX's `has_aux`
# of each row: loss, sum of weights and, with `count_right`, the number of right predictions
SentenceCounts = tuple[Float[Array, "B"], ...]


class Metrics(NamedTuple):
    """The metrics of one training step."""

    # with label smoothing, R-Drop and auxiliary losses, nats per predicted token
    loss: Float[Array, ""]
    predicted: Float[Array, ""]  # tokens over which the loss is a mean: the sum of their weights
    tokens: Int[Array, ""]  # of the targets, without padding, predicted or not (masked_lm)
    padding: Int[Array, ""]  # positions of the targets without a token
    gradient_norm: Float[Array, ""]  # global, before clipping
    learning_rate: Float[Array, ""]
    skipped: Int[Array, ""]  # steps without an update so far
    skipped_in_a_row: Int[Array, ""]  # steps since the last update that were not finite
    auxiliary: Auxiliary = {}  # noqa: RUF012 (never changed); counts and figures, summed


TrainStep = Callable[[TrainState, DeviceBatch], tuple[TrainState, Metrics]]
EvalStep = Callable[[Params, DeviceBatch], SentenceCounts]


def make_train_step(
    structure: nnx.GraphDef[Model],
    config: Config,
    optimizer: Optimizer,
    name_of: Callable[[str], str] = str,
) -> TrainStep:
    """Creates the jitted training step; it donates the buffers of its argument `state`.

    `name_of` is that of `make_optimizer`.
    """
    schedule = make_schedule(config.training, config.model.reference_width)
    sum_batch, parts = make_loss(config).sum_losses, config.training.accumulation_steps
    compute_norm = gradient_norm.norm if uses_gpu_twins(config.model) else optax.tree.norm
    partial = find_partial(config)

    def sum_losses(
        params: Params, batch: DeviceBatch, key: jax.Array, teachers: Sequence[Model]
    ) -> LossAndOthers:
        model = merge(structure, freeze(config.training, params, name_of))
        sums = sum_batch(model, batch, key, *teachers)
        loss_sum, predicted, auxiliary = add_auxiliary_loss(*sums)
        return loss_sum, (predicted, auxiliary)

    @explain_shardings()
    def train_step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        teachers = [merge(*teacher) for teacher in state.teachers]
        differentiate = jax.value_and_grad(sum_losses, has_aux=True)
        sum_gradients = functools.partial(differentiate, teachers=teachers)
        if parts > 1:
            sum_gradients = functools.partial(accumulate, sum_gradients, parts)
        params = mark_partial(gather(config, state.params, name_of), partial)
        sums, gradient_sum = sum_gradients(params, batch, key)
        loss_sum, (predicted, auxiliary) = sums
        gradient_sum = jax.tree.map(sum_partial, gradient_sum, state.params)
        is_empty = predicted == 0  # then the sums are 0, and there is nothing to learn
        divisor = jnp.where(is_empty, 1, predicted)
        # Sharded over `data`, as the optimiser's update is.
        gradient = jax.tree.map(lambda g: shard_over_data(g) / divisor, gradient_sum)
        loss, norm = loss_sum / divisor, compute_norm(gradient)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        is_used = finite & ~is_empty
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = apply_updates(state.params, updates, where=is_used)
        opt_state = optax.tree.where(is_used, opt_state, state.opt_state)
        ema = state.ema
        if ema is not None:
            decay, updates_before = config.training.ema_decay, state.step - state.skipped
            ema = update_average(ema, params, decay, updates_before, where=is_used)
        skipped_in_a_row = jnp.where(is_used, 0, state.skipped_in_a_row + ~finite)
        skipped = state.skipped + ~is_used
        is_token = merge(structure, state.params).find_tokens(batch)
        metrics = Metrics(
            loss=loss,
            predicted=predicted,
            tokens=jnp.sum(is_token, dtype=jnp.int32),
            padding=jnp.sum(~is_token, dtype=jnp.int32),
            gradient_norm=norm,
            learning_rate=schedule(state.step - state.skipped),
            skipped=skipped,
            skipped_in_a_row=skipped_in_a_row,
            auxiliary=auxiliary,
        )
        return TrainState(
            state.step + 1, params, opt_state, state.key, skipped, skipped_in_a_row, ema,
            state.teachers,
        ), metrics  # fmt: skip

    options = COMPILER_OPTIONS.get(platform())
    return jax.jit(train_step, donate_argnums=0, compiler_options=options)


def make_run_step(
    structure: nnx.GraphDef[Model], config: Config, programs: SavedPrograms
) -> TrainStep:
    """Creates the step of a run, whose tasks may have their own stacks (`Sharing`).

    The identity of `programs` covers the config.
    """
    sharing, training = Sharing(config), config.training
    if sharing.is_plain:
        return programs.keep(make_train_step(structure, config, make_optimizer(config)))

    def make(route: Route, closure: Hashable) -> TrainStep:
        name_of = functools.partial(sharing.name_of, route=route)
        optimizer = make_optimizer(config, name_of)
        return programs.keep(make_train_step(structure, config, optimizer, name_of), closure)

    first, *_ = sharing.tasks
    if training.frozen or training.rate_factors:  # which may name a stack
        steps = {route: make(route, repr(route)) for route in sharing.tasks}
    else:  # one program
        steps = dict.fromkeys(sharing.tasks, make(first, ()))

    def step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
        route = batch.route
        assert route is not None
        own = pick_state(state, sharing, route)
        own, metrics = steps[route](own, batch._replace(route=None))
        return put_state(state, own, sharing, route), metrics

    return step


def accumulate(
    sum_gradients: Callable[[Params, DeviceBatch, jax.Array], tuple[LossAndOthers, Params]],
    parts: int,
    params: Params,
    batch: DeviceBatch,
    key: jax.Array,
) -> tuple[LossAndOthers, Params]:
    """Splits the batch into parts, and sums their losses and gradients, one after the other.

    Devices add up the gradients of partial sums (`mark_partial`) later, after the last part. Other
    gradients are added up, and sharded over `data`, in every part.

    Memory holds the activations of only one part. Part i takes rows i, i + parts, ... A device
    holds a contiguous block of rows, so every part takes equally many rows from each device, and no
    rows move between devices.
    """

    def split(rows: jax.Array) -> jax.Array:
        sharding = spec("batch", None, *[None] * (rows.ndim - 1))
        shape = (rows.shape[0] // parts, parts, *rows.shape[1:])
        return jnp.moveaxis(jnp.reshape(rows, shape, out_sharding=sharding), 1, 0)

    scatter = functools.partial(jax.tree.map, shard_over_data)

    def add(
        total: tuple[LossAndPredicted, Params], part: tuple[DeviceBatch, Int[Array, ""]]
    ) -> tuple[tuple[LossAndPredicted, Params], Auxiliary]:
        rows, number = part
        (loss, (predicted, auxiliary)), gradient = sum_gradients(
            params, rows, jax.random.fold_in(key, number)
        )
        return jax.tree.map(jnp.add, total, ((loss, predicted), scatter(gradient))), auxiliary

    zero = jnp.zeros(())
    start = ((zero, zero), scatter(jax.tree.map(zero_gradient, params)))
    ((loss, predicted), gradient), each = jax.lax.scan(
        add, start, (jax.tree.map(split, batch), jnp.arange(parts))
    )
    auxiliary = jax.tree.map(lambda x: x.sum(axis=0), each)
    return (loss, (predicted, auxiliary)), gradient


def find_partial(config: Config) -> set[str]:
    """Returns the parameters whose gradients have several summands, which devices sum once.

    With gradient accumulation they are the matrices. On GPUs it is the table of embeddings too,
    whose gradient comes from the look-ups of both sides and from the loss. There only t2t's own
    loss without further columns of the table leaves it a partial sum.
    """
    model, training = config.model, config.training
    names: set[str] = set()
    # JAX does not differentiate the stack that `scan_layers` makes of partially summed weights.
    if training.accumulation_steps > 1 and not model.scan_layers:
        parameters = list_parameters(model).items()
        names |= {name for name, parameter in parameters if parameter.matrix}
    is_own = training.loss in CHOICES["training.loss"] and not model.output_bias
    is_plain = not training.r_drop and not training.scheduled_sampling
    if uses_gpu_twins(model) and model.kind == "transformer" and is_own and is_plain:
        names.add("tgt_embedding.table")
    return names


def mark_partial(params: Params, names: Collection[str]) -> Params:
    """Returns the parameters, where the gradients of those in `names` stay partial sums."""
    return tree_map_with_path(
        lambda path, x: keep_partial_gradient(x) if find_name(path) in names else x, params
    )


def sum_partial(gradient: Array, param: Array) -> Array:
    """Adds up partial sums of devices; shards the sum over `data`, as the update is."""
    is_partial = jax.typeof(gradient).sharding.spec.unreduced
    return reshard_like(gradient, shard_over_data(param)) if is_partial else gradient


def make_eval_step(structure: nnx.GraphDef[Model], *, count_right: bool = False) -> EvalStep:
    """Creates the jitted step that returns each row's (negative log-likelihood in nats, tokens).

    With `count_right` also the number of tokens to which the model gives the highest probability.
    There is no label smoothing and no dropout. The results are replicated on all devices.
    """

    @explain_shardings()
    def eval_step(params: Params, batch: DeviceBatch) -> SentenceCounts:
        model = merge(structure, params)
        hidden, table, targets, weights, _ = model.predict(batch)
        losses = model.policy.sentence_losses(hidden, table, targets, weights)
        counts: SentenceCounts = losses, weights.sum(axis=-1)
        if count_right:
            log_probs = reshard(compute_log_probs(hidden, table), "batch", None, None)
            is_right = jnp.argmax(log_probs, axis=-1) == targets
            counts = *counts, jnp.sum(is_right * weights, axis=-1)
        return reshard(counts, None)

    return jax.jit(eval_step)
