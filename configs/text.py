r"""Your own parallel text: name the files on the command line, one sentence a line, plain or .gz.

    python -m t2t.train --config=configs/text.py --workdir=runs/mine \
        --config.data.train_src=train.en --config.data.train_tgt=train.de \
        --config.data.validation_src=dev.en --config.data.validation_tgt=dev.de

For several files repeat the flags; --config.data.train_weights=2,1 weighs them.
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
    """A model for some ten thousand to a million pairs; big corpora want configs/base.py's."""
    return Config(
        model=ModelConfig(num_layers=4, d_model=256, d_ff=1024, num_heads=4, dropout=0.3),
        data=DataConfig(source="text", max_length=128, batch_tokens=4096),
        tokenizer=TokenizerConfig(vocab_size=8000),
        training=TrainingConfig(steps=20_000, warmup_steps=2000, validate_every=500),
        checkpoints=CheckpointConfig(every=500),
    )
