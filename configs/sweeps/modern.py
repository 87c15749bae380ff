r"""Improvements published after the paper, one change per row.

    python -m t2t.sweep --sweep=configs/sweeps/modern.py --config=configs/multi30k.py:en-de \
        --workdir=runs/modern --seeds=3 --tune=training.learning_rate=x0.5,x1,x2

Rows that equal the base, or do not apply to it, are left out. The paper's own choices,
sinusoidal positions and post-norm, are rows for base recipes that have others.
"""

from t2t.config import Config
from t2t.sweeps.sweep_rows import Row


def get_rows(base: Config) -> list[Row]:
    """Returns the rows, one seed each."""
    model, training = base.model, base.training
    encoder, decoder = model.depth
    some = []
    if model.feed_forward in ("relu", "gelu"):
        # Shazeer 2020: three matrices instead of two, so two thirds of the width.
        swiglu = {"model.feed_forward": "swiglu", "model.d_ff": model.d_ff // 12 * 8}
        some += [Row("swiglu", swiglu)]
        some += [Row("silu", {"model.feed_forward": "silu"})]  # Ramachandran et al. 2017, as Swish
        some += [Row("no_biases", {"model.feed_forward_bias": False})]  # Raffel et al. 2020
    if model.kv_heads == model.num_heads and model.num_heads % 2 == 0:
        # Ainslie et al. 2023: two heads share a key and a value.
        some += [Row("grouped_query", {"model.num_kv_heads": model.num_heads // 2})]
    if base.data.packed_length and base.tokenizer.kind == "bpe":
        # Provilkov et al. 2020: the text is segmented anew, at random, in each epoch.
        some += [Row("bpe_dropout", {"data.subword_sampling": 0.1})]
    if model.dropout:
        # Liang et al. 2021, with their weight.
        some += [Row("r_drop", {"training.r_drop": 5.0})]
    return [
        Row("base"),
        Row("sinusoidal", {"model.position": "sinusoidal"}),
        Row("rotary", {"model.position": "rotary"}),  # Su et al. 2021
        Row("alibi", {"model.position": "alibi"}),  # Press et al. 2022
        Row("relative", {"model.position": "relative"}),  # Raffel et al. 2020
        Row("post_norm", {"model.norm_position": "post"}),
        Row("pre_norm", {"model.norm_position": "pre"}),  # Xiong et al. 2020
        Row("rms_norm", {"model.norm": "rms"}),  # Zhang and Sennrich 2019
        # Kasai et al. 2021: the same number of layers, but decoding runs through only one.
        Row(
            "deep_encoder",
            {"model.encoder_layers": encoder + decoder - 1, "model.decoder_layers": 1},
        ),
        # Zhai et al. 2022: inverse square root that falls to 0 over the last fifth.
        Row(
            "cooldown",
            {
                "training.schedule": "noam" if training.schedule == "noam" else "inverse_sqrt",
                "training.cooldown_steps": max(training.steps - training.warmup_steps, 0) // 5,
            },
        ),
        # Jordan et al. 2024
        Row("muon", {"training.optimizer": "muon", "training.weight_decay": 0.0}),
        # Liu et al. 2025, with their weight decay.
        Row("muon_decay", {"training.optimizer": "muon", "training.weight_decay": 0.1}),
        # The exponential moving average of the parameters is scored instead of the last ones.
        Row("ema", {"training.ema_decay": 0.999}, checkpoint="ema"),
        *some,
    ]
