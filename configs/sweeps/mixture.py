r"""Few pairs and much text of either side: translation alone, denoising before it, or both at once.

    experiments/mixture.sh RUNS

makes the text, the vocabulary and the back-translations, and runs this sweep in RUNS. All rows have
one vocabulary, one recipe and equally many steps. Mixtures, and training with back-translations,
have a row each with four, one and a quarter texts for each pair; choose among them on the
validation split. The row back-short takes about as many core-minutes as the others with the model
that translates back and its translations; both models have two fifths of the steps.
"""

from typing import Any

from t2t.config import Config
from t2t.sweeps.sweep_rows import Row

SEEDS = (0, 1, 2)
RATIOS = 4.0, 1.0, 0.25  # texts for each pair
PAIRS, TEXTS = 1_000, 28_000  # texts of each side
# As in mBART (Liu et al. 2020): 35% of a text in spans of 3.5 on average, and the symbol of the
# language that is to be written in front of each source.
DENOISING = "objective=denoising noise_density=0.35 mean_span_length=3.5"
TASKS = (
    "translate: prefix=<2de>",
    f"german: {DENOISING} train_tgt=text/rest.de validation_tgt=text/val.de prefix=<2de>",
    f"english: {DENOISING} train_tgt=text/rest.en validation_tgt=text/val.en tgt_language=en "
    "prefix=<2en>",
)


def get_rows(base: Config) -> list[Row]:
    """Returns the rows, three seeds each; base translates alone."""
    steps, data = base.training.steps, base.data
    first = (f"{steps // 2}: 0,1,1", "1,0,0")

    def add_translations(sources: str, share: float) -> dict[str, Any]:
        return {
            "data.train_src": (*data.train_src, sources),
            "data.train_tgt": (*data.train_tgt, "text/rest.de"),
            "data.train_weights": (1.0, share),
        }

    rows: dict[str, dict[str, Any]] = {
        "base": {},
        "denoising-first": {"data.mixture": TASKS, "data.stages": first},
    }
    for ratio in RATIOS:
        share = ratio * PAIRS / TEXTS
        rows[f"mixture-{ratio:g}"] = {
            "data.mixture": TASKS,
            "data.train_weights": (1.0, share / 2, share / 2),
        }
        rows[f"back-{ratio:g}"] = add_translations("text/back.en", share)
    short = add_translations("text/back-short.en", PAIRS / TEXTS)
    rows["back-short"] = {**short, "training.steps": 2 * steps // 5}
    return [Row(name, changes, seeds=SEEDS) for name, changes in rows.items()]
