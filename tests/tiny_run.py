"""Creates a run directory like one of training, but with random parameters, in a second."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from t2t.config.fields import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from t2t.config.files import save_config
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import train_vocabulary
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.optimizer import make_optimizer
from t2t.training.state import init_state

PAIRS = [
    ("Two dogs run along the beach.", "Zwei Hunde laufen am Strand entlang."),
    ("A girl climbs.", "Ein Mädchen klettert."),
    ("The old man who sells fish sleeps.", "Der alte Mann, der Fisch verkauft, schläft."),
    ("", "Nichts."),
    ("Dogs climb.", "Hunde klettern."),
]
STEPS = {100: 3.0, 200: 1.0, 300: 2.0}  # checkpoints with their validation losses


def make_run(workdir: Path, objective: str = "translation", **changes: dict[str, Any]) -> Path:
    """Creates config.json, vocab/ and checkpoints/, and two text files as the test split.

    `changes` are fields of sections of the config.
    """
    workdir.mkdir()
    src, tgt = workdir / "toy.en", workdir / "toy.de"
    for path, lines in zip((src, tgt), zip(*PAIRS, strict=True), strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    is_pair = objective == "translation"
    sources: dict[str, Any] = {"train_src": (str(src),), "test_src": str(src)} if is_pair else {}
    sentinels = {"span_corruption": 14, "masked_lm": 1}.get(objective, 0)
    config = Config(
        seed=1,
        model=ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2),
        data=DataConfig(
            source="text", train_tgt=(str(tgt),), test_tgt=str(tgt), objective=objective, **sources
        ),
        tokenizer=TokenizerConfig(vocab_size=400, sentinels=sentinels),
        training=TrainingConfig(validate_every=100),
        decoding=DecodingConfig(max_extra_length=4),  # one stage: at most 16 tokens
        checkpoints=CheckpointConfig(every=100, keep_last=3),
    )
    for section, fields in changes.items():
        setattr(config, section, dataclasses.replace(getattr(config, section), **fields))
    save_config(config, workdir / "config.json")
    vocabulary = train_vocabulary([ListCorpus("toy", PAIRS)], config.tokenizer, workdir / "vocab")
    sizes = vocabulary.src.vocab_size, vocabulary.tgt.vocab_size
    optimizer = make_optimizer(config)
    _, state = init_state(config, optimizer, *sizes)
    checkpoints = Checkpoints(workdir, config, optimizer)
    for step, loss in STEPS.items():
        params = jax.tree.map(lambda x, step=step: x * (1 + step / 100), state.params)
        checkpoints.save(
            state._replace(step=jax.numpy.asarray(step), params=params), {"loss": loss}
        )
    checkpoints.close()
    return workdir
