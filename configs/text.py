r"""Your own parallel text, in files with one sentence per line, plain or .gz, .bz2, .xz, .zst.

    python -m t2t.train --config=configs/text.py --workdir=runs/mine \
        --config.data.train_src=train.en --config.data.train_tgt=train.de \
        --config.data.validation_src=dev.en --config.data.validation_tgt=dev.de

For several files repeat the flags; --config.data.train_weights=2,1 then uses the pairs of the first
file twice per epoch and those of the second once.
"""

from t2t.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)


def get_config() -> Config:
    """A model for ten thousand to a million pairs; for more, use the model of configs/base.py."""
    return Config(
        model=ModelConfig(num_layers=4, d_model=256, d_ff=1024, num_heads=4, dropout=0.3),
        data=DataConfig(source="text", max_length=128, batch_tokens=4096),
        tokenizer=TokenizerConfig(vocab_size=8000),
        training=TrainingConfig(steps=20_000, warmup_steps=2000, validate_every=500),
        checkpoints=CheckpointConfig(every=500),
    )
