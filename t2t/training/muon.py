"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): orthogonal updates.

If U S V^T is the momentum of a matrix, the update is U V^T: every direction moves equally far, also
those with small gradients. Adam updates all other parameters: biases, norms, the tables of
embeddings and positions, and what registered variants of the model add.

Each key/value head has matrices of its own, and so has each factor of a gated linear unit.
[W^Q W^K W^V] of such a head is one matrix in self-attention, and [W^K W^V] in cross-attention; W^O
of each query head is one. The papers update W^Q, W^K, W^V and W^O each by itself, and each over all
heads.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import tree_leaves_with_path, tree_map_with_path
from jaxtyping import Array, Float

from t2t.config.fields import Config
from t2t.model.parameters import Params, find_name
from t2t.ops.build_model import Parameter
from t2t.runtime.mesh import reshard, reshard_like, share_out
from t2t.training.parameter_groups import label_matrices

MOMENTUM = 0.95
# Root mean square of an update, as large as Adam's usually is, so that both can have the same
# learning rate (Liu et al. 2025, https://arxiv.org/abs/2502.16982).
SIZE = 0.2


def make_muon(
    config: Config, schedule: optax.Schedule, parameters: Mapping[str, Parameter]
) -> optax.GradientTransformation:
    """Muon for matrices, and Adam for all other parameters.

    Both have decoupled weight decay (Liu et al. 2025, equation 3): an update also subtracts the
    rate times `training.weight_decay` times the parameters.
    """
    training, rate = config.training, optax.scale_by_learning_rate(schedule)
    decay = [optax.add_decayed_weights(training.weight_decay)] if training.weight_decay else []
    adam = optax.chain(
        optax.scale_by_adam(training.adam_b1, training.adam_b2, training.adam_eps), *decay, rate
    )
    muon = optax.chain(
        optax.trace(MOMENTUM, nesterov=True),
        optax.stateless(lambda momenta, _: _find_updates(momenta, parameters)),
        *decay,
        rate,
    )
    labels = label_matrices(parameters, "muon", "adam")
    return optax.partition({"muon": muon, "adam": adam}, labels)


def _find_updates(momenta: Params, parameters: Mapping[str, Parameter]) -> Params:
    """The updates of all matrices. Those of one size form a stack that the devices share out."""
    by_size: defaultdict[tuple[int, ...], list[tuple[Any, Any, Array]]] = defaultdict(list)
    for path, momentum in tree_leaves_with_path(momenta):
        axes = parameters[find_name(path)].matrix
        assert axes
        matrices = jnp.moveaxis(reshard(momentum), axes, (-2, -1))
        by_size[matrices.shape[-2:]].append((path, axes, matrices))
    updates = {}
    for size, group in by_size.items():
        stack = jnp.concatenate([matrices.reshape(-1, *size) for *_, matrices in group])
        stack = SIZE * max(size) ** 0.5 * reshard(orthogonalize(share_out(stack)))
        ends = np.cumsum([math.prod(matrices.shape[:-2]) for *_, matrices in group])
        parts = jnp.split(stack, ends)  # the last one is padding
        for (path, axes, matrices), part in zip(group, parts, strict=False):
            updates[path] = jnp.moveaxis(part.reshape(matrices.shape), (-2, -1), axes)
    return tree_map_with_path(lambda path, x: reshard_like(updates[path], x), momenta)


def orthogonalize(matrices: Float[Array, "*count M N"]) -> Float[Array, "*count M N"]:
    """Returns about U V^T of each matrix U S V^T, by a polynomial in X instead of the SVD.

    Five times X <- a X + b (X X^T) X + c (X X^T)^2 X, where a, b and c make small singular values
    grow fast; in the end most of them lie between 0.7 and 1.2. The products have the device's
    default precision (bfloat16 on TPUs, TF32 on GPUs); Jordan et al. use bfloat16.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x: Array = matrices if wide else matrices.mT  # X X^T has the smaller size
    x /= jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-8
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide else x.mT
