"""Heads of the model, switched off one at a time."""

import jax
import numpy as np

from t2t.analysis.head_importance import list_heads, switch_off
from t2t.model.interface import merge
from tests import reference
from tests.model.small_models import SRC, TGT_IN, draw_model, vary


def test_head_that_is_switched_off_adds_nothing_and_the_others_stay() -> None:
    """With W^O of all heads but one at zero, that one is all that attention adds."""
    config = vary("today's")
    structure, params = draw_model("today's")
    run = jax.jit(lambda params: merge(structure, params)(SRC, TGT_IN))
    whole = run(params)
    parameters = jax.tree.map(lambda x: np.array(x, float), params)
    for head in list_heads(config):
        less = switch_off(params, head)
        name = "cross_attention" if head.stack == "cross" else "self_attention"
        side = "encoder" if head.stack == "encoder" else "decoder"
        attention = parameters[side][head.layer][name]
        kept = attention["output"]["weight"].copy()
        attention["output"]["weight"][head.number] = 0
        wanted = reference.transform(parameters, config, SRC[0].tolist(), TGT_IN[0].tolist())
        attention["output"]["weight"] = kept
        found = run(less)
        np.testing.assert_allclose(found[0], wanted, atol=2e-4)
        assert not np.allclose(found, whole)
