"""Weights of which each device keeps a part, and which a step gathers: on GPUs, along `data`.

Data parallelism copies the parameters. The update of each is divided (`t2t.training.optimizer`), so
every device would send its part of the new weights to the others, in float32. Instead the state
keeps the matrices divided, and the next step gathers them in the dtype of its products: half as
many bytes in bfloat16, sent while the first layers compute. Values are the same, since products
round matrices in any case.

Vectors and tables stay copied. XLA adds a bias inside of a product's kernel only if it is an
argument of the step. A look-up scales the rows of a table before it rounds them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import tree_map_with_path

from t2t.config.fields import Config
from t2t.model.parameters import Params, find_name
from t2t.ops.build_model import list_parameters
from t2t.ops.select_kernels import choose_policy, uses_gpu_twins
from t2t.runtime.mesh import count_parts, gather_over_data, shard_over_data
from t2t.training.parameter_groups import find_factor
from t2t.training.sharing import remove_owner


def list_divided(config: Config) -> set[str]:
    """Returns the names of a plain model's matrices that products alone use.

    There are none without an axis `data`. A recurrent model has none, since `model.dtype=mixed`
    does not round its matrices.
    """
    is_copied = count_parts("copy") > 1
    if not (is_copied and uses_gpu_twins(config.model)) or config.model.kind == "rnn":
        return set()
    return {name for name, each in list_parameters(config.model).items() if each.matrix}


def divide(config: Config, params: Params) -> Params:
    """Returns the run's parameters as the state keeps them.

    Those of these matrices that are trained are sharded over `data`.
    """
    names = list_divided(config)

    def divide_one(path: Sequence[Any], x: jax.Array) -> jax.Array:
        name = find_name(path)
        is_trained = find_factor(config.training, name) is not None
        return shard_over_data(x) if is_trained and remove_owner(name) in names else x

    return tree_map_with_path(divide_one, params)


def gather(config: Config, params: Params, name_of: Callable[[str], str] = str) -> Params:
    """Reverses `divide` for a plain model; `name_of` is that of `make_optimizer`.

    Matrices have values of the dtype of products, and are still float32.
    """
    names, dtype = list_divided(config), choose_policy(config.model).product_dtype

    def gather_one(path: Sequence[Any], x: jax.Array) -> jax.Array:
        name = find_name(path)
        if name not in names or find_factor(config.training, name_of(name)) is None:
            return x
        return gather_over_data(x.astype(dtype)).astype(x.dtype)

    return tree_map_with_path(gather_one, params)
