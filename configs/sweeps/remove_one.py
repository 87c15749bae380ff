r"""The Transformer without one of its parts: what each of them is worth.

    python -m t2t.sweep --sweep=configs/sweeps/remove_one.py --config=configs/quickstart.py \
        --workdir=runs/remove_one

The last row puts the norm where the base does not have it.
"""

from t2t.config import Config
from t2t.sweeps.sweep_rows import Row


def get_rows(base: Config) -> list[Row]:
    """One seed each."""
    model = base.model
    one_head = {
        "model.num_heads": 1,
        "model.d_k": model.num_heads * model.key_width,
        "model.d_v": model.num_heads * model.value_width,
    }
    other = "post" if model.norm_position == "pre" else "pre"
    return [
        Row("base"),
        Row("no_residual", {"model.residual": False}),
        Row("no_norm", {"model.norm": "none"}),
        Row("no_feed_forward", {"model.feed_forward": "none"}),
        Row("one_head", one_head),
        Row("no_positions", {"model.position": "none"}),
        Row("no_scaling", {"model.attention_scale": False}),
        Row("no_warmup", {"training.warmup_steps": 1}),
        Row("no_label_smoothing", {"training.label_smoothing": 0.0}),
        Row(f"{other}_norm", {"model.norm_position": other}),
    ]
