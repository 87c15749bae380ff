"""What came before the Transformer, on Multi30k: a GRU with additive attention, 2.6M parameters.

    python -m t2t.train --config=configs/multi30k_rnn.py:en-de --workdir=runs/rnn-en-de
    python -m t2t.evaluate --workdir=runs/rnn-en-de --split=test --checkpoint=avg:10

Data, vocabulary, batches, number of updates and number of parameters (2,622,144; the Transformer's
are 2,599,424) are those of configs/multi30k.py; both spend most of them on the table of words,
which one layer of 192 leaves as much room as the Transformer's eight of 128. Gradients are clipped
at 1, since recurrence makes them explode (Pascanu et al. 2013). Not trained to its end here yet:
of its start see benchmarks/LOG.md.
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
        raise ConfigError(f"configs/multi30k_rnn.py:{pair}: name two languages, as en-de")
    return Config(
        model=ModelConfig(kind="rnn", rnn_cell="gru", num_layers=1, d_model=192, dropout=0.2),
        data=DataConfig(
            source="multi30k",
            src_language=src_language,
            tgt_language=tgt_language,
            max_length=64,
            batch_tokens=1024,
            num_shapes=16,
        ),
        tokenizer=TokenizerConfig(vocab_size=10_000),
        training=TrainingConfig(
            steps=14_000,
            schedule="cosine",
            learning_rate=0.002,
            warmup_steps=500,
            adam_eps=1e-8,
            clip_norm=1.0,
            log_every=50,
            validate_every=560,
        ),
        checkpoints=CheckpointConfig(every=560, keep_last=10),
        decoding=DecodingConfig(beam_size=5, alpha=1.0),
    )
