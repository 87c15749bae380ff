r"""The families of Transformers from the same blocks, at equal parameters and at equal FLOPs.

    python -m t2t.sweep --sweep=configs/sweeps/families.py --config=configs/multi30k.py:en-de \
        --workdir=runs/families

The base has an encoder and a decoder. Rows of group P have as many layers as its parameters allow,
and its number of steps. Rows of group F have the same models, and as many steps as its training
FLOPs allow, with the same shares of warm-up and cooldown. The report states parameters and FLOPs of
each row (closed form, `t2t/ops/flops.py`).
"""

from dataclasses import replace
from typing import Any

from t2t.config import Config
from t2t.sweeps.family_rows import make_prefix_lm
from t2t.sweeps.sweep_rows import Row, match_depth, match_steps

SEEDS = (0, 1, 2)


def get_rows(base: Config) -> list[Row]:
    """Returns the rows, three seeds each."""
    deep = match_depth(base, replace(base.model, decoder_layers=1), "encoder_layers")
    families: dict[str, dict[str, Any]] = {
        "deep_encoder": {"model.encoder_layers": deep, "model.decoder_layers": 1},
        "prefix_lm": make_prefix_lm(base),
    }
    rows = [Row("base", seeds=SEEDS)]
    rows += [Row(f"P-{name}", changes, seeds=SEEDS) for name, changes in families.items()]
    for name, changes in families.items():
        rows.append(Row(f"F-{name}", {**changes, **match_steps(base, changes)}, seeds=SEEDS))
    return rows
