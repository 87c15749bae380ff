r"""Inflection: a lemma and features, letter by letter, to the form of the word.

    python -m t2t.train --config=configs/tasks/inflection.py:FOLDER --workdir=runs/inflection \
        --config.data.subset=eng_1000
    python -m t2t.evaluate --workdir=runs/inflection --split=test --checkpoint=best

FOLDER holds eng_1000.train, eng.dev and eng.gold as they are published, each line lemma, form and
features: github.com/sigmorphon/2022InflectionST, part 2 (Kodner et al. 2022), which has other
languages and sizes, too.

The published model (Wu, Cotterell and Hulden 2021) has 4 layers of width 256, and 20,000 steps of
Adam on batches of 400 words; features have no order there. Here it is smaller, with fewer steps and
Muon, and features are read in their order, unless flags of training ask for the example:

    --config.plugins=examples.features --config.model.kind=features
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
            norm_position="pre",
            dropout=0.3,
        ),
        data=DataConfig(
            source="inflection",
            directory=folder,
            max_length=64,
            packed_length=64,
            batch_tokens=2048,
        ),
        tokenizer=TokenizerConfig(kind="symbols", vocab_size=1000),
        training=TrainingConfig(
            optimizer="muon",
            steps=2000,
            schedule="cosine",
            learning_rate=0.004,
            warmup_steps=200,
            log_every=50,
            validate_every=200,
            translate_every=200,
        ),
        checkpoints=CheckpointConfig(every=200, best_metric="exact_match"),
        decoding=DecodingConfig(beam_size=1, max_extra_length=20),
    )
