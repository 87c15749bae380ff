"""The FLOPs and tokens of a whole training, known before it begins."""

import numpy as np
from jaxtyping import Int

from t2t.config.fields import Config
from t2t.data.directions import list_tasks
from t2t.data.objectives import choose_objective, count_sentinels
from t2t.ops.flops import train_flops

LENGTH = 25  # sub-words per sentence, on either side, for which operations are counted


def count_flops(config: Config, tgt_vocab_size: int) -> int:
    """Counts the FLOPs of the whole training, with full batches of `LENGTH`-long sentences.

    Of several tasks the batches are those of the main one.
    """
    src, tgt = _list_lengths(config)
    flops = train_flops(config.model, tgt_vocab_size, src, tgt)
    return round(config.training.steps * config.training.num_passes * flops)


def count_target_tokens(config: Config) -> int:
    """Counts the target tokens of the whole training, with the batches of `count_flops`."""
    _, tgt = _list_lengths(config)
    return config.training.steps * int(tgt.sum())


def _list_lengths(config: Config) -> tuple[Int[np.ndarray, "B"], Int[np.ndarray, "B"]]:
    """Returns the lengths of the source and of the target of each row of a batch."""
    sides = np.array([LENGTH]), np.array([LENGTH])
    data = list_tasks(config.data)[0]
    if data.is_text_alone:
        sentinels = max(config.tokenizer.sentinels, count_sentinels(data))
        objective = choose_objective(data, range(sentinels))
        sides = objective.find_lengths((np.ones_like(sides[0]), sides[1]))
    rows = max(config.data.batch_tokens // int(np.max(sides)), 1)
    src, tgt = (np.repeat(side, rows) for side in sides)
    return src, tgt
