import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from t2t.decoding.attention_weights import (
    HeadWeights,
    capture_weights,
)
from t2t.model.interface import Params
from tests import reference
from tests.model.small_models import (
    SMALL,
    SRC,
    TGT_IN,
    VARIANTS,
    Structure,
    combine_variants,
    draw_params,
    name_fields,
    vary,
)

# What attention or the order of layers depends on. Other variants change its inputs alone.
FIELDS = set(
    "num_layers encoder_layers decoder_layers num_heads num_kv_heads d_k d_v attention_scale "
    "position norm_position".split()
)
WEIGHED = [name for name, changes in VARIANTS.items() if not changes or FIELDS & changes.keys()]
WEIGHED = [name for name in WEIGHED if vary(name).kind == "transformer"]


def weigh_all(structure: Structure, params: Params) -> HeadWeights:
    found: HeadWeights = jax.jit(capture_weights, static_argnums=0)(structure, params, SRC, TGT_IN)
    return found


@pytest.mark.parametrize("changes", combine_variants(WEIGHED), ids=name_fields)
def test_weights_agree_with_naive_numpy(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference tells its weights in the order of its calls, when values are unit vectors."""
    config = dataclasses.replace(SMALL, **changes)
    structure, params = draw_params(config)
    found, told = weigh_all(structure, params), []
    attend = reference.attend

    def attend_and_tell(
        query: reference.Rows,
        keys: reference.Rows,
        values: reference.Rows,
        visible: reference.Rows,
        bias: reference.Rows | None = None,
        scaled: bool = True,
    ) -> reference.Rows:
        told.append(attend(query, keys, np.eye(len(keys)), visible, bias, scaled))
        return attend(query, keys, values, visible, bias, scaled)

    monkeypatch.setattr(reference, "attend", attend_and_tell)
    parameters = jax.tree.map(lambda x: np.asarray(x, float), params)
    reference.transform(parameters, config, SRC[0].tolist(), TGT_IN[0].tolist())

    encoder_depth, decoder_depth = config.depth
    heads = range(config.num_heads)
    wanted = [found.encoder[layer, 0, h] for layer in range(encoder_depth) for h in heads]
    for layer in range(decoder_depth):
        wanted += [stack[layer, 0, h] for stack in (found.decoder, found.cross) for h in heads]
    assert len(told) == len(wanted)
    for one, other in zip(told, wanted, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)
