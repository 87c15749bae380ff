"""Builds a model from its config; `make_model` chooses the family.

The rest of the project works with the pair (structure, parameters) of `nnx.split`, where the
parameters are a nested dict. `init_model` returns this pair, and `abstract_model` returns it with
shapes instead of arrays.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx

from t2t.config.fields import ConfigError, ModelConfig
from t2t.config.variants import CHOICES, call_variant, explain_shardings, find_variant
from t2t.model.interface import Model
from t2t.model.parameters import Params, check_params
from t2t.model.parametrization import Kind
from t2t.ops.select_kernels import choose_policy
from t2t.runtime.mesh import LOGICAL_MESH, put_like
from t2t.runtime.saved_programs import SavedPrograms


def import_family(kind: str) -> type[Model] | None:
    """Returns one of the library's families of models, or None; imports no other one.

    A family is created as family(config, policy, src_vocab_size, tgt_vocab_size, key).
    """
    match kind:
        case "transformer":
            from t2t.model.transformer import Transformer

            return Transformer
        case "decoder_only":
            from t2t.model.decoder_only import DecoderOnly

            return DecoderOnly
        case "encoder_only":
            from t2t.model.encoder_only import EncoderOnly

            return EncoderOnly
        case "rnn":
            from t2t.model.rnn import RNN

            return RNN
    return None


@explain_shardings()
def make_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, key: jax.Array
) -> Model:
    """Creates the model that `model.kind` names, on the current mesh, with random parameters."""
    policy = choose_policy(config)
    arguments = config, policy, src_vocab_size, tgt_vocab_size, key
    family: Any = import_family(config.kind)
    model: Model = (
        family(*arguments)
        if family
        else call_variant(
            "model.kind", config.kind, *arguments, is_valid=lambda value: isinstance(value, Model)
        )
    )
    return model


def find_family(config: ModelConfig) -> type[Model]:
    """Returns the class of models that `model.kind` names, which counts its operations.

    Raises:
        ConfigError: it does not, since it is derived from no family of the library.
    """
    family: Any = import_family(config.kind) or find_variant("model.kind", config.kind)
    own = (*filter(None, map(import_family, CHOICES["model.kind"])),)
    if isinstance(family, type) and issubclass(family, own):
        return family
    raise ConfigError(
        f"model.kind={config.kind!r} is a subclass of no family of t2t, so that its operations "
        "cannot be counted; derive it from one in t2t/model, such as Transformer"
    )


def init_model(
    config: ModelConfig,
    src_vocab_size: int,
    tgt_vocab_size: int,
    key: jax.Array,
    programs: SavedPrograms | None = None,
) -> tuple[nnx.GraphDef[Any], Params]:
    """Returns the model's structure and its parameters, each created with its final sharding.

    The identity of `programs` covers the config and the sizes.
    """
    sizes = src_vocab_size, tgt_vocab_size

    @jax.jit
    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(make_model(config, *sizes, key)))

    structure, _ = abstract_model(config, *sizes)
    return structure, (programs or SavedPrograms()).keep(init)(key)


def abstract_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int
) -> tuple[nnx.GraphDef[Any], Params]:
    """As `init_model`, with a `jax.ShapeDtypeStruct` in place of each parameter.

    Each struct has the sharding of its parameter on the current mesh, or None without a mesh.
    """
    sizes = src_vocab_size, tgt_vocab_size
    # The key is created inside `eval_shape`, where it is abstract. A concrete key would be placed
    # on the mesh, whose devices may be absent, as in `t2t.plan`.
    model = nnx.eval_shape(lambda: make_model(config, *sizes, jax.random.key(0)))
    structure, state = nnx.split(model)
    return structure, nnx.to_pure_dict(state)


class Parameter(NamedTuple):
    """The dimensions of a parameter, as its model declares them for sharding and optimisers."""

    axes: tuple[str | None, ...]  # logical names of its dimensions (`t2t.runtime.mesh.RULES`)
    # The dimensions of inputs and outputs if it holds matrices that enter products alone; other
    # dimensions count matrices (`t2t.model.linear.init_glorot`). None: it is something else.
    matrix: tuple[int, int] | None
    kind: Kind = "vector"


def list_parameters(config: ModelConfig) -> dict[str, Parameter]:
    """Returns what a model declares of its parameters, by their names.

    A name is such as encoder.0.feed_forward.inner.weight.
    """
    no_mesh = jax.sharding.AbstractMesh((), ())  # between two meshes of unlike sizes
    use = jax.sharding.use_abstract_mesh
    with use(no_mesh), use(LOGICAL_MESH):
        _, state = nnx.split(nnx.eval_shape(lambda: make_model(config, 2, 2, jax.random.key(0))))
    return {
        ".".join(map(str, path)): Parameter(
            (*variable.get_value().sharding.spec,),
            variable.get_metadata().get("matrix"),
            variable.get_metadata().get("kind", "vector"),
        )
        for path, variable in nnx.to_flat_state(state)
    }


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

    def abstract(self, src_vocab_size: int, tgt_vocab_size: int) -> tuple[Any, Params]:
        """Returns structure and parameters as `abstract_model` does.

        The parameters of an ensemble are {"models": {0: those of the first model, 1: ...}}.
        """
        sizes = src_vocab_size, tgt_vocab_size
        if len(self.configs) == 1:
            return abstract_model(self.configs[0], *sizes)

        from t2t.model.ensemble import Ensemble

        def make() -> Ensemble:
            key = jax.random.key(0)
            models = [make_model(config, *sizes, key) for config in self.configs]
            return Ensemble(models, self.weights, self.mean)

        structure, state = nnx.split(nnx.eval_shape(make))
        return structure, nnx.to_pure_dict(state)

    def join(self, params: Sequence[Params]) -> Params:
        """The parameters of all models in one tree, as `abstract` has them."""
        return params[0] if len(params) == 1 else {"models": dict(enumerate(params))}

    def place(self, params: Params, src_vocab_size: int, tgt_vocab_size: int) -> Params:
        """Puts parameters on the current mesh with the sharding that the models declare.

        Raises:
            ConfigError: the parameters do not fit the config and vocabulary.
        """
        _, declared = self.abstract(src_vocab_size, tgt_vocab_size)
        check_params(declared, params)
        placed: Params = put_like(params, declared)
        return placed
