import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t.model.interface import Params, merge
from t2t.ops.build_model import describe_model
from tests.model.small_models import SIZES, SMALL, SRC, TGT_IN, draw_params

DROPS = dataclasses.replace(SMALL, num_layers=2, dropout=0.2, attention_dropout=0.1)


@pytest.mark.parametrize("kernels", ["auto", "textbook"])
def test_scanned_layers_compute_what_unrolled_ones_do(kernels: str) -> None:
    """With the same dropout masks, from the same parameters."""
    results = []
    for scanned in (False, True):
        config = dataclasses.replace(DROPS, scan_layers=scanned, kernels=kernels)
        structure, params = draw_params(config)

        def sum_logits(params: Params, key: jax.Array, structure: Any = structure) -> jax.Array:
            return jnp.sum(jnp.sin(merge(structure, params)(SRC, TGT_IN, key)))

        results.append(jax.jit(jax.value_and_grad(sum_logits))(params, jax.random.key(0)))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(results[0]))
    near = functools.partial(np.testing.assert_allclose, atol=1e-5 * largest)
    jax.tree.map(near, *results)


def test_scanned_layers_are_compiled_once_whatever_their_number() -> None:
    sizes = []
    for depth in (2, 6):
        config = dataclasses.replace(SMALL, num_layers=depth, scan_layers=True)
        structure, params = describe_model(config, *SIZES)

        def run(params: Params, structure: Any = structure) -> jax.Array:
            return merge(structure, params)(SRC, TGT_IN)

        traced = jax.make_jaxpr(run)(params)
        sizes.append(sum(eqn.primitive.name == "scan" for eqn in traced.eqns))
        products = [eqn for eqn in traced.eqns if eqn.primitive.name == "dot_general"]
        assert len(products) <= 1  # the logits
    assert sizes == [2, 2]
