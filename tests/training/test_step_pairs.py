"""Features of training in pairs: each value of one meets each value of every other.

A step is traced on a mesh, which finds what JAX's types of shardings refuse; some are compiled.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from t2t.config.fields import Config, ConfigError, MeshConfig, ModelConfig, TrainingConfig
from t2t.config.rules import validate
from t2t.data.loader import put_batch
from t2t.runtime.mesh import make_mesh, spec
from t2t.training.optimizer import make_optimizer
from t2t.training.state import abstract_state, init_state
from t2t.training.step import make_train_step
from tests.tiny_training import change
from tests.training.test_step import VOCAB_SIZE, assert_close, make_batch

Row = dict[str, Any]

TINY = Config(
    model=ModelConfig(num_layers=2, d_model=16, d_ff=16, num_heads=4, dropout=0.0, dtype="float32"),
    training=TrainingConfig(warmup_steps=20, label_smoothing=0.1),
)
# The first five meet in the quick tests.
FEATURES: dict[str, Sequence[Any]] = {
    "mesh": [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)],  # data, fsdp, tensor
    "model.scan_layers": [True, False],
    "training.accumulation_steps": [2, 1],
    "model.kind": ["transformer", "decoder_only", "encoder_only"],
    "training.optimizer": ["adam", "muon", "nadamw", "schedule_free_adamw"],
    "model.kernels": ["auto", "textbook"],
    "model.dtype": ["float32", "bfloat16", "mixed"],
    "model.position": [
        "sinusoidal", "learned", "rotary", "relative", "relative_by_layer", "alibi", "none",
    ],
    "model.norm": ["layer", "rms", "none"],
    "model.norm_position": ["pre", "post"],
    "model.feed_forward": ["relu", "swiglu", "moe", "none"],
    "model.num_kv_heads": [4, 2],
    "model.tie_embeddings": ["all", "decoder", "input", "none"],
    "model.output_bias": [True, False],
    "model.attention_bias": [True, False],
    "model.base_width": [None, 8],  # with mup
    "model.dropout": [0.2, 0.0],
    "training.clip_norm": [0.0, 1.0],
    "training.ema_decay": [0.0, 0.5],
    "training.frozen": [(), ("*.self_attention.*",)],
    "training.rate_factors": [(), ("*table=0.5",)],
    "second pass": [{}, {"r_drop": 1.0}, {"scheduled_sampling": 0.5}],
}  # fmt: skip
QUICK = dict(itertools.islice(FEATURES.items(), 5))


def make_config(row: Row) -> Config:
    sections: dict[str, Row] = {"model": {}, "training": dict(row.get("second pass", {}))}
    for name, value in row.items():
        if "." in name:
            section, field = name.split(".")
            sections[section][field] = value
    if sections["model"].get("feed_forward") == "moe":
        sections["model"] |= {"num_experts": 4}
    if sections["model"].get("base_width"):
        sections["model"] |= {"parametrization": "mup"}
    return change(TINY, **sections)


def is_valid(row: Row) -> bool:
    try:
        validate(make_config(row))
    except ConfigError:
        return False
    return True


def cover(features: Mapping[str, Sequence[Any]], size: int = 2) -> list[Row]:
    """Rows in which all values of each `size` features meet, as far as valid rows have them."""
    choose = random.Random(0)

    def list_parts(row: Row) -> set[tuple[Any, ...]]:
        return {*itertools.combinations([(name, repr(row[name])) for name in features], size)}

    rows: list[Row] = []
    covered: set[tuple[Any, ...]] = set()
    for names in itertools.combinations(features, size):
        for values in itertools.product(*(features[name] for name in names)):
            part = dict(zip(names, values, strict=True))
            if tuple((name, repr(value)) for name, value in part.items()) in covered:
                continue
            drawn = [{name: choose.choice(features[name]) for name in features} for _ in range(30)]
            valid = [row | part for row in drawn if is_valid(row | part)]
            if valid:
                rows.append(max(valid, key=lambda row: len(list_parts(row) - covered)))
                covered |= list_parts(rows[-1])
    return rows


def place(row: Row) -> jax.sharding.Mesh:
    sizes = MeshConfig(*row["mesh"])
    return make_mesh(sizes, jax.devices()[: int(np.prod(row["mesh"]))])


def show(row: Row) -> str:
    return "-".join(str(value) for value in row.values())


def trace(row: Row) -> None:
    config, mesh = make_config(row), place(row)
    with jax.set_mesh(mesh):
        optimizer = make_optimizer(config)
        structure, state = abstract_state(config, optimizer, VOCAB_SIZE, VOCAB_SIZE)
        rows = jax.NamedSharding(mesh, spec("batch", None) or jax.P())
        batch = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows), make_batch()
        )
        jax.eval_shape(make_train_step(structure, config, optimizer), state, batch)


OTHERS = [pytest.param(row, marks=pytest.mark.slow) for row in cover(QUICK, 3) + cover(FEATURES)]


@pytest.mark.parametrize("row", [*cover(QUICK), *OTHERS], ids=show)
def test_features_go_together_on_a_mesh(row: Row) -> None:
    trace(row)


# What meets on one mesh alone.
TOGETHER: list[Row] = [
    {
        "training.frozen": ("encoder.*", "src_embedding.*"),
        "training.rate_factors": ("decoder.*=0.5",),
        "training.optimizer": "muon",
        "training.clip_norm": 0.5,
        "training.accumulation_steps": 2,
        "model.tie_embeddings": "none",
    },
    {"model.feed_forward": "moe", "training.accumulation_steps": 4},
    {"second pass": {"scheduled_sampling": 0.5}},
    {"model.base_width": 8, "model.num_kv_heads": 2},
    {"model.base_width": 8, "training.optimizer": "muon"},
]


@pytest.mark.slow
@pytest.mark.equality
@pytest.mark.parametrize(
    "row", cover(QUICK) + [{"mesh": (2, 2, 2)} | x for x in TOGETHER], ids=show
)
def test_steps_on_a_mesh_are_those_of_one_device(row: Row) -> None:
    found = []
    for sizes in (row["mesh"], (1, 1, 1)):
        placed = row | {"mesh": sizes}
        mesh = place(placed)
        with jax.set_mesh(mesh):
            config = make_config(placed)
            optimizer = make_optimizer(config)
            structure, state = init_state(config, optimizer, VOCAB_SIZE, VOCAB_SIZE)
            step, shown = make_train_step(structure, config, optimizer), []
            for seed in range(2):
                state, metrics = step(state, put_batch(make_batch(seed), mesh))
                shown.append(metrics)
            found.append(jax.device_get((shown, state.params)))
    assert_close(found[0][0], found[1][0], rtol=1e-4)
    assert_close(found[0][1], found[1][1], rtol=1e-2, atol=1e-4)
