r"""A ladder: a recipe at several widths, with as many target tokens for each parameter.

    python -m t2t.sweep --sweep=configs/sweeps/ladder.py --config=configs/quickstart.py \
        --workdir=runs/ladder
    python -m t2t.predict_loss --ladder=runs/ladder

The recipe is the largest rung, `base`; the others are named rung-WIDTH. All have the base's rate,
or with --tune the one that is the best for the smallest rung. For other sizes, depths or amounts of
text copy this file and change what `list_rungs` is given.
"""

from t2t.config import Config
from t2t.scaling.rungs import list_rungs
from t2t.sweeps.sweep_rows import Row

# Of the base's width. Up to 1/2 the base has at least four times a rung's FLOPs, so these rungs can
# predict it: --held_out of t2t.predict_loss.
WIDTHS = (1 / 4, 5 / 16, 3 / 8, 1 / 2, 3 / 4)


def get_rows(base: Config) -> list[Row]:
    """Returns the rows, three seeds each."""
    return list_rungs(base, WIDTHS)
