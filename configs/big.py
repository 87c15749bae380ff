"""The paper's big model on WMT14 (Vaswani et al. 2017, table 3, last row).

    python -m t2t.prepare --config=configs/big.py --workdir=runs/big
    python -m t2t.train --config=configs/big.py --workdir=runs/big
    python -m t2t.evaluate --workdir=runs/big --split=test --checkpoint=avg:20

The paper: 300,000 steps in 3.5 days on 8 P100; 28.4 tokenised BLEU on newstest2014 English-German
and 41.8 on English-French (`configs/big.py:en-fr`). t2t has not trained it yet.
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
        raise ConfigError(f"configs/big.py:{pair}: unknown pair; use en-de or en-fr")
    src_language, tgt_language = pair.split("-")
    return Config(
        model=ModelConfig(
            num_layers=6,
            d_model=1024,
            d_ff=4096,
            num_heads=16,
            dropout=0.3 if pair == "en-de" else 0.1,  # section 6.1
        ),
        data=DataConfig(
            source="tfds",
            src_language=src_language,
            tgt_language=tgt_language,
            tfds_name=f"wmt14_translate/{tgt_language}-{src_language}",
            max_length=256,
            packed_length=256,
            batch_tokens=25_000,
        ),
        tokenizer=TokenizerConfig(kind="bpe", vocab_size=37_000 if pair == "en-de" else 32_000),
        training=TrainingConfig(
            steps=300_000,
            schedule="noam",
            warmup_steps=4000,
            adam_b1=0.9,
            adam_b2=0.98,
            adam_eps=1e-9,
            label_smoothing=0.1,
        ),
        # The paper averages the last 20 checkpoints, written every 10 minutes (about 600 steps).
        checkpoints=CheckpointConfig(every=1000, keep_last=20, keep_best=1),
        decoding=DecodingConfig(beam_size=4, alpha=0.6, max_extra_length=50),
    )
