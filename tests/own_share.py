"""A program that prints the share of a recipe's parameters that its process holds."""

import sys

import jax

from t2t.config.flags import define_config, read_config
from t2t.runtime import program
from t2t.runtime.distributed import join
from t2t.runtime.mesh import make_mesh
from t2t.training.optimizer import make_optimizer
from t2t.training.state import init_state


def main() -> None:
    config = read_config()
    join(**program.read_hosts())
    size = config.tokenizer.vocab_size
    with jax.set_mesh(make_mesh(config.mesh)):
        _, state = init_state(config, make_optimizer(config), size, size)
    leaves = jax.tree.leaves(state.params)
    parts = {
        (number, str(shard.index)): shard.data.nbytes
        for number, leaf in enumerate(leaves)
        for shard in leaf.addressable_shards
    }
    share = sum(parts.values()) / sum(leaf.nbytes for leaf in leaves)
    print(f"share {share:.3f}", file=sys.stderr)


if __name__ == "__main__":
    define_config()
    program.define_hosts()
    program.run(main)
