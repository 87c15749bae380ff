from typing import Any

import jax
import numpy as np
import pytest

from t2t.decoding.attention_weights import capture_weights
from tests import reference
from tests.model.small_models import COMBINED, SRC, TGT_IN, draw_model, vary


@pytest.mark.parametrize("name", [name for name in COMBINED if vary(name).kind == "transformer"])
def test_weights_agree_with_naive_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference tells its weights in the order of its calls, when values are unit vectors."""
    config, (structure, params) = vary(name), draw_model(name)
    found = jax.jit(capture_weights, static_argnums=0)(structure, params, SRC, TGT_IN)
    attend, told = reference.attend, list[reference.Rows]()

    def attend_and_tell(
        query: reference.Rows, keys: reference.Rows, values: reference.Rows, *others: Any
    ) -> reference.Rows:
        told.append(attend(query, keys, np.eye(len(keys)), *others))
        return attend(query, keys, values, *others)

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
