"""Trials of a row: runs with other values of one field, such as the learning rate.

All runs of the row then have the best value. Trials have a seed of their own, and are chosen by one
half of the sentences, while rows are compared by the other (`evaluation/trials.py`).
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.fields import FIELD_TYPES, Config, ConfigError, flatten, show
from t2t.config.files import override
from t2t.evaluation.number_format import format_score
from t2t.evaluation.report_page import ReportSection
from t2t.evaluation.trials import CHOICE, TRIAL_SEED
from t2t.runtime.text_tables import Table
from t2t.sweeps.sweep_rows import Row, SweepRun, scale_steps

TRIAL = "trial"  # the name of the evaluation of a trial


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run of a row with one of the values that are tried."""

    run: SweepRun
    field: str  # which is tuned
    value: float
    own: float  # the row's value without trials
    overrides: Mapping[str, Any]  # of the row, by which the trial differs from it


def read_tuning(texts: Sequence[str]) -> dict[str, tuple[float | str, ...]]:
    """Reads --tune=FIELD=x0.5,x1,x2 into the form of `Row.tune`.

    Raises:
        ConfigError: the text has another form.
    """
    if not texts:
        return {}
    field, equals, first = texts[0].partition("=")
    values = [value for value in (first, *texts[1:]) if value]
    if not equals or not values:
        raise ConfigError(
            f"--tune={','.join(texts)}: write FIELD=VALUES, such as "
            "training.learning_rate=x0.5,x1,x2 for factors of each row's own value"
        )
    found = tuple(_read_factor(value) if value[0] == "x" else value for value in values)
    return {field: found}


def _read_factor(text: str) -> float:
    try:
        return float(text[1:])
    except ValueError:
        raise ConfigError(f"--tune: {text} is no factor; write one such as x0.5") from None


def list_trials(base: Config, row: Row, config: Config, workdir: Path, share: float) -> list[Trial]:
    """Returns the trials of a row; none if it is not tuned.

    Args:
        base: the config of the base.
        row: its `tune` names the values.
        config: the row's config without trials.
        workdir: the folder of the sweep.
        share: of the steps for which trials are trained, with a schedule that is as much shorter.

    Raises:
        ConfigError: the field or a value is wrong.
    """
    if not row.tune:
        return []
    where = f"row {row.name}, tune"
    field, values, own = _read_field(row, config, where)
    trials: dict[float, Trial] = {}
    for given in values:
        value = _read_value(given, own, where)
        name = given if isinstance(given, str) else f"x{given:g}"
        changes: dict[str, Any] = {field: value}
        try:
            if share < 1:
                changes |= scale_steps(override(config, changes).training, share)
            changed = override(config, changes)
        except ConfigError as error:
            raise ConfigError(f"{where}, {name}: {error}") from None
        changed = dataclasses.replace(changed, seed=base.seed + row.seeds[0] + TRIAL_SEED)
        run = SweepRun(row, TRIAL_SEED, changed, workdir, trial=name)
        if value in trials:
            raise ConfigError(f"{where}: {name} is the value {value:g} again; give each once")
        trials[value] = Trial(run, field, value, own, changes)
    return [*trials.values()]


def check_tuned_by(runs: Sequence[SweepRun], trials: Mapping[str, Sequence[Trial]]) -> None:
    """Checks the rows that take the value of another row's trials (`Row.tuned_by`).

    Raises:
        ConfigError: the other row has no trials here, or another value without them.
    """
    for run in runs:
        if not (giver := run.row.tuned_by):
            continue
        where = f"row {run.row.name} is tuned by {giver}"
        if giver not in trials:
            raise ConfigError(f"{where}, which is left out; add it to --only")
        first = trials[giver][0]
        if (own := flatten(run.config)[first.field]) != first.own:
            raise ConfigError(
                f"{where}, which has {first.field}={first.own} without trials, and it has {own}; "
                "rows share a value if they begin with equal ones, so use a schedule whose "
                "learning_rate is the peak, such as cosine"
            )


def _read_field(row: Row, config: Config, where: str) -> tuple[str, Sequence[Any], float]:
    """Returns the field that a row tunes, the given values, and the row's own value."""
    field, *others = row.tune
    values, own = row.tune[field], flatten(config).get(field)
    if others:
        raise ConfigError(f"{where}: {', '.join(row.tune)} are several fields; tune one")
    if TRIAL_SEED in row.seeds:
        raise ConfigError(f"{where}: trials have the seed {TRIAL_SEED}; give the row another one")
    if FIELD_TYPES.get(field) is None or not isinstance(own, float):
        raise ConfigError(f"{where}: {field}={show(own)} is no field with a number to be tuned")
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ConfigError(f"{where}: {field}: {show(values)} lists no values; write (0.5, 1, 2)")
    texts = [value for value in values if isinstance(value, str)]
    if texts and field in row.overrides:
        raise ConfigError(
            f"{where}: the row sets {field}={row.overrides[field]}, and tune names the value "
            f"{texts[0]}; give factors of its own value, or do not set it"
        )
    return field, values, own


def _read_value(given: Any, own: float, where: str) -> float:
    """Returns a value: a factor times the row's own value, or a text as a number."""
    try:
        value = float(given) if isinstance(given, str) else own * float(f"{given!r}")
    except ValueError:
        raise ConfigError(f"{where}: {show(given)} is no number") from None
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {show(given)} gives {value}, which is not finite")
    return float(f"{value:.12g}")  # without rounding errors such as 0.30000000000000004


def read_choices(workdir: Path, rows: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what `t2t.choose_trial` has written for each of these rows, if it has."""
    paths = {row: workdir / f"{row}-choice" / CHOICE for row in rows}
    return {
        row: json.loads(path.read_text("utf-8")) for row, path in paths.items() if path.exists()
    }


def describe_trials(choices: Mapping[str, Mapping[str, Any]]) -> ReportSection:
    """Makes the table of the scores of trials, on the half of the sentences that chooses."""
    rows = []
    for row, choice in choices.items():
        scores = [
            f"{float(value):g}: {'failed' if score is None else format_score(score)}"
            f"{' *' * (float(value) == choice['value'])}"
            for value, score in choice["curve"].items()
        ]
        rows.append((row, choice["setting"], choice["measure"], ", ".join(scores)))
    note = (
        "* was chosen by one half of the sentences, and trials have a seed of their own. All other "
        "scores of this report are of the other half."
    )
    header = "row", "field", "chosen by", "its score at each value"
    return ReportSection("Trials", [Table(header, rows)], [note] * bool(rows))


def warn_of_trials(
    trials: Mapping[str, Sequence[Trial]], choices: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Names the rows with more trials than others, and those whose best value is an edge."""
    warnings = []
    counts = {row: len(own) for row, own in trials.items()}
    if len({*counts.values()}) > 1:
        shown = ", ".join(f"{row} {count}" for row, count in counts.items())
        warnings.append(f"Rows had different numbers of trials, which favours some: {shown}.")
    edges: dict[tuple[str, str, float], list[str]] = {}  # rows by field, edge and value
    for row, choice in choices.items():
        if edge := choice["edge"]:
            edges.setdefault((choice["setting"], edge, choice["value"]), []).append(row)
    for (setting, edge, value), rows in edges.items():
        which = f"all {len(rows)} rows" if len(rows) == len(choices) > 1 else ", ".join(rows)
        warnings.append(
            f"The best {setting} is the {edge} one that was tried, {value:g}, for {which}: a value "
            "beyond it may be better, so let --tune reach further."
        )
    return warnings
