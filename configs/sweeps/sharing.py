r"""Several directions in one run: one model, own decoders, own encoders, or all stacks apart.

    languages=(en-de de-en en-fr fr-en de-fr fr-de)
    python -m t2t.sweep --sweep=configs/sweeps/sharing.py --config=configs/multi30k.py \
        --workdir=runs/sharing --other_tasks=all --task=en-de \
        "${languages[@]/#/--config.data.directions=}"

base is one model for all directions. With stacks of their own, as large as base's, rows have base's
FLOPs and more parameters. Rows that end in -narrow have about base's parameters and narrower
stacks, so fewer FLOPs. All rows see the same text in equally many steps. A batch of a row with own
stacks has one encoder and one decoder. The report has verdicts for each direction.
"""

from typing import Any

from t2t.config import Config, ConfigError
from t2t.scaling.rungs import match_width
from t2t.sweeps.sweep_rows import Row

SEEDS = (0, 1, 2)
STACKS = {
    "own-decoders": {"data.decoder": "{tgt}"},
    "own-encoders": {"data.encoder": "{src}"},
    "apart": {"data.encoder": "{src}-{tgt}", "data.decoder": "{src}-{tgt}"},
}


def get_rows(base: Config) -> list[Row]:
    """Returns the rows, three seeds each.

    Raises:
        ConfigError: the base has fewer than two directions.
    """
    if len(base.data.directions) < 2:
        raise ConfigError(
            f"data.directions={base.data.directions} are no two; give the directions that one "
            "model learns, such as --config.data.directions=en-de --config.data.directions=en-fr"
        )
    rows: dict[str, dict[str, Any]] = {"base": {}}
    for name, stacks in STACKS.items():
        rows[name] = stacks
        rows[f"{name}-narrow"] = stacks | match_width(base, stacks)
    return [Row(name, changes, seeds=SEEDS) for name, changes in rows.items()]
