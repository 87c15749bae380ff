"""Compiled train steps: counting, and reading the Flax WMT example, of which a stand-in is here."""

import json
import sys
import types
from pathlib import Path

import pytest

from benchmarks import compiled_step
from benchmarks.flax_wmt import Example
from configs import base
from t2t.config.fields import Config, ModelConfig
from t2t.planning.topology import open_topology

# It has the interface that is used, and a feed-forward with two dropouts.
MODELS = """
from typing import Any
import jax.numpy as jnp
from flax import linen as nn, struct

@struct.dataclass
class TransformerConfig:
    vocab_size: int
    output_vocab_size: int
    share_embeddings: bool
    logits_via_embedding: bool
    dtype: Any
    emb_dim: int
    num_heads: int
    num_layers: int
    qkv_dim: int
    mlp_dim: int
    max_len: int
    dropout_rate: float
    attention_dropout_rate: float
    deterministic: bool = False

class MlpBlock(nn.Module):
    config: TransformerConfig

    @nn.compact
    def __call__(self, x):
        for width in (self.config.mlp_dim, self.config.emb_dim):
            x = nn.Dense(width)(x)
            x = nn.Dropout(self.config.dropout_rate)(x, deterministic=self.config.deterministic)
        return x

class Transformer(nn.Module):
    config: TransformerConfig

    @nn.compact
    def __call__(self, inputs, targets, **packing):
        x = nn.Embed(self.config.vocab_size, self.config.emb_dim)(inputs + targets)
        return nn.Dense(self.config.vocab_size)(MlpBlock(self.config)(x))
"""
TRAIN = """
import jax
import jax.numpy as jnp
import a_package_that_is_not_installed as absent
from flax.training import train_state
import models

class TrainState(train_state.TrainState):
    dynamic_scale: absent.DynamicScale

def create_learning_rate_schedule(learning_rate: absent.Rate, warmup_steps):
    return lambda step: learning_rate

def train_step(state, batch, config, rate, label_smoothing, dropout_rng):
    def compute_loss(params):
        logits = models.Transformer(config).apply(
            {"params": params}, **batch, rngs={"dropout": dropout_rng}
        )
        return -jax.nn.log_softmax(logits)[..., 0].mean()

    grads = jax.lax.pmean(jax.grad(compute_loss)(state.params), "batch")
    return state.apply_gradients(grads=grads), {"learning_rate": rate(state.step)}
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("models", "train"):
        monkeypatch.setitem(sys.modules, name, sys)  # put back what was there
    folder = tmp_path / "flax" / "examples" / "wmt"
    folder.mkdir(parents=True)
    (folder / "models.py").write_text(MODELS, "utf-8")
    (folder / "train.py").write_text(TRAIN, "utf-8")
    return tmp_path / "flax"


def test_rates_of_dropout_are_those_asked_for(checkout: Path) -> None:
    """Random bits cost operations: `recipe` draws them for one of the two dropouts."""
    example, devices = Example(checkout), open_topology("cpu:2").devices
    model = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=1, dropout=0.3)
    flops = []
    for dropout in ("none", "recipe", "example"):
        compiled = example.compile(model, 11, devices, rows=2, length=4, dropout=dropout)
        assert "all-reduce" in str(compiled.as_text())
        flops.append((compiled.cost_analysis() or {})["flops"])
    assert flops[0] < flops[1] < flops[2]


def make_tiny() -> Config:
    config = base.get_config()
    config.model = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=1, max_positions=32)
    config.data.packed_length = config.data.max_length = 16
    return config


@pytest.mark.slow
def test_raw_file_has_programs_ratios_and_no_places(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"ROWS": 8, "LENGTH": 16, "VOCABULARY": 20}.items():
        monkeypatch.setattr(compiled_step, name, value)
    monkeypatch.setitem(sys.modules, "configs.tiny", types.SimpleNamespace(get_config=make_tiny))
    output = checkout / "found.json"
    flags = [f"--checkout={checkout}", "--topology=cpu:2", "--models=tiny", "--dropout=own"]
    monkeypatch.setattr(sys, "argv", ["benchmarks/compiled_step.py", *flags, f"--output={output}"])
    compiled_step.main()
    found = json.loads(output.read_text("utf-8"))
    assert "--checkout=PATH --topology=cpu:2" in found["command"]
    assert {"revision", "date", "versions"} <= found.keys()
    assert found["flax_wmt"].keys() == {"models.py", "train.py"}
    programs = [(one["program"], one["dropout"]) for one in found["programs"]]
    assert programs == [("t2t", "recipe"), ("flax_wmt", "example")]
    own, theirs = (one["hbm_bytes"] for one in found["programs"])
    assert found["t2t_over_flax"][0]["hbm_bytes"] == own / theirs
    assert f"{own / theirs:.3f}" in capsys.readouterr().out
