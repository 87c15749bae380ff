"""Builds models: `make_model` is the only place that chooses their kind.

`init_model` gives the pure pair (structure, parameters) that all other rooms work with, and
`describe_model` the same pair without values.
"""

import jax
from flax import nnx

from t2t.config.fields import ModelConfig
from t2t.model.interface import EncoderDecoder, Params
from t2t.model.rnn import RNN
from t2t.model.transformer import Transformer
from t2t.ops.choose import choose_policy


def make_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, key: jax.Array
) -> EncoderDecoder:
    """The model that `model.kind` names, for the mesh in use; parameters by `key`."""
    policy = choose_policy(config)
    match config.kind:
        case "transformer":
            return Transformer(config, policy, src_vocab_size, tgt_vocab_size, key)
        case "rnn":
            return RNN(config, policy, src_vocab_size, tgt_vocab_size, key)
        case other:
            raise ValueError(f"model.kind={other!r} is unknown")


def init_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, key: jax.Array
) -> tuple[nnx.GraphDef[EncoderDecoder], Params]:
    """The model's structure, and its parameters, each created in its own sharding."""
    sizes = src_vocab_size, tgt_vocab_size

    @jax.jit
    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(make_model(config, *sizes, key)))

    structure, _ = describe_model(config, *sizes)
    return structure, init(key)


def describe_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int
) -> tuple[nnx.GraphDef[EncoderDecoder], Params]:
    """As `init_model`, with the shape, dtype and sharding of each parameter instead of its values.

    The shardings are those on the mesh in use; without one there are none.
    """

    def make() -> EncoderDecoder:  # with a key of its own: the mesh's devices need not be here
        return make_model(config, src_vocab_size, tgt_vocab_size, jax.random.key(0))

    structure, state = nnx.split(nnx.eval_shape(make))
    return structure, nnx.to_pure_dict(state)


def merge(structure: nnx.GraphDef[EncoderDecoder], params: Params) -> EncoderDecoder:
    """The model with these parameters, to be called inside a pure function."""
    return nnx.merge(structure, nnx.State(params))
