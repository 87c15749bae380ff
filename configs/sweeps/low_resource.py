r"""Ablations for small corpora: the recipe without one regulariser per row, three seeds each.

    python -m t2t.sweep --sweep=configs/sweeps/low_resource.py --config=configs/multi30k.py:en-de \
        --config.training.r_drop=5 --config.data.subword_sampling=0.1 \
        --measure=bleu_multi30k --workdir=runs/low_resource

A row appears only if the base has what the row removes. R-Drop runs each batch twice, so a step
without it takes half the time. Two rows are without R-Drop: one with the base's steps, one with
twice as many. The row less_dropout keeps a third of the dropout, and the row cased keeps upper
case, which the measure ignores. The row original_pairs leaves out the source `text` of a base such
as data.source=multi30k+text, which holds translations (docs/training.md), and the row adam has Adam
where the base has Muon.
"""

from t2t.config import Config
from t2t.sweeps.sweep_rows import Row

SEEDS = (0, 1, 2)


def get_rows(base: Config) -> list[Row]:
    """Returns the rows, three seeds each."""
    training = base.training
    average = "ema" if training.ema_decay else ""
    no_r_drop: dict[str, object] = {"training.r_drop": 0.0}
    changes = {"base": {}, "no_r_drop": no_r_drop}
    if training.r_drop:
        changes["no_r_drop_as_long"] = no_r_drop | {"training.steps": 2 * training.steps}
    original, *added = base.data.source.split("+")
    if added == ["text"]:
        fields = "data.train_src", "data.train_tgt", "data.train_weights"
        changes["original_pairs"] = {"data.source": original} | dict.fromkeys(fields, ())
    changes["no_subword_sampling"] = {"data.subword_sampling": 0.0}
    changes["cased"] = {"tokenizer.lowercase": False}
    changes["no_label_smoothing"] = {"training.label_smoothing": 0.0}
    changes["less_dropout"] = {"model.dropout": round(base.model.dropout / 3, 4)}
    if training.optimizer == "muon":
        changes["adam"] = {"training.optimizer": "adam"}
    rows = [Row(name, change, seeds=SEEDS, checkpoint=average) for name, change in changes.items()]
    if average:
        rows.append(Row("no_average", {"training.ema_decay": 0.0}, seeds=SEEDS, checkpoint="last"))
    return rows
