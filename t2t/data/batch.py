"""The key of dimension names, and `Batch`, the input of a training or evaluation step.

Shapes in the whole project use these letters, unless a file says otherwise:

    B  rows (sentences, or packed rows)   H  attention heads
    S  source positions                   G  key/value heads (H, unless heads share them)
    T  target positions                   K  width of a query or a key (d_k)
    L  cached target positions            U  width of a value (d_v)
    D  d_model                            V  vocabulary
    F  d_ff                               W  beam
    N  layers
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np
from jaxtyping import Int

PAD_ID = 0  # fills the rest of a row; has no weight in the loss
BOS_ID = 1  # the first decoder input
EOS_ID = 2  # ends every sentence, source and target
UNK_ID = 3  # a character that the vocabulary does not contain


AnyArray = TypeVar("AnyArray")


class Batch(NamedTuple, Generic[AnyArray]):
    """Sentence pairs, padded to one shape; `tgt_in` is the target shifted right by one."""

    src: AnyArray  # int B S: w1 ... wn EOS PAD ...
    tgt_in: AnyArray  # int B T: BOS w1 ... wm PAD ...
    tgt_out: AnyArray  # int B T: w1 ... wm EOS PAD ...
    weights: AnyArray  # float B T: 1 where tgt_out is a real token, else 0


HostBatch: TypeAlias = Batch[np.ndarray]  # the rows of one process
DeviceBatch: TypeAlias = Batch[jax.Array]  # all rows, sharded over the mesh


def pad_sentences(
    sentences: Sequence[Sequence[int]], rows: int, width: int
) -> Int[np.ndarray, "B T"]:
    """Ids [rows, width] in int32: each sentence padded on the right, then empty rows."""
    padded = np.full((rows, width), PAD_ID, np.int32)
    for row, ids in enumerate(sentences):
        padded[row, : len(ids)] = ids
    return padded
