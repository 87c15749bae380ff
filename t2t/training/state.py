"""What training carries from step to step, and nothing else: enough to resume bit for bit."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from t2t.config.fields import Config
from t2t.config.registry import find_variant
from t2t.model.build import init_model
from t2t.model.interface import EncoderDecoder, Params
from t2t.runtime.mesh import share
from t2t.training.schedule import make_schedule


class TrainState(NamedTuple):
    """The data position is `step`; the dropout of a step follows from `key` and `step`."""

    step: Int[Array, ""]  # batches seen
    params: Params
    opt_state: optax.OptState  # its own count is of updates made: step - skipped
    key: jax.Array
    skipped: Int[Array, ""]  # steps without an update, since loss or gradient was not finite
    skipped_in_a_row: Int[Array, ""]


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Section 5.3: Adam or a registered optimiser under the schedule, after clipping."""
    training = config.training
    schedule = make_schedule(training, config.model.d_model)
    optimizer: optax.GradientTransformation
    match training.optimizer:
        case "adam":
            optimizer = optax.adam(
                schedule, b1=training.adam_b1, b2=training.adam_b2, eps=training.adam_eps
            )
        case other:
            optimizer = find_variant("training.optimizer", other)(training, schedule)
    if not training.clip_norm:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(training.clip_norm), optimizer)


def init_state(
    config: Config,
    optimizer: optax.GradientTransformation,
    src_vocab_size: int,
    tgt_vocab_size: int,
) -> tuple[nnx.GraphDef[EncoderDecoder], TrainState]:
    """The model's structure and the state before the first step, sharded from birth."""
    params_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    structure, params = init_model(config.model, src_vocab_size, tgt_vocab_size, params_key)
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))  # one buffer each
    opt_state = jax.jit(lambda params: optimizer.init(jax.tree.map(share, params)))(params)
    return structure, TrainState(step, params, opt_state, dropout_key, skipped, in_a_row)


def describe_state(
    config: Config,
    optimizer: optax.GradientTransformation,
    src_vocab_size: int,
    tgt_vocab_size: int,
) -> tuple[nnx.GraphDef[EncoderDecoder], TrainState]:
    """As `init_state`, with shapes, dtypes and shardings on the mesh in use instead of values."""
    structure: nnx.GraphDef[EncoderDecoder] | None = None
    mesh = jax.sharding.get_mesh()

    def init() -> TrainState:
        nonlocal structure
        structure, state = init_state(config, optimizer, src_vocab_size, tgt_vocab_size)
        return state

    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = leaf.sharding.spec if leaf.sharding else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    state: TrainState = jax.tree.map(place, jax.eval_shape(init))
    assert structure is not None
    return structure, state
