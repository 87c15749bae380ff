"""Describes a run's config, history, progress and scores, and plots its curves."""

import math
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.fields import ConfigError
from t2t.config.files import overrides, read_saved_config
from t2t.data.stages import format_stage
from t2t.evaluation.find_evaluations import list_evaluations
from t2t.evaluation.saved_evaluations import Evaluation, format_measures
from t2t.runtime.text_tables import format_table
from t2t.training.provenance import read_import, read_ledger
from t2t.training.run_directory import list_steps, read_curve, read_metrics


def describe_run(workdir: Path) -> str:
    """Describes a run: its config, starts, progress and scores.

    Raises:
        ConfigError, EvaluationError: `workdir` is not a run directory, or one of its files is
            damaged.
    """
    config = read_saved_config(workdir / "config.json")
    changed = format_table([name, repr(value)] for name, value in overrides(config).items())
    evaluations = [*map(describe_evaluation, list_evaluations(workdir))]
    sections = {
        "config, where it differs from the defaults": changed,
        "starts": "\n".join(describe_starts(read_ledger(workdir), read_import(workdir))),
        "progress": "\n".join(describe_progress(workdir, config.training.steps)),
        "evaluations": "\n".join(evaluations)
        or f"none yet: python -m t2t.evaluate --workdir={shlex.quote(str(workdir))}",
    }
    parts = [f"{title}\n{textwrap.indent(text, '  ')}" for title, text in sections.items()]
    return "\n\n".join([str(workdir), *parts])


def plot_runs(runs: Sequence[Path], figure: str, plot: Path) -> None:
    """Plots a figure of the runs' `metrics.jsonl`, such as "validation/loss", by training step.

    Raises:
        ConfigError: a run has no such figure, or the file's suffix is no format of a plot.
    """
    from t2t.evaluation.plots import check_format, draw_by_step, write_figure  # takes a while

    check_format(plot)
    curves = {}
    for run in runs:
        curves[str(run)] = read_curve(run, figure)
        if not curves[str(run)]:
            names = {name for line in read_metrics(run) for name in line} - {"step", "time"}
            raise ConfigError(
                f"{run} has no {figure} so far; --figure is one of: {', '.join(sorted(names))}"
                if names
                else f"{run} has no figures so far; plot it after its first steps"
            )
    write_figure(draw_by_step(curves, figure), plot)


def describe_starts(
    entries: Sequence[Mapping[str, Any]], imported: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Describes the first start of training in full, and how each later one differs from it.

    Of an imported model, which has none, it names the source. A later start is compared with the
    start before it.
    """
    if imported:
        yield f"none: imported from {imported['source']}, {imported['date']}"
    elif not entries:
        yield "none recorded: the run has no ledger.jsonl"
    before: Mapping[str, Any] = {}
    for entry in entries:
        yield f"{entry['date']} after step {entry['step']}"
        changed = [
            row
            for name, value in entry.items()
            if name not in ("date", "step") and value != before.get(name, {})
            for row in describe_field(name, value)
        ]
        yield textwrap.indent(format_table(changed or [["unchanged"]]), "  ")
        before = entry


def describe_field(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields table rows (name, text) for one field of the ledger."""
    match name:
        case "revision" if value is None:
            yield name, "unknown: neither a git checkout nor an archive of one"
        case "changed" if value is not None:
            yield name, ", ".join(value) or "nothing: the working tree was clean"
        case "code":
            yield name, f"{value[:16]}, sha256 of the programs and recipes"
        case "corpora":
            parts = ((split, corpus) for split, corpora in value.items() for corpus in corpora)
            yield from ((split, describe_corpus(corpus)) for split, corpus in parts)
        case "initial":
            checkpoint, digest = value["checkpoint"], value["sha256"][:16]
            yield name, f"{value['run']}, checkpoint {checkpoint}, sha256 {digest}"
            rows = format_table(value["parameters"], align="llr").splitlines()
            yield from (("", row) for row in rows)
        case "stages":
            yield name, "\n".join(map(format_stage, value))
        case "versions" | "environment" | "config" | "compute" | "operations":
            yield name, ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
        case _ if value is not None:
            yield name, str(value)


def describe_corpus(corpus: Mapping[str, Any]) -> str:
    """Describes a corpus of the ledger: its size, text and name, and what was dropped."""
    text = f"{corpus['pairs']} pairs, {corpus['sha256'][:16]}, {corpus['name']}"
    if dropped := corpus.get("dropped"):
        text += f"; dropped: {', '.join(f'{count} {rule}' for rule, count in dropped.items())}"
    return text


def describe_progress(workdir: Path, steps: int) -> Iterator[str]:
    """Yields the last step, the last losses and scores, and the checkpoints."""
    last: dict[str, tuple[int, float | None]] = {}
    for figures in read_metrics(workdir):
        last |= {name: (figures["step"], value) for name, value in figures.items()}
    checkpoints = list_steps(workdir)
    logged = last["step"][0] if last else 0
    yield f"step {max(logged, *checkpoints, 0)} of {steps}"
    rows = [
        [name, f"{math.nan if value is None else value:.4g} at step {step}"]
        for name, (step, value) in last.items()
        if name == "train/loss" or name.startswith("validation/")
    ]
    rows.append(["checkpoints", ", ".join(map(str, checkpoints)) or "none"])
    yield format_table(rows)


def describe_evaluation(evaluation: Evaluation) -> str:
    """Describes an evaluation: its settings, and its scores with their definitions."""
    result, passport = evaluation.result, evaluation.passport
    return (
        f"{evaluation.name}: checkpoint {passport.checkpoint}, {passport.data['split']}, "
        f"{result['num_sentences']} sentences, {passport.describe_search()}, "
        f"{evaluation.date}\n" + textwrap.indent(format_measures(result["measures"]), "  ")
    )
