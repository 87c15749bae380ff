r"""COGS and ReCOGS: sentences to logical forms, with new combinations to generalise to.

    python -m t2t.train --config=configs/tasks/cogs.py:FOLDER --workdir=runs/cogs
    python -m t2t.evaluate --workdir=runs/cogs --split=gen

FOLDER holds train.tsv, dev.tsv, test.tsv and gen.tsv as they are published, each line a sentence, a
meaning and a kind: github.com/najoungkim/COGS (Kim and Linzen 2020), or without variables
github.com/frankaging/ReCOGS (Wu et al. 2023). Scores of the split gen come by kind.

Layers are those of ReCOGS, 2 and 2. Positions are relative, and the optimiser is Muon, as in
configs/text.py.
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
            source="cogs",
            directory=folder,
            max_length=256,
            packed_length=256,
            batch_tokens=4096,
        ),
        tokenizer=TokenizerConfig(kind="symbols", vocab_size=2000),
        training=TrainingConfig(
            optimizer="muon",
            steps=4000,
            schedule="cosine",
            learning_rate=0.004,
            warmup_steps=200,
            log_every=50,
            validate_every=500,
            translate_every=500,
        ),
        checkpoints=CheckpointConfig(every=500, best_metric="exact_match"),
        decoding=DecodingConfig(beam_size=1, max_extra_length=150),
    )
