r"""Fine-tuning: the model, vocabulary and parameters of a run, on your own parallel text.

    python -m t2t.train --config=configs/fine_tune.py:RUN --workdir=runs/tuned \
        --config.data.train_src=train.en --config.data.train_tgt=train.de \
        --config.data.validation_src=dev.en --config.data.validation_tgt=dev.de

RUN is any run directory, also in a bucket. Its best checkpoint by validation is taken, or the last
one if there is none; --init_from=RUN:CHECKPOINT takes another one. Sources begin with its
data.prefix, of several tasks that of the first. The rate, the number of steps and the dropout are a
start, not tuned: a large model and little text want a lower rate, fewer steps and more dropout
(docs/fine-tuning.md).
"""

import dataclasses

from t2t.config import CheckpointConfig, Config, DataConfig, TokenizerConfig, TrainingConfig
from t2t.config.files import load_run_config
from t2t.config.mixture import read_mixture


def get_config(run: str) -> Config:
    """`run` is a run directory; its data and training are left out, its batches are kept."""
    base = load_run_config(run)
    # An import adds this bias only to bar ids that are no outputs of the original.
    only_bars = "output_bias" in base.training.frozen
    # A run has this dtype because of its CPU (`resume.settle_dtype`), which need not be this one's.
    dtype = "auto" if base.model.dtype == "mixed" else base.model.dtype
    kept = (
        "src_language tgt_language directions direction_tags prefix max_length batch_tokens "
        "packed_length length_multiple rows_multiple"
    ).split()
    data, *_ = read_mixture(base.data)
    batches = {name: getattr(data, name) for name in kept}
    return Config(
        model=dataclasses.replace(base.model, dtype=dtype),
        data=DataConfig(source="text", **batches),
        tokenizer=TokenizerConfig(path=f"{run}/vocab"),
        training=TrainingConfig(
            init_from=run,
            steps=2000,
            schedule="cosine",
            learning_rate=0.0001,
            warmup_steps=100,
            clip_norm=1.0,
            frozen=("output_bias",) if only_bars else (),
            label_smoothing=base.training.label_smoothing,
            validate_every=200,
            log_every=50,
        ),
        checkpoints=CheckpointConfig(every=200),
        decoding=base.decoding,
        plugins=base.plugins,
        plugin=base.plugin,
    )
