"""The rows of a sweep, which a file in `configs/sweeps/` lists, and the runs they give.

Each row overrides fields of a base recipe.
"""

import bisect
import copy
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.fields import (
    Config,
    ConfigError,
    Fields,
    ModelConfig,
    TrainingConfig,
    flatten,
    show,
)
from t2t.config.files import check_types, override
from t2t.config.recipes import call, find_function
from t2t.config.rules import list_unused
from t2t.evaluation.published import Published
from t2t.training.sharing import count_run_parameters
from t2t.training.total_flops import count_flops

BASE = "base"  # the row without overrides, with which the others are compared
BEST = "best"  # in place of the row with which another one is compared
EVALUATION = "sweep"  # name of the evaluation that finishes a run


@dataclasses.dataclass(frozen=True)
class Row(Fields):
    """One variant of the base recipe, with one or several seeds."""

    name: str  # also names the run directories
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # "model.num_heads": 1
    published: Published | None = None  # scores that somebody has published for this variant
    seeds: Sequence[int] = (0,)  # each is added to the base's seed
    checkpoint: str = ""  # the one that is scored; empty: the sweep's --checkpoint
    # the values of one field that are tried, such as {"training.learning_rate": (0.5, 1, 2)}:
    # numbers are factors of the row's own value, texts such as "0.001" values. Empty: --tune
    tune: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # another row, whose trials choose the value for this one, too; empty: it has its own, if any
    tuned_by: str = ""
    # the row with which it is compared; "best": the one with the best score in its group
    against: str = BASE

    @property
    def group(self) -> str:
        """The name up to the first hyphen: A for A-h1."""
        return self.name.split("-")[0]


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """A row with one of its seeds, the resulting config, and the place of its files."""

    row: Row
    seed: int
    config: Config
    sweep: Path  # the directory of the sweep
    trial: str = ""  # of a trial, the value that it tries

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        return f"{self.row.name}-{f'trial{self.trial}' if self.trial else f'seed{self.seed}'}"

    @property
    def workdir(self) -> Path:
        """The run's directory."""
        return self.sweep / self.name

    @property
    def score(self) -> Path:
        """The evaluation that finishes the run."""
        return self.workdir / "evaluations" / f"{EVALUATION}.json"

    @property
    def scoring(self) -> str:
        """The name of the step that evaluates the run."""
        return self.name_scoring()

    def name_scoring(self, task: str = "") -> str:
        """Returns the name of the step that evaluates a task of the run; "": the main one."""
        return "-".join(filter(None, [self.name, task, "scores"]))


def match_size_of(base: Config, model: ModelConfig, multiple: int = 16) -> ModelConfig:
    """Returns the model with the d_model, a multiple of a number, that best matches base's size.

    The size is the number of parameters.
    """
    widths = range(multiple, 4 * base.model.d_model, multiple)
    models = [dataclasses.replace(model, d_model=width) for width in widths]

    def count(each: ModelConfig) -> int:
        return _count_parameters(base, each)

    target = count(base.model)
    larger = bisect.bisect_left(models, target, key=count)
    return min(models[max(larger - 1, 0) : larger + 1], key=lambda each: abs(count(each) - target))


def match_depth(base: Config, model: ModelConfig, field: str) -> int:
    """Returns the value of `field`, a number of layers, that best matches base's size.

    Each layer after the first adds equally many parameters.
    """
    changes: list[dict[str, Any]] = [{field: depth} for depth in (2, 3)]
    two, three = (
        _count_parameters(base, dataclasses.replace(model, **change)) for change in changes
    )
    missing = _count_parameters(base, base.model) - two
    return max(1, 2 + round(missing / (three - two)))


def _count_parameters(base: Config, model: ModelConfig) -> int:
    size = base.tokenizer.vocab_size
    return count_run_parameters(dataclasses.replace(base, model=model), size, size)


def match_steps(base: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns overrides with which base with these changes has base's training FLOPs.

    They are the steps and what `scale_steps` adds to them.
    """
    config, vocab_size = override(base, changes), base.tokenizer.vocab_size
    ratio = count_flops(base, vocab_size) / count_flops(config, vocab_size)
    return scale_steps(config.training, ratio)


def scale_steps(training: TrainingConfig, ratio: float) -> dict[str, Any]:
    """Returns overrides for `ratio` times as many steps, in which the rate takes the same course.

    Warm-up and cooldown keep their shares, such as 20 of 120 steps and 10 of 60, and the peak
    stays. The peak of noam is its factor divided by the root of the warm-up, so its factor changes.
    """
    warmup, rate = max(round(ratio * training.warmup_steps), 1), training.learning_rate
    if training.schedule == "noam":
        rate = float(f"{rate * (warmup / training.warmup_steps) ** 0.5:.4g}")
    scaled = dataclasses.replace(
        training,
        steps=max(round(ratio * training.steps), 1),
        warmup_steps=warmup,
        learning_rate=rate,
        cooldown_steps=round(ratio * training.cooldown_steps),
    )
    before, after = (flatten(vars(each), "training.") for each in (training, scaled))
    return {name: value for name, value in after.items() if value != before[name]}


def read_rows(path: Path, base: Config) -> list[Row]:
    """Calls `get_rows(base)` of the file, and checks the rows.

    Raises:
        ConfigError: the file or function does not exist, or the rows are not valid.
    """
    get_rows = find_function(path, "get_rows", f"--sweep={path}")
    try:
        rows = _call_get_rows(get_rows, base)
    except ConfigError as error:
        raise ConfigError(f"--sweep={path}: {error}") from None
    names = [row.name for row in rows]
    if names[:1] != [BASE] or rows[0].overrides or len(set(names)) < len(names):
        raise ConfigError(
            f"--sweep={path}: the first row must be {BASE!r}, without overrides, and names must be "
            f"unique; the rows are {', '.join(names)}"
        )
    if wrong := [name for name in names if not re.fullmatch(r"[\w.-]+", name)]:
        raise ConfigError(
            f"--sweep={path}: row {wrong[0]!r} cannot name a folder; use letters, digits and _.-"
        )
    givers = {row.name: row.tuned_by for row in rows}
    for row in rows:
        others = {each.name: each.group for each in rows if each is not row}
        is_known = row.against in others or (row.against == BEST and row.group in others.values())
        if row.name != BASE and not is_known:
            raise ConfigError(
                f"--sweep={path}: row {row.name} is compared with {row.against!r}, which is no "
                f"other row; use {BEST!r} in a group of several rows, or {', '.join(others)}"
            )
        if row.tuned_by and (row.tune or row.tuned_by not in others or givers.get(row.tuned_by)):
            raise ConfigError(
                f"--sweep={path}: row {row.name} is tuned by {row.tuned_by!r}; name another row "
                "that has trials of its own, and give this one no trials"
            )
        if not row.seeds or len(set(row.seeds)) < len(row.seeds) or min(row.seeds) + base.seed < 0:
            raise ConfigError(
                f"--sweep={path}: row {row.name} has the seeds {tuple(row.seeds)}; give at least "
                "one, each once, none negative after the base's seed is added"
            )
    return rows


def _call_get_rows(get_rows: Callable[..., Any], base: Config) -> list[Row]:
    """Returns the rows that a file lists, with checked types."""
    given = copy.deepcopy(base)
    found = call(get_rows, "get_rows(base) takes the base", given)
    # A generator reads the base only now.
    rows = call(lambda: [*found], "") if isinstance(found, Iterable) else [found]
    if given != base:
        raise ConfigError("get_rows(base) changes the base; name the changes of a row in Row")
    checked = []
    for row in rows:
        if not isinstance(row, Row):
            raise ConfigError(
                "get_rows(base) has to return a list of rows, such as "
                f"[Row('base'), Row('one_head', {{'model.num_heads': 1}})], and not {show(row)}"
            )
        try:
            own = check_types(row)
            if own.published:
                _check_published(own.published)
            checked.append(own)
        except ConfigError as error:
            raise ConfigError(f"row {row.name}: {error}") from None
    return checked


def _check_published(published: Published) -> None:
    """Raises `ConfigError` unless each published score is a list of numbers, one of each seed."""
    check_types(published)
    given: dict[str, Any] = {**published.scores, **published.kinds}
    for name, seeds in given.items():
        numbers = seeds if isinstance(seeds, tuple | list) else [None]
        if not numbers or not all(isinstance(x, int | float) and math.isfinite(x) for x in numbers):
            raise ConfigError(
                f"published {name}={show(seeds)}: give the score of each seed, such as (25.8,)"
            )
    if published.kinds and not published.scores:
        raise ConfigError("published kinds are of the first measure of scores; name it there")


def select(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """Returns base and the rows named in `only`, by row or group; all rows if it is empty.

    A name that a row has is that row alone.

    Raises:
        ConfigError: no row or group has one of the names.
    """
    known = {name for row in rows for name in (row.name, row.group)}
    if unknown := [name for name in only if name not in known]:
        names = ", ".join(row.name for row in rows)
        raise ConfigError(f"--only={','.join(unknown)}: no such row; the rows are {names}")
    chosen = {BASE, *only}
    groups = chosen - {row.name for row in rows}
    return [row for row in rows if not only or row.name in chosen or row.group in groups]


def make_runs(
    base: Config, rows: Sequence[Row], workdir: Path
) -> tuple[list[SweepRun], dict[str, str]]:
    """Returns all runs, sorted by seed, and the rows that are left out, each with the reason.

    `workdir` is the directory of the sweep.

    A row is left out if it changes neither what this base computes nor the checkpoint that is
    scored, or if it is valid for the defaults but not for this base. `rows` begins with base.

    Raises:
        ConfigError: the overrides of a row are valid neither for this base nor for the defaults.
    """
    runs, problems = [], []
    left_out: dict[str, str] = {}
    for row in rows:
        try:
            config = override(base, row.overrides)
        except ConfigError as error:
            try:
                override(Config(), row.overrides)
            except ConfigError:
                problems += [f"row {row.name}: {line}" for line in str(error).splitlines()]
            else:
                left_out[row.name] = str(error)
            continue
        before, unused = flatten(base), list_unused(config)
        is_changed = row.checkpoint != rows[0].checkpoint or any(
            value != before.get(name) and name not in unused
            for name, value in flatten(config).items()
        )
        if row.name != BASE and not is_changed:
            left_out[row.name] = "it does not change the base"
            continue
        runs += [
            SweepRun(row, seed, dataclasses.replace(config, seed=config.seed + seed), workdir)
            for seed in row.seeds
        ]
    if problems:
        raise ConfigError("\n".join([*problems, "choose other rows with --only, or another base"]))
    return sorted(runs, key=lambda run: run.seed), left_out
