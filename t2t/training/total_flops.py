"""The FLOPs of a whole training, known before it begins."""

import numpy as np

from t2t.config.fields import Config
from t2t.data.objectives import choose_objective, count_sentinels
from t2t.ops.flops import train_flops

LENGTH = 25  # sub-words per sentence, on either side, for which operations are counted


def count_flops(config: Config, tgt_vocab_size: int) -> int:
    """Counts the FLOPs of the whole training, with full batches of `LENGTH`-long sentences."""
    sides = np.array([LENGTH]), np.array([LENGTH])
    if config.data.is_text_alone:
        sentinels = max(config.tokenizer.sentinels, count_sentinels(config.data))
        objective = choose_objective(config.data, range(sentinels))
        sides = objective.find_lengths((np.ones_like(sides[0]), sides[1]))
    rows = max(config.data.batch_tokens // int(np.max(sides)), 1)
    src, tgt = (np.repeat(side, rows) for side in sides)
    flops = train_flops(config.model, tgt_vocab_size, src, tgt)
    return round(config.training.steps * config.training.num_passes * flops)
