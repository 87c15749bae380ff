r"""The families of Transformers from the same blocks, at equal parameters and at equal FLOPs.

    python -m t2t.sweep --sweep=configs/sweeps/families.py --config=configs/multi30k.py:en-de \
        --workdir=runs/families

The base has an encoder and a decoder. Rows of group P have as many layers as its parameters allow,
and its number of steps. Rows of group F have the same models, and as many steps as its training
FLOPs allow. The report states parameters and FLOPs of each row (closed form, `t2t/model/flops.py`).
"""

from dataclasses import replace
from typing import Any

from t2t.config import Config
from t2t.config.fields import ModelConfig
from t2t.model.flops import count_parameters
from t2t.sweeps.sweep_rows import Row, match_steps

SEEDS = (0, 1, 2)


def get_rows(base: Config) -> list[Row]:
    """Returns the rows, three seeds each."""

    def count(model: ModelConfig) -> int:
        return count_parameters(model, base.tokenizer.vocab_size, base.tokenizer.vocab_size)

    def find_depth(model: ModelConfig, field: str) -> int:
        """Returns the number of layers with which the model has about base's parameters."""

        def miss(depth: int) -> int:
            changes: dict[str, Any] = {field: depth}
            return abs(count(replace(model, **changes)) - count(base.model))

        return min(range(1, 3 * sum(base.model.depth)), key=miss)

    deep_encoder = find_depth(replace(base.model, decoder_layers=1), "encoder_layers")
    prefix = replace(
        base.model, kind="decoder_only", encoder_layers=None, decoder_layers=None, num_layers=1
    )
    layers = find_depth(prefix, "num_layers")
    families: dict[str, dict[str, Any]] = {
        "deep_encoder": {"model.encoder_layers": deep_encoder, "model.decoder_layers": 1},
        "prefix_lm": {
            "model.kind": "decoder_only",
            "model.num_layers": layers,
            "model.encoder_layers": None,
            "model.decoder_layers": None,
        },
    }
    rows = [Row("base", seeds=SEEDS)]
    rows += [Row(f"P-{name}", changes, seeds=SEEDS) for name, changes in families.items()]
    for name, changes in families.items():
        steps = match_steps(base, changes)
        rows.append(Row(f"F-{name}", {**changes, "training.steps": steps}, seeds=SEEDS))
    return rows
