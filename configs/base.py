"""The paper's base model on WMT14 (Vaswani et al. 2017, sections 5 and 6.1, table 3).

    python -m t2t.prepare --config=configs/base.py --workdir=runs/base
    python -m t2t.train --config=configs/base.py --workdir=runs/base
    python -m t2t.evaluate --workdir=runs/base --split=test --checkpoint=avg:5

The paper: 100,000 steps in 12 hours on 8 P100; 27.3 tokenised BLEU on newstest2014 English-German
and 38.1 on English-French (`configs/base.py:en-fr`). t2t has not trained it yet.
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
    """`pair` is "en-de" or "en-fr"."""
    if pair not in ("en-de", "en-fr"):
        raise ConfigError(f"configs/base.py:{pair}: unknown pair; use en-de or en-fr")
    src_language, tgt_language = pair.split("-")
    return Config(
        model=ModelConfig(num_layers=6, d_model=512, d_ff=2048, num_heads=8, dropout=0.1),
        data=DataConfig(
            source="tfds",
            src_language=src_language,
            tgt_language=tgt_language,
            tfds_name=f"wmt14_translate/{tgt_language}-{src_language}",
            max_length=256,
            packed_length=256,
            batch_tokens=25_000,
        ),
        # Section 5.1: about 37,000 byte pairs for German, 32,000 word pieces for French.
        tokenizer=TokenizerConfig(kind="bpe", vocab_size=37_000 if pair == "en-de" else 32_000),
        training=TrainingConfig(
            steps=100_000,
            schedule="noam",
            warmup_steps=4000,
            adam_b1=0.9,
            adam_b2=0.98,
            adam_eps=1e-9,
            label_smoothing=0.1,
        ),
        # The paper averages the last 5 checkpoints, written every 10 minutes (about 1,400 steps).
        checkpoints=CheckpointConfig(every=1000, keep_last=5, keep_best=1),
        decoding=DecodingConfig(beam_size=4, alpha=0.6, max_extra_length=50),
    )
