"""Runs a program with more XLA flags, `python -m tests.own_share t2t.train ...`.

If it begins a run, it prints the share of the parameters that its process holds.
"""

import os
import runpy
import sys
import time
from typing import Any
from unittest import mock

import jax
from jax.experimental import multihost_utils

from t2t.api import train_run
from t2t.training.state import init_state

VARIABLE = "T2T_TEST_MORE_XLA_FLAGS"  # in addition to those that `launch/local.py` sets
PAUSE = "T2T_TEST_PAUSE"  # seconds before each step behind the fifth
reached = multihost_utils.reached_preemption_sync_point


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


def reach_late(step: int) -> bool:
    time.sleep(float(os.environ[PAUSE]) if step > 5 else 0.0)
    return reached(step)


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] += f" {os.environ[VARIABLE]}"
    del sys.argv[0]
    with (
        mock.patch.object(train_run, "init_state", init_and_tell),
        mock.patch.object(multihost_utils, "reached_preemption_sync_point", reach_late),
    ):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
