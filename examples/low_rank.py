"""A low-rank adapter beside the output of each attention; fine-tuning trains nothing else.

python -m t2t.train ... --init_from=RUN --config.plugins=examples.low_rank
    --config.model.attention=low_rank --config.plugin.low_rank.rank=4
    --config.training.frozen="('*.weight', '*.bias', '*.scale', '*.table')"
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2t.config import ModelConfig, PluginOptions, PositiveInt, option
from t2t.config.variants import register
from t2t.model.attention import MultiHeadAttention
from t2t.model.compute_policy import Policy
from t2t.model.linear import init_glorot
from t2t.runtime.mesh import spec


@register("plugin", "low_rank")
@dataclasses.dataclass
class Options(PluginOptions):
    """Fields of the config: --config.plugin.low_rank.FIELD=VALUE."""

    rank: PositiveInt = option(8, "width between the two matrices of the adapter")


@register("model.attention", "low_rank")
class LowRank(MultiHeadAttention):
    """W^O + A B (Hu et al. 2022), where B begins with zeros: at first nothing has changed."""

    def __init__(self, config: ModelConfig, policy: Policy, key: jax.Array, *, over_memory: bool):
        super().__init__(config, policy, key, over_memory=over_memory)
        options: Options = config.plugin["low_rank"]
        heads, width, rank = config.num_heads, config.value_width, options.rank
        # Not named "weight", as what is frozen.
        self.down = init_glorot(
            jax.random.fold_in(key, 5), (heads, width, rank), heads * width, rank,
            "heads", None, None, matrix=(1, 2),
        )  # fmt: skip
        zeros = jnp.zeros((rank, config.d_model), out_sharding=spec(None, "d_model"))
        self.up = nnx.Param(zeros, matrix=(0, 1))

    def join(self, heads: Float[Array, "B T H U"]) -> Float[Array, "B T D"]:
        """Adds the adapter's product to that with W^O."""
        multiply, placed = self.policy.multiply, spec("batch", None, None)
        narrow = multiply("BTHU,HUR->BTR", heads, self.down[...], placed)
        return super().join(heads) + multiply("BTR,RD->BTD", narrow, self.up[...], placed)
