"""What training carries from step to step, and nothing else: enough to resume bit for bit."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from t2t.config.fields import Config
from t2t.model.build import describe_model, init_model
from t2t.model.interface import EncoderDecoder, Params


class TrainState(NamedTuple):
    """The data position is `step`; the dropout of a step follows from `key` and `step`."""

    step: Int[Array, ""]  # batches seen
    params: Params
    opt_state: optax.OptState  # its own count is of updates made: step - skipped
    key: jax.Array
    skipped: Int[Array, ""]  # steps without an update, since loss or gradient was not finite
    skipped_in_a_row: Int[Array, ""]


def init_state(
    config: Config,
    optimizer: optax.GradientTransformation,
    src_vocab_size: int,
    tgt_vocab_size: int,
) -> tuple[nnx.GraphDef[EncoderDecoder], TrainState]:
    """The model's structure and the state before the first step, sharded from birth."""
    params_key, _ = jax.random.split(jax.random.key(config.seed))
    structure, params = init_model(config.model, src_vocab_size, tgt_vocab_size, params_key)
    return structure, _start(config, optimizer, params)


def describe_state(
    config: Config,
    optimizer: optax.GradientTransformation,
    src_vocab_size: int,
    tgt_vocab_size: int,
) -> tuple[nnx.GraphDef[EncoderDecoder], TrainState]:
    """As `init_state`, with shapes, dtypes and shardings on the mesh in use instead of values."""
    mesh = jax.sharding.get_mesh()

    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = leaf.sharding.spec if leaf.sharding else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    structure, params = describe_model(config.model, src_vocab_size, tgt_vocab_size)
    state = jax.eval_shape(functools.partial(_start, config, optimizer), params)
    return structure, jax.tree.map(place, state)


def _start(config: Config, optimizer: optax.GradientTransformation, params: Params) -> TrainState:
    """The state before the first step with these parameters."""
    _, dropout_key = jax.random.split(jax.random.key(config.seed))
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))  # one buffer each
    opt_state = jax.jit(optimizer.init)(params)
    return TrainState(step, params, opt_state, dropout_key, skipped, in_a_row)
