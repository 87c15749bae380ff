"""NVIDIA's compiler takes the programs of training, validation and translation; no GPU is needed.

The tests run where a plugin of JAX for CUDA is installed (the extra cuda).
"""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t2t.config.fields import Config, DecodingConfig, MeshConfig, ModelConfig, TokenizerConfig
from t2t.decoding.beam_search import LengthPenalty
from t2t.decoding.staged_search import BatchSearch, Sources
from t2t.model.parameters import Params
from t2t.ops.build_model import abstract_model
from t2t.planning.compile_step import abstract_batch, compile_step
from t2t.planning.topology import open_topology
from t2t.runtime.jax_settings import list_plugins
from t2t.runtime.mesh import RULES, make_mesh
from t2t.training.step import make_eval_step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(name.startswith("xla_cuda") for name in list_plugins()),
        reason="the extra cuda is not installed",
    ),
    pytest.mark.usefixtures("nothing_cached"),
]
ROWS, LENGTH, VOCABULARY = 4, 16, 64
KINDS = {
    "transformer": ModelConfig(num_layers=1, d_model=32, d_ff=64, num_heads=2),
    "rnn": ModelConfig(kind="rnn", num_layers=1, d_model=32),
}
MIXTURE = dataclasses.replace(KINDS["transformer"], feed_forward="moe")


@pytest.fixture
def mesh() -> Mesh:
    return make_mesh(MeshConfig(), open_topology("h100:2").devices)


def describe_params(mesh: Mesh, kind: str) -> tuple[Any, Params]:
    structure, params = abstract_model(KINDS[kind], VOCABULARY, VOCABULARY)

    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        own = leaf.sharding.spec if leaf.sharding else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, own))

    return structure, jax.tree.map(place, params)


@pytest.mark.parametrize("model", [*KINDS.values(), MIXTURE], ids=[*KINDS, "mixture"])
def test_devices_add_up_gradients_in_float32(mesh: Mesh, model: ModelConfig) -> None:
    config = Config(model=model, tokenizer=TokenizerConfig(vocab_size=VOCABULARY))
    text = compile_step(config, mesh, ROWS, LENGTH, LENGTH).text
    sums = re.findall(r"= (.*) (?:all-reduce|reduce-scatter)(?:-start)?\(", text)
    assert sums
    assert not [types for types in sums if "bf16" in types]


@pytest.mark.parametrize("kind", KINDS)
def test_eval_step_compiles(mesh: Mesh, kind: str) -> None:
    with jax.set_mesh(mesh):
        structure, params = describe_params(mesh, kind)
        batch = abstract_batch(mesh, ROWS, LENGTH, LENGTH)
        lowered = make_eval_step(structure).lower(params, batch)  # type: ignore[attr-defined]
        assert "fusion" in lowered.compile().as_text()


@pytest.mark.parametrize("kind", KINDS)
def test_stage_of_beam_search_compiles(mesh: Mesh, kind: str) -> None:
    with jax.set_mesh(mesh):
        structure, params = describe_params(mesh, kind)
        search = BatchSearch(structure, DecodingConfig(beam_size=2))
        penalties = (LengthPenalty("gnmt", 0.6),)
        start = functools.partial(search._start, n_best=1, penalties=penalties, capacity=LENGTH)
        src = abstract_batch(mesh, ROWS, LENGTH, LENGTH).src
        rows = NamedSharding(mesh, PartitionSpec(RULES["batch"]))
        limits = jax.ShapeDtypeStruct((ROWS,), jnp.int32, sharding=rows)
        lowered = jax.jit(start).lower(params, Sources(src, limits), np.int32(0))
        assert "while" in str(lowered.compile().as_text())


def test_ranks_of_a_host_are_neighbours_on_the_mesh() -> None:
    """Groups of fsdp stay within a host, where NVLink is."""
    devices = open_topology("h100:8x4").devices
    mesh = make_mesh(MeshConfig(data=-1, fsdp=8), devices)
    hosts = [{device.process_index for device in row.flat} for row in mesh.devices]
    assert hosts == [{0}, {1}, {2}, {3}]
