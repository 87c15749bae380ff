"""Builds a model from its config; `make_model` chooses between Transformer and RNN.

The rest of the project works with the pair (structure, parameters) of `nnx.split`, where the
parameters are a nested dict. `init_model` returns this pair, and `describe_model` returns it with
shapes instead of arrays.
"""

from typing import TypeVar

import jax
from flax import nnx

from t2t.config.fields import ConfigError, ModelConfig
from t2t.model.interface import EncoderDecoder, Params
from t2t.model.rnn import RNN
from t2t.model.transformer import Transformer
from t2t.ops.choose import choose_policy

Model = TypeVar("Model", bound=nnx.Module)


def make_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, key: jax.Array
) -> EncoderDecoder:
    """Creates the model that `model.kind` names, on the current mesh, with random parameters."""
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
    """Returns the model's structure and its parameters, each created with its final sharding."""
    sizes = src_vocab_size, tgt_vocab_size

    @jax.jit
    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(make_model(config, *sizes, key)))

    structure, _ = describe_model(config, *sizes)
    return structure, init(key)


def describe_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int
) -> tuple[nnx.GraphDef[EncoderDecoder], Params]:
    """As `init_model`, with a `jax.ShapeDtypeStruct` in place of each parameter.

    Each struct has the sharding of its parameter on the current mesh, or None without a mesh.
    """

    # The key is created inside `eval_shape`, where it is abstract. A concrete key would be placed
    # on the mesh, whose devices may be absent, as in `t2t.plan`.
    def make() -> EncoderDecoder:
        return make_model(config, src_vocab_size, tgt_vocab_size, jax.random.key(0))

    structure, state = nnx.split(nnx.eval_shape(make))
    return structure, nnx.to_pure_dict(state)


def merge(structure: nnx.GraphDef[Model], params: Params) -> Model:
    """Returns the model with these parameters; called inside pure functions such as a step."""
    return nnx.merge(structure, nnx.State(params))


def check_params(expected: Params, params: Params) -> None:
    """Raises `ConfigError` if the parameters do not have the names and shapes of `expected`."""
    wanted, found = (
        {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in x}
        for x in map(jax.tree_util.tree_leaves_with_path, (expected, params))
    )
    for name in wanted | found:
        if wanted.get(name) != found.get(name):
            raise ConfigError(
                f"the checkpoint does not fit its config and vocabulary: parameter {name} has "
                f"shape {found.get(name)} instead of {wanted.get(name)}; use the config.json and "
                "the vocab/ that were written with it"
            )
