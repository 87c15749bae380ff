r"""The recipes of `configs/tasks/` beside published scores, with other positions.

    python -m t2t.sweep --sweep=configs/sweeps/published.py --config=configs/tasks/scan.py:FOLDER \
        --config.data.subset=addprim_jump --split=test --workdir=runs/scan

Published scores are known of `cogs` if "recogs" is in the folder's name (--split=gen
--checkpoint=best), of `scan` with the subset addprim_jump or jump (means alone), and of
`inflection` with the subsets eng_100, eng_500 and eng_1000 (--split=test --checkpoint=best).
Inflection has a third row, `unordered`, whose features have no order (`examples/features.py`), as
those of the published model.
"""

from t2t.config import Config
from t2t.evaluation.published import Published
from t2t.sweeps.sweep_rows import Row

SEEDS = (0, 1, 2)

RECOGS = Published(
    "ReCOGS: Wu, Manning and Potts 2023, github.com/frankaging/ReCOGS at 1b6eca8, five seeds. "
    "Learned positions, width 300, Adam at 1e-4, batches of 128, 200 to 300 epochs; whether "
    "scored by equal strings, as ours, or by equal sets of parts, is not said",
    {"exact_match": (83.63, 81.87, 85.00, 84.98, 84.65)},
    kinds={
        "obj_pp_to_subj_pp": (0.0, 0.0, 0.0, 0.0, 0.0),
        "cp_recursion": (0.6, 0.0, 0.4, 0.5, 1.1),
        "pp_recursion": (4.2, 4.9, 5.1, 5.1, 5.2),
        "subj_to_obj_proper": (87.6, 90.2, 95.1, 98.1, 91.2),
        "prim_to_obj_proper": (80.8, 86.4, 92.2, 86.9, 93.4),
        "prim_to_subj_proper": (93.4, 94.5, 99.8, 99.8, 99.5),
    },
)
# Means over seeds, with standard errors of 9.5 and 2.0, by kind of positions.
SCAN = {"relative": 43.0, "sinusoidal": 3.4}
# Accuracy of one seed, by subset.
SIGMORPHON = {"eng_100": 21.67, "eng_500": 78.17, "eng_1000": 84.83}


def get_rows(base: Config) -> list[Row]:
    """Returns the recipe, and the recipe with other positions, three seeds each."""
    other = "sinusoidal" if base.model.position == "relative" else "relative"
    rows = [
        Row("base", seeds=SEEDS, published=find_published(base, base.model.position)),
        Row(other, {"model.position": other}, seeds=SEEDS, published=find_published(base, other)),
    ]
    if base.data.source == "inflection":
        features = {"plugins": ("examples.features",), "model.kind": "features"}
        rows.append(Row("unordered", features, seeds=SEEDS, published=rows[0].published))
    return rows


def find_published(base: Config, position: str) -> Published | None:
    """Returns the published scores of a recipe with these positions, if there are some."""
    data = base.data
    is_recogs = data.source == "cogs" and "recogs" in data.directory.lower()
    if is_recogs and position == base.model.position:
        return RECOGS
    if data.source == "scan" and data.subset in ("jump", "addprim_jump") and position in SCAN:
        return Published(
            "SCAN, add jump: Chaabouni, Dessi and Kharitonov 2021, table 3, means with standard "
            "errors of 9.5 (relative) and 2.0 (absolute positions); read at second hand",
            {"exact_match": (SCAN[position],)},
            is_comparable=False,
        )
    if data.source == "inflection" and data.subset in SIGMORPHON and position == "sinusoidal":
        return Published(
            "SIGMORPHON 2022, github.com/sigmorphon/2022InflectionST at e96ceb6, one seed: the "
            "model of Wu, Cotterell and Hulden 2021. Features without order, 4 and 4 layers of "
            "width 256, Adam at 1e-3, 20,000 steps of 400 words",
            {"exact_match": (SIGMORPHON[data.subset],)},
        )
    return None
