r"""Does bfloat16 cost quality? The recipe in float32 and in `mixed`, three seeds each.

    python -m t2t.sweep --sweep=configs/sweeps/precision.py --config=configs/quickstart.py \
        --config.model.dtype=float32 --workdir=runs/precision

The row of the dtype that the base has is left out.
"""

from t2t.config import Config
from t2t.sweeps.sweep_rows import Row

SEEDS = (0, 1, 2)


def get_rows(base: Config) -> list[Row]:
    """Returns the base and the rows with another dtype, three seeds each."""
    others = (dtype for dtype in ("float32", "mixed") if dtype != base.model.dtype)
    return [
        Row("base", seeds=SEEDS),
        *(Row(dtype, {"model.dtype": dtype}, seeds=SEEDS) for dtype in others),
    ]
