"""The paper's big model on WMT14 (Vaswani et al. 2017, table 3, last row).

    python -m t2t.prepare --config=configs/big.py --workdir=runs/big
    python -m t2t.train --config=configs/big.py --workdir=runs/big
    python -m t2t.evaluate --workdir=runs/big --split=test --checkpoint=avg:20

The paper: 300,000 steps in 3.5 days on 8 P100; 28.4 tokenised BLEU on newstest2014 English-German
and 41.8 on English-French (`configs/big.py:en-fr`). t2t has not trained it yet.
"""

import runpy
from pathlib import Path

from t2t.config import Config, ConfigError


def get_config(pair: str = "en-de") -> Config:
    """The base model's recipe with another size; `pair` is "en-de" or "en-fr"."""
    if pair not in ("en-de", "en-fr"):
        raise ConfigError(f"configs/big.py:{pair}: unknown pair; use en-de or en-fr")
    base = runpy.run_path(str(Path(__file__).with_name("base.py")))
    config: Config = base["get_config"](pair)
    config.model.d_model, config.model.d_ff, config.model.num_heads = 1024, 4096, 16
    config.model.dropout = 0.3 if pair == "en-de" else 0.1  # section 6.1
    config.training.steps = 300_000
    # The paper averages the last 20 checkpoints, written every 10 minutes (about 600 steps).
    config.checkpoints.keep_last = 20
    return config
