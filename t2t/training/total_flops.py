"""The FLOPs and tokens of a whole training, by formula: before it begins, or of one that was made.

Batches are full, of sentences with `LENGTH` sub-words. Of a run of several tasks each task's
batches are counted by themselves, and a step is their mean. The weights are the tasks' shares of
all batches. They follow from the shares of sub-words that the run has recorded in its ledger
(`measure_stages`). Before the data are read they follow from `data.train_weights` or `data.stages`,
as if all corpora were equally large. A batch of own stacks (`data.encoder`, `data.decoder`) costs
what it costs a plain model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from t2t.config.fields import Config, DataConfig
from t2t.data.directions import list_tasks
from t2t.data.objectives import choose_objective, count_sentinels
from t2t.data.stages import assume_stages, share_tasks
from t2t.ops.flops import train_flops

LENGTH = 25  # sub-words per sentence, on either side, for which operations are counted
Stages = Sequence[Mapping[str, Any]]  # the ledger's "stages"; empty: nothing is recorded
Lengths = Int[np.ndarray, "B"]


def count_flops(config: Config, tgt_vocab_size: int, recorded: Stages = ()) -> int:
    """Counts the FLOPs of the whole training."""

    def count(src: Lengths, tgt: Lengths) -> int:
        return train_flops(config.model, tgt_vocab_size, src, tgt)

    return round(config.training.num_passes * _sum_steps(config, count, recorded))


def count_target_tokens(config: Config, recorded: Stages = ()) -> int:
    """Counts the target tokens of the whole training, with the batches of `count_flops`."""
    return _sum_steps(config, lambda src, tgt: int(tgt.sum()), recorded)


def _sum_steps(config: Config, count: Callable[[Lengths, Lengths], int], recorded: Stages) -> int:
    """Adds up what `count` returns for a batch, over all steps."""
    tasks = {task.task: _list_lengths(config, task) for task in list_tasks(config.data)}
    counts = {name: count(*sides) for name, sides in tasks.items()}
    if recorded:
        stages = share_tasks(recorded, config.training.steps, "subwords")
        sizes = {name: int(src.sum() + tgt.sum()) for name, (src, tgt) in tasks.items()}
    else:
        stages = share_tasks(assume_stages(config.data), config.training.steps, "pairs")
        sizes = {name: len(src) for name, (src, _) in tasks.items()}
    total = 0
    for steps, shares in stages:
        batches = {name: share / sizes[name] for name, share in shares.items()}
        whole = sum(batches.values())
        total += steps * round(sum(each / whole * counts[name] for name, each in batches.items()))
    return total


def _list_lengths(config: Config, data: DataConfig) -> tuple[Lengths, Lengths]:
    """Returns the lengths of the source and of the target of each row of a task's batch."""
    sides = np.array([LENGTH]), np.array([LENGTH])
    if data.is_text_alone:
        sentinels = max(config.tokenizer.sentinels, count_sentinels(data))
        objective = choose_objective(data, range(sentinels))
        sides = objective.find_lengths((np.ones_like(sides[0]), sides[1]))
    rows = max(config.data.batch_tokens // int(np.max(sides)), 1)
    src, tgt = (np.repeat(side, rows) for side in sides)
    return src, tgt
