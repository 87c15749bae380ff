"""A program that says which share of a recipe's parameters its process holds."""

import sys

import jax

from t2t import cli
from t2t.hosts import join
from t2t.sharding import make_mesh
from t2t.training.state import init_state, make_optimizer


def main() -> None:
    config = cli.read_config()
    join(**cli.read_hosts())
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
    cli.define_config()
    cli.define_hosts()
    cli.run(main)
