"""The kinds of model; `make_model` is the only place that chooses.

`init_model` gives the pure pair (structure, parameters) that all other rooms work with, and
`describe_model` the same pair without values.
"""

import jax
from flax import nnx

from t2t.config.fields import ModelConfig
from t2t.model.interface import EncoderDecoder, Params
from t2t.model.rnn import RNN
from t2t.model.transformer import Transformer


def make_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, key: jax.Array
) -> EncoderDecoder:
    """The model that `model.kind` names; parameters by `key`, the same on any mesh."""
    match config.kind:
        case "transformer":
            return Transformer(config, src_vocab_size, tgt_vocab_size, key)
        case "rnn":
            return RNN(config, src_vocab_size, tgt_vocab_size, key)
        case other:
            raise ValueError(f"model.kind={other!r} is unknown")


def init_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, key: jax.Array
) -> tuple[nnx.GraphDef[EncoderDecoder], Params]:
    """The model's structure, and its parameters, each created in its own sharding."""
    structure = None

    @jax.jit
    def init(key: jax.Array) -> Params:
        nonlocal structure
        structure, state = nnx.split(make_model(config, src_vocab_size, tgt_vocab_size, key))
        return nnx.to_pure_dict(state)

    params = init(key)
    assert structure is not None
    return structure, params


def describe_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int
) -> tuple[nnx.GraphDef[EncoderDecoder], Params]:
    """As `init_model`, with the shape, dtype and sharding of each parameter instead of its values.

    The shardings are those on the mesh in use; without one there are none.
    """

    def make(key: jax.Array) -> EncoderDecoder:
        return make_model(config, src_vocab_size, tgt_vocab_size, key)

    structure, state = nnx.split(nnx.eval_shape(make, jax.random.key(0)))
    return structure, nnx.to_pure_dict(state)


def merge(structure: nnx.GraphDef[EncoderDecoder], params: Params) -> EncoderDecoder:
    """The model with these parameters, to be called inside a pure function."""
    return nnx.merge(structure, nnx.State(params))
