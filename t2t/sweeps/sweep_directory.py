"""The directory of a sweep.

    sweep.json      each run's config; split, checkpoint, measure and direction of the comparison
    ROW-seedN/      the run directories; output.log has the output of training and evaluation
    report.md ...   computed from the files above, any number of times

A run is finished when its evaluation exists. There is no other state, so a sweep may be killed at
any time.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.field_types import Role
from t2t.config.fields import Config, ConfigError, flatten
from t2t.config.files import Difference, differences, load_config
from t2t.config.languages import writes_spaces
from t2t.config.measure_rules import list_measures, needs_model
from t2t.config.measures import CASED_MEASURES, PREDICTION_MEASURES
from t2t.config.variants import find_role
from t2t.data.directions import choose_direction
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.storage.locks import lock
from t2t.sweeps.sweep_rows import SweepRun
from t2t.training.checkpoint_names import check_checkpoint
from t2t.training.run_directory import RunError

# Roles of fields that are of the machines: they may change when a sweep continues.
OF_MACHINES = {Role.DEVICES, Role.STORE}


@dataclasses.dataclass(frozen=True)
class EvaluationProtocol:
    """How each run is scored, and the measure by which rows are compared."""

    split: str
    checkpoint: str
    measure: str = "bleu"
    direction: str = ""  # such as en-de; may be empty if runs have only one


def check_protocol(protocol: EvaluationProtocol, runs: Sequence[SweepRun]) -> None:
    """Checks that each run can be scored so once it is trained.

    Raises:
        ConfigError: a checkpoint, direction or measure does not fit a run.
    """
    if needs_model(name := protocol.measure):
        raise ConfigError(
            f"--measure={name}: a sweep has no model that computes {name}; compare the finished "
            f"runs by it, with t2t.evaluate --measure_model={name}=RUN and t2t.compare"
        )
    for run in runs:
        _check_objective(protocol, run, runs[0])
        checkpoint = run.row.checkpoint or protocol.checkpoint
        for each in checkpoint.split(","):
            try:
                check_checkpoint(each, run.config)
            except ConfigError as error:
                raise ConfigError(f"{run.name}: {error}") from None
        data = choose_direction(run.config.data, protocol.direction)
        if data.is_text_alone:
            continue
        spaces = writes_spaces(data.tgt_language)
        kind = run.config.tokenizer.kind
        possible = list_measures(
            data.tgt_language, data.source.split("+"), spaces=spaces, kind=kind
        )
        if protocol.measure not in possible:
            text = f"data.source={data.source!r} and data.tgt_language={data.tgt_language!r}"
            raise ConfigError(
                f"{run.name}: --measure={protocol.measure} means nothing for "
                f"{f'tokenizer.kind={kind!r}' if kind == 'symbols' else text}; use one of "
                f"{', '.join(possible)}"
            )
        if run.config.tokenizer.lowercase and protocol.measure in CASED_MEASURES:
            raise ConfigError(
                f"{run.name}: tokenizer.lowercase makes outputs lower-case, and --measure="
                f"{protocol.measure} counts that as errors; use --measure=bleu_lowercase"
            )


def _check_objective(protocol: EvaluationProtocol, run: SweepRun, first: SweepRun) -> None:
    """Raises `ConfigError` if a run learns something else than the first, or is not scored so."""
    objective, own = run.config.data.objective, first.config.data.objective
    if objective != own:
        raise ConfigError(
            f"{run.name}: data.objective={objective!r} is another than data.objective={own!r} of "
            f"{first.name}, so their scores are not comparable; give each a sweep of its own"
        )
    if not run.config.data.is_text_alone:
        return
    if protocol.measure not in PREDICTION_MEASURES:
        raise ConfigError(
            f"{run.name}: --measure={protocol.measure} is for translations, but data.objective="
            f"{objective!r} trains on text alone; use {' or '.join(PREDICTION_MEASURES)}"
        )
    if "," in (checkpoint := run.row.checkpoint or protocol.checkpoint):
        raise ConfigError(
            f"{run.name}: checkpoint {checkpoint!r} is an ensemble, which is for translations; "
            "name one checkpoint"
        )


def find_other_fields(run: SweepRun) -> list[Difference]:
    """Returns the fields in which a trained run's config is not the row's.

    Those of machines are left out. Training reads the recipe itself, which somebody may have
    edited since the sweep began. For `model.dtype=auto` it chooses a value (`resume.settle_dtype`).
    """
    found = differences(run.config, load_config(run.workdir / "config.json"))
    return [
        each
        for each in found
        if find_role(each.name) not in OF_MACHINES and each[:2] != ("model.dtype", "auto")
    ]


def open_sweep(workdir: Path, runs: Sequence[SweepRun], protocol: EvaluationProtocol) -> None:
    """Writes sweep.json, or checks that these runs agree with the existing one and adds new runs.

    Tasks of a job array do so one after the other.

    Raises:
        RunError: a run's config, or the split, checkpoint or direction differs, the file cannot be
            written, or another task does not end.
    """
    path = workdir / "sweep.json"
    refusal = f"{path} is being written by another task; start this one again"
    with (
        lock(path.with_name(f"{path.name}.lock"), refusal, RunError),
        explain_write_errors(RunError, path),
    ):
        saved: dict[str, Any] = _read(workdir) if path.exists() else {"runs": {}}
        changed = [
            f"--{name}: {saved[name]!r} -> {value!r}"
            for name, value in vars(protocol).items()
            if name != "measure" and saved.get(name, value) != value  # computed from the texts
        ]
        requested = _check_same(workdir, saved["runs"], runs, changed)
        content = vars(protocol) | {"runs": saved["runs"] | requested}
        write_file(path, json.dumps(content, indent=2) + "\n")


def read_protocol(workdir: Path) -> EvaluationProtocol:
    """Returns the protocol that sweep.json records.

    Raises:
        RunError: there is no sweep.json, or it is damaged.
    """
    names = [field.name for field in dataclasses.fields(EvaluationProtocol)]
    saved = _read(workdir)
    return EvaluationProtocol(**{name: saved[name] for name in names if name in saved})


def list_recorded(workdir: Path, runs: Sequence[SweepRun]) -> list[SweepRun]:
    """Returns those of `runs` that are recorded in sweep.json.

    Raises:
        RunError: there is no sweep.json, it is damaged, or has other configs for these runs.
    """
    saved = _read(workdir)["runs"]
    _check_same(workdir, saved, runs)
    return [run for run in runs if run.name in saved]


def _read(workdir: Path) -> dict[str, Any]:
    path = workdir / "sweep.json"
    try:
        saved: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _ = saved["runs"], saved["split"], saved["checkpoint"]
    except FileNotFoundError:
        raise RunError(f"{workdir} holds no sweep; leave out --report to start one") from None
    except (ValueError, KeyError, TypeError):
        raise RunError(
            f"{path} is damaged; remove it, and the same sweep writes it again and keeps its runs"
        ) from None
    return saved


def _check_same(
    workdir: Path,
    saved: Mapping[str, dict[str, Any]],
    runs: Sequence[SweepRun],
    changed: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """Returns the fields of each run; raises `RunError` if some differ, or `changed` has others."""
    requested = {run.name: _flatten(run.config, run.row.checkpoint) for run in runs}
    changed = [*changed]
    for name in saved.keys() & requested.keys():
        # Fields that are newer than the file get their defaults, the checkpoint the row's.
        old = _flatten(Config(), requested[name]["checkpoint"]) | saved[name]
        changed += [
            f"{name}: {field}: {old.get(field)!r} -> {value!r}"
            for field, value in requested[name].items()
            if old.get(field) != value and find_role(field) not in OF_MACHINES
        ]
    if changed:
        raise RunError(
            f"{workdir} holds another sweep:\n  "
            + "\n  ".join(sorted(changed))
            + "\nchoose another --workdir, or the old values to continue that sweep"
        )
    return requested


def _flatten(config: Config, checkpoint: str) -> dict[str, Any]:
    """Returns the values of a row as JSON would read them back: tuples become lists."""
    flat: dict[str, Any] = json.loads(json.dumps({**flatten(config), "checkpoint": checkpoint}))
    return flat
