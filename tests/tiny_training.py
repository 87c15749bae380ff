"""A training run that takes seconds, and functions that read its run directory."""

import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from t2t.config.fields import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodingConfig,
    MeshConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from t2t.config.files import load_config, save_config
from t2t.runtime.mesh import make_mesh
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.optimizer import make_run_optimizer
from t2t.training.state import abstract_state
from tests.data.small_corpus import PAIRS

STEPS = 40


def make_config(folder: Path) -> Config:
    """A tiny config with dropout, validation, and two corpora, the second of weight 0.5."""
    parts = {"a": PAIRS[:200], "b": PAIRS[200:280], "validation": PAIRS[300:301] * 8}
    for name, pairs in parts.items():
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Config(
        model=ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=4, dropout=0.3),
        data=DataConfig(
            source="text",
            train_src=(f"{folder}/a.en", f"{folder}/b.en"),
            train_tgt=(f"{folder}/a.de", f"{folder}/b.de"),
            train_weights=(1.0, 0.5),
            validation_src=f"{folder}/validation.en",
            validation_tgt=f"{folder}/validation.de",
            cache_directory=f"{folder}/cache",
            max_length=32,
            batch_tokens=512,
            num_shapes=1,
        ),
        tokenizer=TokenizerConfig(vocab_size=400),
        training=TrainingConfig(
            steps=STEPS, warmup_steps=20, learning_rate=0.5, log_every=5, validate_every=5
        ),
        checkpoints=CheckpointConfig(every=5, keep_last=2),
        decoding=DecodingConfig(beam_size=2, max_extra_length=2),
    )


def mix_tasks(folder: Path) -> dict[str, Any]:
    """Fields of `config.data`: the translation of `make_config`, and two tasks of text alone.

    The last one has its own decoder, so its batches have no examples of the others.
    """
    fill, mend = (f"validation_tgt={folder}/validation.{language}" for language in ("de", "en"))
    return {
        "train_weights": (),
        "mixture": (
            "translate: prefix=<2de>",
            f"fill: objective=span_corruption train_tgt={folder}/b.de {fill} prefix=<fill>",
            f"mend: objective=denoising train_tgt={folder}/a.en {mend} prefix='mend this:' "
            "decoder=english",
        ),
    }


def change(config: Config, **sections: dict[str, Any]) -> Config:
    """Returns a copy with some fields changed."""
    changed = {
        name: dataclasses.replace(getattr(config, name), **fields)
        for name, fields in sections.items()
    }
    return dataclasses.replace(config, **changed)


def write_recipe(config: Config, path: Path) -> None:
    """Writes a recipe file whose `get_config` returns this config."""
    saved = path.with_suffix(".json")
    save_config(config, saved)
    path.write_text(
        "from pathlib import Path\n"
        "from t2t.config.files import load_config\n\n\n"
        f"def get_config():\n    return load_config(Path({str(saved)!r}))\n"
    )


def make_small_mesh(sizes: MeshConfig) -> Mesh:
    """Makes a mesh of only the first device."""
    return make_mesh(sizes, jax.devices()[:1])


def read_state(workdir: Path, step: int) -> list[np.ndarray]:
    """Reads all arrays of the training state from the newest checkpoint, which is of `step`."""
    config = load_config(workdir / "config.json")
    with jax.set_mesh(make_small_mesh(MeshConfig())):
        size = config.tokenizer.vocab_size
        optimizer = make_run_optimizer(config)
        _, described = abstract_state(config, optimizer, size, size)
        with contextlib.closing(Checkpoints(workdir, config, optimizer)) as checkpoints:
            state = checkpoints.restore(described)
    assert int(state.step) == step
    return [*map(np.asarray, jax.tree.leaves(state))]


def read_figures(workdir: Path, prefix: str) -> list[dict[str, Any]]:
    """Reads the figures from metrics.jsonl, except those that depend on time."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    of_the_clock = re.compile(r"time|train/(tokens_per_second|data_wait_share|compile_seconds)")
    return [
        {name: value for name, value in line.items() if not of_the_clock.fullmatch(name)}
        for line in lines
        if any(name.startswith(prefix) for name in line)
    ]


def assert_same_training(one: Path, other: Path, step: int, *prefixes: str) -> None:
    """Compares the newest states, which are of `step`, and the figures bit for bit."""
    for left, right in zip(read_state(one, step), read_state(other, step), strict=True):
        np.testing.assert_array_equal(left, right)
    for prefix in prefixes:
        assert read_figures(one, prefix) == read_figures(other, prefix)
