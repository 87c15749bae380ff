"""The interface of all models: what training asks of any, and what search asks of a generator.

The families implement it in a file each: `transformer.py` (encoder-decoder), `decoder_only.py`,
`encoder_only.py` and `rnn.py`.
"""

from abc import abstractmethod
from typing import Any, NamedTuple, TypeVar

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2t.config.fields import ConfigError
from t2t.data.batch import PAD_ID, DeviceBatch
from t2t.model.block import Auxiliary
from t2t.model.compute_policy import Policy

AnyModel = TypeVar("AnyModel", bound=nnx.Module)
Params = dict[str, Any]  # nested by module and parameter name; the leaves are float32 arrays


class Prediction(NamedTuple):
    """A model's predictions for a batch: logits = hidden table^T at each position."""

    hidden: Float[Array, "B T D"]  # in the dtype of the operands of products
    table: Float[Array, "V D"]
    targets: Int[Array, "B T"]
    weights: Float[Array, "B T"]  # 0 where nothing is to be predicted
    auxiliary: Auxiliary  # its loss is added to that of each predicted token


class Model(nnx.Module):
    """A model as training and validation call it."""

    policy: Policy

    @abstractmethod
    def predict(self, batch: DeviceBatch, key: jax.Array | None = None) -> Prediction:
        """Predicts the targets of a batch, under teacher forcing; a key switches dropout on."""

    def find_tokens(self, batch: DeviceBatch) -> Bool[Array, "B T"]:
        """Returns where the side of the pairs that it learns to predict has tokens, no padding."""
        return batch.tgt_out != PAD_ID


class Generator(Model):
    """A model that generates a target token by token, as search and scores call it."""

    @abstractmethod
    def __call__(
        self, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"], key: jax.Array | None = None
    ) -> Float[Array, "B T V"]:
        """Computes the logits under teacher forcing; a key switches dropout on."""

    @abstractmethod
    def init_cache(self, src: Int[Array, "B S"], beam_size: int, max_length: int) -> Any:
        """Creates the state of `decode_step` before the first of at most `max_length` steps.

        It is a pytree of scalars and of arrays whose first dimension is B.
        """

    def extend_cache(self, cache: Any, max_length: int) -> Any:
        """Returns the cache with capacity for `max_length` steps.

        The default returns it unchanged, for models whose cache has a constant size.
        """
        del max_length
        return cache

    @abstractmethod
    def decode_step(
        self, tokens: Int[Array, "B W"], parents: Int[Array, "B W"], cache: Any
    ) -> tuple[Float[Array, "B W V"], Any]:
        """Computes the logits after one more token in each of the W slots of the beam.

        Slot w of sentence b continues the hypothesis that was in slot `parents[b, w]` before. At
        the first step all slots are equal, and beam search passes parents[b, w] = w.
        """


def merge(structure: nnx.GraphDef[AnyModel], params: Params) -> AnyModel:
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
