"""What a run is, what made it, how far it is and how good: `python -m t2t.show RUN ...`.

Only the run directory is read, and no device is touched.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.files import load_config, overrides
from t2t.evaluation.saved_evaluations import Evaluation, list_evaluations
from t2t.runtime import program
from t2t.training.provenance import read_ledger
from t2t.training.run_directory import list_steps, read_metrics


def describe_run(workdir: Path) -> str:
    """Config, ledger, progress and scores.

    Raises:
        ConfigError, EvaluationError: it is no run directory, or a file in it is damaged.
    """
    config = load_config(workdir / "config.json")
    lines = [str(workdir), "", "config, where it differs from the defaults"]
    lines += [f"  {name:28}{value!r}" for name, value in overrides(config).items()]
    lines += ["", "starts", *(f"  {line}" for line in describe_starts(read_ledger(workdir)))]
    lines += ["", "progress"]
    lines += [f"  {line}" for line in describe_progress(workdir, config.training.steps)]
    lines += ["", "evaluations"]
    evaluations = list_evaluations(workdir)
    for evaluation in evaluations:
        lines += [f"  {line}" for line in describe_evaluation(evaluation)]
    if not evaluations:
        lines.append(f"  none yet: python -m t2t.evaluate --workdir={workdir}")
    return "\n".join(lines)


def describe_starts(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The first in full; of each later one what differs from the one before."""
    if not entries:
        yield "none recorded: training began before runs kept a ledger"
    before: Mapping[str, Any] = {}
    for entry in entries:
        yield f"{entry['date']} after step {entry['step']}"
        for name, value in entry.items():
            if name not in ("date", "step") and value != before.get(name):
                yield from (f"  {line}" for line in describe_field(name, value))
        before = entry


def describe_field(name: str, value: Any) -> Iterator[str]:
    """A field of the ledger in a line or several."""
    match name:
        case "revision" if value is None:
            yield f"{name:13}unknown: neither a git checkout nor an archive of one"
        case "changed" if value is not None:
            yield f"{name:13}{', '.join(value) or 'nothing: the tree was clean'}"
        case "code":
            yield f"{name:13}{value[:16]}, sha256 of its programs and recipes"
        case "corpora":
            for split, corpora in value.items():
                for corpus in corpora:
                    digest = corpus["sha256"][:16]
                    yield f"{split:13}{corpus['pairs']} pairs, {digest}, {corpus['name']}"
        case "versions" | "environment" | "config" | "operations":
            yield f"{name:13}" + ", ".join(f"{key} {item}" for key, item in value.items())
        case _ if value is not None:
            yield f"{name:13}{value}"


def describe_progress(workdir: Path, steps: int) -> Iterator[str]:
    """Last step, last losses, checkpoints."""
    last: dict[str, tuple[int, float | None]] = {}
    for figures in read_metrics(workdir):
        last |= {name: (figures["step"], value) for name, value in figures.items()}
    yield f"step {last['step'][0] if last else 0} of {steps}"
    for name in ("train/loss", "validation/loss", "validation/perplexity", "validation/bleu"):
        if name in last:
            step, value = last[name]
            yield f"{name:24}{math.nan if value is None else value:.4g} at step {step}"
    yield f"{'checkpoints':24}{', '.join(map(str, list_steps(workdir))) or 'none'}"


def describe_evaluation(evaluation: Evaluation) -> Iterator[str]:
    """Its scores, each with its definition."""
    result = evaluation.result
    yield (
        f"{evaluation.name}: checkpoint {result['checkpoint']}, {result['split']}, "
        f"{result['num_sentences']} sentences, beam {result['beam_size']}, "
        f"alpha {result['alpha']:g}, {evaluation.date or 'no date'}"
    )
    for name, score in result["measures"].items():
        interval = score.get("interval")
        shown = f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
        yield f"  {name:21}{score['value']:8.2f}  {shown:16}  {score['definition']}"


def main(operands: Sequence[str]) -> None:
    """Prints each run."""
    for number, operand in enumerate(operands):
        print("\n" * bool(number) + describe_run(Path(operand).expanduser()))


if __name__ == "__main__":
    program.run(main, operands="RUN")
