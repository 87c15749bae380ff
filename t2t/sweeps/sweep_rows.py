"""What a file in `configs/sweeps/` says: rows of one-line overrides of any base recipe."""

import dataclasses
import re
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2t.config.fields import Config, ConfigError, ModelConfig
from t2t.config.files import override
from t2t.model.flops import count_parameters, train_flops

LENGTH = 25  # sub-words of either side of a sentence, where operations are counted
BASE = "base"  # the row that changes nothing, against which the others are judged


@dataclasses.dataclass(frozen=True)
class Paper:
    """What the paper's table 3 has for a row: newstest2013, no averaging."""

    perplexity: float  # per word piece
    bleu: float  # tokenised, compounds split
    parameters: int | None = None  # millions


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to train."""

    name: str  # of its run directories, too
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # "model.num_heads": 1
    paper: Paper | None = None
    seeds: Sequence[int] = (0,)  # each is added to the base's

    @property
    def group(self) -> str:
        """A of A-h1."""
        return self.name.split("-")[0]


@dataclasses.dataclass(frozen=True)
class Run:
    """A row with one of its seeds, on a base."""

    row: Row
    seed: int
    config: Config

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{self.row.name}-seed{self.seed}"

    def count_flops(self, tgt_vocab_size: int) -> int:
        """Of the whole training, each batch as full of sentences of `LENGTH` as it can be."""
        config = self.config
        lengths = np.full(max(config.data.batch_tokens // LENGTH, 1), LENGTH)
        return config.training.steps * train_flops(config.model, tgt_vocab_size, lengths, lengths)


def widen_to_size_of(base: Config, model: ModelConfig) -> ModelConfig:
    """The d_model, a multiple of 16, that brings the model's parameters nearest to the base's."""
    size = base.tokenizer.vocab_size
    target = count_parameters(base.model, size, size)
    models = [
        dataclasses.replace(model, d_model=width) for width in range(16, 4 * base.model.d_model, 16)
    ]
    return min(models, key=lambda each: abs(count_parameters(each, size, size) - target))


def read_rows(path: Path, base: Config) -> list[Row]:
    """What the file's `get_rows(base)` returns.

    Raises:
        ConfigError: there is no such file or function, or its rows do not make a sweep.
    """
    if not path.is_file():
        raise ConfigError(f"--sweep={path} is no file; name one, as configs/sweeps/table3.py")
    get_rows = runpy.run_path(str(path)).get("get_rows")
    if not callable(get_rows):
        raise ConfigError(f"--sweep={path} has no function get_rows(base)")
    rows = list(get_rows(base))
    names = [row.name for row in rows]
    if names[:1] != [BASE] or rows[0].overrides or len(set(names)) < len(names):
        raise ConfigError(
            f"--sweep={path}: the first row has to be {BASE!r}, without overrides, and names "
            f"unique; they are {', '.join(names)}"
        )
    if wrong := [name for name in names if not re.fullmatch(r"[\w.-]+", name)]:
        raise ConfigError(f"--sweep={path}: {wrong[0]!r} is no name for a folder")
    return rows


def select(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """Base, and the rows that are named; a group's name stands for all of its rows.

    Raises:
        ConfigError: a name is that of no row.
    """
    known = {name for row in rows for name in (row.name, row.group)}
    if unknown := [name for name in only if name not in known]:
        names = ", ".join(row.name for row in rows)
        raise ConfigError(f"--only={','.join(unknown)}: there is no such row; there are {names}")
    return [row for row in rows if not only or {row.name, row.group} & {BASE, *only}]


def make_runs(base: Config, rows: Sequence[Row]) -> tuple[list[Run], list[str]]:
    """All runs, the first seeds first; and the rows left out, since this base is like them.

    Raises:
        ConfigError: a row does not fit this base.
    """
    runs, idle, problems = [], [], []
    for row in rows:
        try:
            config = override(base, row.overrides)
        except ConfigError as error:
            problems.append(f"row {row.name}: {error}")
            continue
        if row.name != BASE and config == base:
            idle.append(row.name)
            continue
        runs += [
            Run(row, seed, dataclasses.replace(config, seed=config.seed + seed))
            for seed in row.seeds
        ]
    if problems:
        raise ConfigError("\n".join([*problems, "choose other rows with --only, or another base"]))
    return sorted(runs, key=lambda run: run.seed), idle
