r"""SCAN: commands to actions, with a verb that training shows only alone.

    python -m t2t.train --config=configs/tasks/scan.py:FOLDER --workdir=runs/scan
    python -m t2t.evaluate --workdir=runs/scan --split=test --checkpoint=last

FOLDER holds files with train and test in their names, as they are published, of lines such as
"IN: jump twice OUT: I_JUMP I_JUMP": github.com/brendenlake/SCAN (Lake and Baroni 2018). Of a folder
with several sets name one by --config.data.subset=addprim_jump.

SCAN has no validation set, so the last checkpoint is scored. Actions are up to 48 for a command of
9 words.
"""

from t2t.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)


def get_config(folder: str = "") -> Config:
    """Returns the config of the recipe; `folder` has the published files."""
    return Config(
        model=ModelConfig(
            num_layers=2,
            d_model=128,
            d_ff=512,
            num_heads=4,
            position="relative",
            norm_position="pre",
            dropout=0.1,
        ),
        data=DataConfig(
            source="scan",
            directory=folder,
            max_length=64,
            packed_length=64,
            max_length_ratio=0,
            batch_tokens=2048,
        ),
        tokenizer=TokenizerConfig(kind="symbols", vocab_size=100),
        training=TrainingConfig(
            optimizer="muon",
            steps=2000,
            schedule="cosine",
            learning_rate=0.004,
            warmup_steps=100,
            log_every=50,
        ),
        checkpoints=CheckpointConfig(every=500, keep_best=0),
        decoding=DecodingConfig(beam_size=1, max_extra_length=60),
    )
