"""The norm of a gradient whose arrays are summed in groups."""

import jax
import numpy as np
import optax

from t2t.config.fields import MeshConfig
from t2t.model.parameters import Params
from t2t.ops import gradient_norm
from t2t.runtime.mesh import make_mesh, spec

# Equal shapes, equal shapes with different shardings, and a scalar.
ARRAYS = {
    "inner": ((8, 16), ("d_model", "d_ff")),
    "other_inner": ((8, 16), ("d_model", "d_ff")),
    "turned": ((8, 16), ("d_ff", "d_model")),
    "table": ((32, 8), ("vocabulary", "d_model")),
    "scale": ((3,), (None,)),
    "scalar": ((), ()),
}


def draw_gradient() -> Params:
    random = np.random.default_rng(0)
    gradient: Params = {}
    for name, (shape, dimensions) in ARRAYS.items():
        array = random.normal(size=shape).astype(np.float32)
        gradient[name] = jax.device_put(array, spec(*dimensions))
    return gradient


def test_norm_is_optaxs_norm() -> None:
    gradient = draw_gradient()
    found = jax.jit(gradient_norm.norm)(gradient)
    np.testing.assert_allclose(found, optax.tree.norm(gradient), rtol=1e-6)


def test_norm_of_a_sharded_gradient_is_the_same() -> None:
    whole = gradient_norm.norm(draw_gradient())
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        sharded = jax.jit(gradient_norm.norm)(draw_gradient())
    np.testing.assert_allclose(sharded, whole, rtol=1e-6)
