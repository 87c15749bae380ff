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

import runpy
from pathlib import Path

from t2t.config import Config, ConfigError, ModelConfig


def get_config(pair: str = "en-de") -> Config:
    """`pair` is two of en, de, fr: "en-de"."""
    if "-" not in pair:
        raise ConfigError(f"configs/multi30k_rnn.py:{pair}: name two languages, such as en-de")
    transformer = runpy.run_path(str(Path(__file__).with_name("multi30k.py")))
    config: Config = transformer["get_config"](pair)
    config.model = ModelConfig(kind="rnn", rnn_cell="gru", num_layers=1, d_model=192, dropout=0.2)
    config.data.packed_length, config.data.num_shapes = 0, 16
    config.training.optimizer, config.training.learning_rate = "adam", 0.002
    config.training.clip_norm = 1.0
    return config
