"""Measures the training throughput of the Flax WMT example on packed rows.

Prints one line of JSON. Dropout is that of t2t's recipes; products are bfloat16.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.contestants.train_t2t import make_config
from benchmarks.flax_wmt import Example
from benchmarks.workload import PAD_ID, SIZES, number_sentences, pack_rows, print_speed


def main() -> None:
    """Compiles the step, then trains for `--seconds`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True, help="of github.com/google/flax")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--positions", type=int, default=2048, help="positions of a batch per side")
    parser.add_argument("--packed_rows", type=int, required=True, help="length of the rows")
    arguments = parser.parse_args()
    size, length = SIZES[arguments.size], arguments.packed_rows
    model = make_config(size, "auto", arguments.positions).model
    devices = jax.devices()[:1]
    step, create, (whole, split) = Example(arguments.checkout).make(
        model, size.vocab_size, devices, length, "recipe"
    )
    src, tgt = pack_rows(size, arguments.positions // length, length)
    batch: dict[str, Any] = {}
    for side, ids in (("inputs", src), ("targets", tgt)):
        numbers, places = (each.astype(np.int32) for each in number_sentences(ids))
        batch |= {side: ids, f"{side}_position": places, f"{side}_segmentation": numbers}
    batch = jax.device_put(batch, split)
    keys = jax.device_put(jax.random.split(jax.random.key(0), 1), split)
    state = jax.jit(create, out_shardings=whole)()

    def train(_: int) -> int:
        nonlocal state
        state = jax.block_until_ready(step(state, batch, keys))
        return int((tgt != PAD_ID).sum())

    print_speed(train, arguments.seconds, f"jax {jax.__version__}")


if __name__ == "__main__":
    main()
