"""The training state: all that is carried from step to step, enough to resume bit for bit."""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Int, UInt32

from t2t.config.fields import Config
from t2t.data.batch import Route
from t2t.model.parameters import Params, name_leaves
from t2t.ops.build_model import abstract_model, init_model
from t2t.runtime.saved_programs import SavedPrograms
from t2t.training.averages import start_average
from t2t.training.divided_weights import divide
from t2t.training.losses import Teacher, abstract_teachers
from t2t.training.optimizer import Optimizer
from t2t.training.parameter_groups import check_patterns
from t2t.training.sharing import Sharing

_TREES = "params", "opt_state", "ema"  # of `TrainState`, keyed as parameters are


class TrainState(NamedTuple):
    """The state between two steps.

    `step` determines the next batch, `key` and `step` its dropout masks.
    """

    step: Int[Array, ""]  # batches seen
    params: Params  # perhaps sharded over `data` (`divided_weights.py`)
    opt_state: optax.OptState  # its count is the number of updates, step - skipped
    key: UInt32[Array, "words"]  # of dropout, as the words of a JAX key, which a file can hold
    # Steps without an update: loss or gradient was not finite, or no token was predicted.
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]  # those since the last update that were not finite
    # Exponential moving average of the parameters, sharded as Adam's moments; None: there is none.
    ema: Params | None = None
    # Models that the loss reads and nothing trains; a checkpoint has none of them.
    teachers: tuple[Teacher, ...] = ()


def init_state(
    config: Config,
    optimizer: Optimizer,
    src_vocab_size: int,
    tgt_vocab_size: int,
    programs: SavedPrograms | None = None,
) -> tuple[nnx.GraphDef[Any], TrainState]:
    """Returns the model's structure and the state before step 0, created with its shardings.

    The identity of `programs` covers the config without its seed, and the sizes.
    """
    structure, params = init_params(config, src_vocab_size, tgt_vocab_size, programs)
    return structure, init_training(config, optimizer, params, programs)


def init_params(
    config: Config,
    src_vocab_size: int,
    tgt_vocab_size: int,
    programs: SavedPrograms | None = None,
) -> tuple[nnx.GraphDef[Any], Params]:
    """Returns a plain model's structure, and the run's random parameters, of its seed."""
    key, _ = jax.random.split(jax.random.key(config.seed))  # the other one is for dropout
    sizes, sharing = (src_vocab_size, tgt_vocab_size), Sharing(config)
    structure, first = init_model(config.model, *sizes, key, programs)
    keys = [jax.random.fold_in(key, number) for number in range(1, len(sharing.tasks))]
    others = (init_model(config.model, *sizes, each, programs)[1] for each in keys)
    by_route = dict(zip(sharing.tasks, itertools.chain([first], others), strict=True))
    return structure, sharing.join(by_route.__getitem__)


def abstract_params(
    config: Config, src_vocab_size: int, tgt_vocab_size: int
) -> tuple[nnx.GraphDef[Any], Params]:
    """As `init_params`, with a `jax.ShapeDtypeStruct` in place of each parameter."""
    structure, params = abstract_model(config.model, src_vocab_size, tgt_vocab_size)
    return structure, Sharing(config).join(lambda route: params)


def abstract_state(
    config: Config, optimizer: Optimizer, src_vocab_size: int, tgt_vocab_size: int
) -> tuple[nnx.GraphDef[Any], TrainState]:
    """As `init_state`, with a `jax.ShapeDtypeStruct` on the current mesh in place of each array."""
    mesh = jax.sharding.get_mesh()

    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = leaf.sharding.spec if leaf.sharding else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    structure, params = abstract_params(config, src_vocab_size, tgt_vocab_size)
    state = jax.eval_shape(functools.partial(init_training, config, optimizer), params)
    teachers = abstract_teachers(config, src_vocab_size, tgt_vocab_size)
    state = state._replace(teachers=teachers)
    return structure, jax.tree.map(place, state)


def pick_state(state: TrainState, sharing: Sharing, route: Route) -> TrainState:
    """Returns the state of the plain model of a route (`Sharing.pick`)."""
    trees = {name: sharing.pick(getattr(state, name), route) for name in _TREES}
    return state._replace(**trees)


def put_state(whole: TrainState, part: TrainState, sharing: Sharing, route: Route) -> TrainState:
    """Returns the state of the run, with what a step of a route has made of its part."""
    trees = {name: sharing.put(getattr(whole, name), getattr(part, name), route) for name in _TREES}
    return part._replace(**trees)


def init_training(
    config: Config, optimizer: Optimizer, params: Params, programs: SavedPrograms | None = None
) -> TrainState:
    """Returns the state before step 0 with these parameters.

    Raises:
        ConfigError: a pattern of `training.frozen` or `training.rate_factors` has no effect.
    """
    check_patterns(config.training, name_leaves(params))
    _, dropout_key = jax.random.split(jax.random.key(config.seed))
    # Three separate buffers, since the training step donates each leaf of the state.
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))
    programs = programs or SavedPrograms()
    opt_state = programs.keep(jax.jit(optimizer.init))(params)
    ema = programs.keep(jax.jit(start_average))(params) if config.training.ema_decay else None
    key = jax.random.key_data(dropout_key)
    return TrainState(step, divide(config, params), opt_state, key, skipped, in_a_row, ema)
