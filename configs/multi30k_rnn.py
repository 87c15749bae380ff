"""A recurrent baseline on Multi30k: GRU with additive attention, 2.6M parameters.

    python -m t2t.train --config=configs/multi30k_rnn.py:en-de --workdir=runs/rnn-en-de
    python -m t2t.evaluate --workdir=runs/rnn-en-de --split=test --checkpoint=ema

Data, vocabulary and number of updates are those of configs/multi30k.py. The optimizer is Adam, and
a row of a batch holds one pair, since recurrence would carry the state over to the next one. The
number of parameters is nearly the same (2,622,144; the Transformer has 2,599,424). Most are in the
embedding table; the others are in one layer of width 192 per side, instead of four of width 128.
The norm of the gradient is clipped at 1, since recurrence makes gradients explode (Pascanu et al.
2013). t2t has not trained it to the end yet; benchmarks/LOG.md has its first steps.
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
        raise ConfigError(f"configs/multi30k_rnn.py:{pair}: name two languages, such as en-de")
    return Config(
        model=ModelConfig(kind="rnn", rnn_cell="gru", num_layers=1, d_model=192, dropout=0.2),
        data=DataConfig(
            source="multi30k",
            src_language=src_language,
            tgt_language=tgt_language,
            max_length=64,
            batch_tokens=1024,
            num_shapes=16,
            filters=("overlap",),
        ),
        tokenizer=TokenizerConfig(vocab_size=10_000, lowercase=True),
        training=TrainingConfig(
            steps=12_000,
            schedule="cosine",
            learning_rate=0.002,
            warmup_steps=500,
            adam_eps=1e-8,
            clip_norm=1.0,
            ema_decay=0.999,
            log_every=50,
            validate_every=1000,
        ),
        checkpoints=CheckpointConfig(every=1000),
        decoding=DecodingConfig(beam_size=5, alpha=1.4),
    )
