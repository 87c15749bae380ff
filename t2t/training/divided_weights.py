"""Weights of which each device keeps a part, and which a step gathers: on GPUs, along `data`.

Data parallelism copies the parameters. The update of each is divided (`t2t.training.optimizer`), so
every device would send its part of the new weights to the others, in float32. Instead the state
keeps the matrices divided, and the next step gathers them in the dtype of its products: half as
many bytes in bfloat16, sent while the first layers compute, and no copy in float32. Values are the
same, since products round matrices in any case.

Vectors and tables stay copied. XLA adds a bias inside of a product's kernel only if it is an
argument of the step. A look-up scales the rows of a table before it rounds them.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import tree_map_with_path

from t2t.config.fields import Config
from t2t.model.parameters import Params, find_name
from t2t.ops.build_model import list_parameters
from t2t.ops.select_kernels import choose_policy, uses_gpu_twins
from t2t.runtime.mesh import count_parts, gather_over_data, shard_over_data
from t2t.training.parameter_groups import find_factor


def list_divided(config: Config) -> set[str]:
    """Returns the names of the matrices that are trained and that products alone use.

    There are none without an axis `data`. A recurrent model has none, since `model.dtype=mixed`
    does not round its matrices.
    """
    is_copied = count_parts("copy") > 1
    if not (is_copied and uses_gpu_twins(config.model)) or config.model.kind == "rnn":
        return set()
    return {
        name
        for name, parameter in list_parameters(config.model).items()
        if parameter.matrix and find_factor(config.training, name) is not None
    }


def divide(config: Config, params: Params) -> Params:
    """Returns the parameters as the state keeps them, with these matrices sharded over `data`."""
    names = list_divided(config)
    return tree_map_with_path(
        lambda path, x: shard_over_data(x) if find_name(path) in names else x, params
    )


def gather(config: Config, params: Params) -> Params:
    """Reverses `divide`. Matrices have values of the dtype of products, and are still float32."""
    names, dtype = list_divided(config), choose_policy(config.model).product_dtype

    def gather_one(path: Sequence[Any], x: jax.Array) -> jax.Array:
        if find_name(path) not in names:
            return x
        return gather_over_data(x.astype(dtype)).astype(x.dtype)

    return tree_map_with_path(gather_one, params)
