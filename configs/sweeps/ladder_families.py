r"""Ladders of three families side by side: a recipe, a prefix language model, a recurrent model.

    python -m t2t.sweep --sweep=configs/sweeps/ladder_families.py \
        --config=configs/multi30k.py:en-de --workdir=runs/ladders \
        --tune=training.learning_rate=x0.25,x0.5,x1,x2,x4 --tune_by_loss
    python -m t2t.predict_loss --ladder=runs/ladders

At each width of the recipe's rungs the others have about as many parameters, and as many FLOPs in
training, which grow with the square of the parameters. The rate of each family is tuned on its
smallest rung. --only=rung,rnn leaves out the prefix language model.
"""

from t2t.config import Config
from t2t.scaling.rungs import BY_FLOPS, list_rungs
from t2t.sweeps.family_rows import make_prefix_lm, make_recurrent
from t2t.sweeps.sweep_rows import Row

WIDTHS = (1 / 4, 5 / 16, 3 / 8, 1 / 2, 3 / 4)


def get_rows(base: Config) -> list[Row]:
    """Returns the rows, three seeds each."""
    families = {
        "prefix_lm": make_prefix_lm,
        "rnn": lambda config: make_recurrent(config, multiple=4),
    }
    return list_rungs(base, WIDTHS, rule=BY_FLOPS, families=families)
