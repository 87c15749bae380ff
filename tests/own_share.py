"""Trains like t2t.train, and prints the share of the parameters that this process holds."""

import runpy
import sys
from typing import Any

import jax

from t2t.api import train_run
from t2t.training.state import init_state


def init_and_tell(*arguments: Any) -> Any:
    """Makes the first state of a run, and measures it."""
    structure, state = init_state(*arguments)
    leaves = jax.tree.leaves(state.params)
    parts = {
        (number, str(shard.index)): shard.data.nbytes
        for number, leaf in enumerate(leaves)
        for shard in leaf.addressable_shards
    }
    share = sum(parts.values()) / sum(leaf.nbytes for leaf in leaves)
    print(f"share {share:.3f}", file=sys.stderr)
    return structure, state


if __name__ == "__main__":
    train_run.init_state = init_and_tell
    runpy.run_module("t2t.train", run_name="__main__", alter_sys=True)
