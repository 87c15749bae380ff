r"""Few pairs: from scratch, from a model of another pair of languages, and from text alone.

    experiments/transfer.sh RUNS

trains RUNS/translation and RUNS/spans, with which the rows begin, and runs this sweep in RUNS with
300, 1,000 and all pairs. All rows have one vocabulary and one recipe.
"""

from t2t.config import Config
from t2t.sweeps.sweep_rows import Row

SEEDS = (0, 1, 2)


def get_rows(_: Config) -> list[Row]:
    """Returns the rows, three seeds each; base starts from scratch."""
    return [
        Row("base", seeds=SEEDS),
        Row("from-translation", {"training.init_from": "translation"}, seeds=SEEDS),
        Row("from-spans", {"training.init_from": "spans"}, seeds=SEEDS),
    ]
