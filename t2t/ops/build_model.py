"""Builds a model from its config; `make_model` chooses between Transformer and RNN.

The rest of the project works with the pair (structure, parameters) of `nnx.split`, where the
parameters are a nested dict. `init_model` returns this pair, and `describe_model` returns it with
shapes instead of arrays.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx

from t2t.config.fields import ModelConfig
from t2t.model.ensemble import Ensemble
from t2t.model.interface import EncoderDecoder, Params
from t2t.model.rnn import RNN
from t2t.model.transformer import Transformer
from t2t.ops.select_kernels import choose_policy


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


class Members(NamedTuple):
    """The models of an ensemble, or one model, and how their predictions are combined."""

    configs: tuple[ModelConfig, ...]
    weights: tuple[float, ...] = (1.0,)  # one for each model; their sum is 1
    mean: str = "probabilities"  # mean of probabilities | log_probs (normalised again)

    @property
    def position_limit(self) -> int | None:
        """The longest sentence that all models accept, EOS included; None: no limit."""
        return min((c.position_limit for c in self.configs if c.position_limit), default=None)

    def with_dtype(self, dtype: str) -> "Members":
        """The same models, computing in `dtype`."""
        configs = tuple(dataclasses.replace(config, dtype=dtype) for config in self.configs)
        return self._replace(configs=configs)

    def describe(self, src_vocab_size: int, tgt_vocab_size: int) -> tuple[Any, Params]:
        """Returns structure and parameters as `describe_model` does.

        The parameters of an ensemble are {"models": {0: those of the first model, 1: ...}}.
        """
        sizes = src_vocab_size, tgt_vocab_size
        if len(self.configs) == 1:
            return describe_model(self.configs[0], *sizes)

        def make() -> Ensemble:
            key = jax.random.key(0)
            models = [make_model(config, *sizes, key) for config in self.configs]
            return Ensemble(models, self.weights, self.mean)

        structure, state = nnx.split(nnx.eval_shape(make))
        return structure, nnx.to_pure_dict(state)

    def join(self, params: Sequence[Params]) -> Params:
        """The parameters of all models in one tree, as `describe` has them."""
        return params[0] if len(params) == 1 else {"models": dict(enumerate(params))}
