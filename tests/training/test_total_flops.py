"""FLOPs of a whole training of several tasks, beside counts by hand."""

from typing import Any

import numpy as np
import pytest

from t2t.config.fields import Config
from t2t.ops.flops import train_flops
from t2t.training.total_flops import count_flops, count_target_tokens
from tests.tiny_training import change

# Of 25 sub-words 24 are text, of which round(0.15 * 24) = 4 are left out, in one span: 25 - 4 + 1
# in the source, 4 + 1 + 1 in the target. Rows are 2500 // 25 and 2500 // 22.
TRANSLATE, FILL = (100, 25, 25), (113, 22, 6)
MIXTURE = ("translate: prefix=<2de>", "fill: objective=span_corruption prefix=<fill>")


def count(rows: int, src: int, tgt: int) -> int:
    model = Config().model
    return train_flops(model, 400, np.full(rows, src), np.full(rows, tgt))


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        # Until step 40 fill alone; then an epoch has half as many texts as pairs.
        ({"stages": ("40: 0,1", "1,0.5")}, [(40, 0, 1), (60, 1, 0.5)]),
        ({"train_weights": (2, 0.5)}, [(100, 2, 0.5)]),
        ({"temperature": 5.0}, [(100, 1, 1)]),
        # Two files, each with the task's weight.
        ({"mixture": (MIXTURE[0], f"{MIXTURE[1]} source=text train_tgt=a,b train_weights=1,0.5"),
          "train_weights": (1, 2)}, [(100, 1, 3)]),
    ],
)  # fmt: skip
def test_tasks_count_by_their_weights_before_the_data_are_read(
    fields: dict[str, Any], parts: list[tuple[int, float, float]]
) -> None:
    data: dict[str, Any] = {"mixture": MIXTURE, "batch_tokens": 2500, **fields}
    config = change(Config(), data=data, training={"steps": 100})
    flops = tokens = 0.0
    for steps, *weights in parts:
        batches = np.array(weights) / (100, 113)  # of an epoch with one pair or text
        shares = batches / batches.sum()
        flops += float(steps * shares @ [count(*TRANSLATE), count(*FILL)])
        tokens += float(steps * shares @ [100 * 25, 113 * 6])
    assert count_flops(config, 400) == pytest.approx(flops)
    assert count_target_tokens(config) == pytest.approx(tokens, rel=1e-3)  # whole ones in a step
