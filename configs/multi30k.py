"""Multi30k (Elliott et al. 2016): 29,000 image captions in English, German and French.

The data are for research and education, not for commercial use.

    python -m t2t.train --config=configs/multi30k.py:en-de --workdir=runs/en-de
    python -m t2t.evaluate --workdir=runs/en-de --split=test --checkpoint=ema

Text is lower-cased, as in the literature. The recipe takes 75 to 100 minutes on one x86-64 core.
It has no test score yet. `configs/pipelines/multi30k.py` also trains on translations of the
training text: 41.6 BLEU, the mean of three seeds (docs/results.md), on test_2016_flickr by the
measure of Wu et al. (2021), whose model of 2.6M parameters has 41.02. Unlike the model of Wu et al.
and the paper's, this model has pre-norm and rotary positions: its cross-attention learns to use the
source within minutes; with post-norm this takes most of an hour (benchmarks/LOG.md).
"""

from t2t.config import (
    CheckpointConfig,
    Config,
    ConfigError,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)


def get_config(pair: str = "en-de") -> Config:
    """`pair` is two of en, de, fr: "en-de"."""
    src_language, dash, tgt_language = pair.partition("-")
    if not dash:
        raise ConfigError(f"configs/multi30k.py:{pair}: name two languages, such as en-de")
    return Config(
        model=ModelConfig(
            num_layers=4,
            d_model=128,
            d_ff=256,
            num_heads=4,
            position="rotary",
            norm_position="pre",
            dropout=0.25,
        ),
        data=DataConfig(
            source="multi30k",
            src_language=src_language,
            tgt_language=tgt_language,
            max_length=64,
            batch_tokens=1024,
            packed_length=64,
            filters=("overlap",),
        ),
        tokenizer=TokenizerConfig(vocab_size=10_000, lowercase=True),
        training=TrainingConfig(
            optimizer="muon",
            steps=12_000,
            schedule="cosine",
            learning_rate=0.003,
            warmup_steps=500,
            adam_eps=1e-8,
            clip_norm=25.0,
            ema_decay=0.999,
            log_every=50,
            validate_every=1000,
        ),
        checkpoints=CheckpointConfig(every=1000),
        decoding=DecodingConfig(beam_size=5, alpha=1.4),
    )
