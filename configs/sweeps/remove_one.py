r"""Ablations: the Transformer without one of its parts per row.

    python -m t2t.sweep --sweep=configs/sweeps/remove_one.py --config=configs/quickstart.py \
        --workdir=runs/remove_one --seeds=3 --tune=training.learning_rate=x0.5,x1,x2

The row no_warmup has the base's peak rate from the start. With noam and inverse_sqrt, whose fall
depends on the warm-up, it keeps this rate to the end.

The last row moves the norm: post-norm if the base has pre-norm, and the other way round.
"""

from t2t.config import Config
from t2t.sweeps.sweep_rows import Row


def get_rows(base: Config) -> list[Row]:
    """Returns the rows, one seed each."""
    model = base.model
    one_head = {
        "model.num_heads": 1,
        "model.d_k": model.num_heads * model.key_width,
        "model.d_v": model.num_heads * model.value_width,
    }
    if model.num_kv_heads is not None:
        one_head["model.num_kv_heads"] = 1
    other = "post" if model.norm_position == "pre" else "pre"
    return [
        Row("base"),
        Row("no_residual", {"model.residual": False}),
        Row("no_norm", {"model.norm": "none"}),
        Row("no_feed_forward", {"model.feed_forward": "none"}),
        Row("one_head", one_head),
        Row("no_positions", {"model.position": "none"}),
        Row("no_scaling", {"model.attention_scale": False}),
        Row("no_warmup", start_at_peak(base)),
        Row("no_label_smoothing", {"training.label_smoothing": 0.0}),
        Row(f"{other}_norm", {"model.norm_position": other}),
    ]


def start_at_peak(base: Config) -> dict[str, object]:
    """Overrides that leave out the warm-up and keep the peak rate."""
    training = base.training
    changes: dict[str, object] = {"training.warmup_steps": 1}
    if training.schedule in ("noam", "inverse_sqrt"):
        peak = training.learning_rate
        if training.schedule == "noam":
            peak = float(f"{training.noam_peak(base.model.reference_width):.4g}")
        changes |= {"training.schedule": "constant", "training.learning_rate": peak}
    return changes
