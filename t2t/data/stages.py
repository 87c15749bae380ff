"""Stages of training: the batches of each, and the shares of the corpora in it."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2t.config.fields import DataConfig
from t2t.config.stages import NO_END, Stage, read_stages
from t2t.data.batch import HostBatch
from t2t.data.batch_plan import BatchPlan
from t2t.data.corpus import Corpus, DataError
from t2t.data.directions import list_tasks
from t2t.data.loader import Loader
from t2t.runtime.text_tables import format_table


def list_stages(data: DataConfig, corpora: Sequence[Corpus]) -> list[Stage]:
    """The stages of a run; without `data.stages` it is one, with the weights of the corpora.

    A stage of a mixture has a weight for each task, by which those of its corpora are multiplied.
    """
    own = tuple(each.weight for each in corpora)
    stages = read_stages(data.stages) or [Stage(0, NO_END, own)]
    if not (data.stages and data.mixture):
        return stages
    names = [each.task for each in list_tasks(data)]
    numbers = [names.index(each.task) for each in corpora]
    return [
        stage._replace(
            weights=tuple(
                stage.weights[number] * weight for number, weight in zip(numbers, own, strict=True)
            )
        )
        for stage in stages
    ]


def find_stage(stages: Sequence[Stage], step: int) -> Stage:
    """The stage of a step, counted from 0."""
    return next(stage for stage in stages if step < stage.stop)


def iterate_stages(
    stages: Sequence[Stage],
    make_loader: Callable[[Stage], Loader],
    start: int,
    stop: int,
    loader: Loader | None = None,
) -> Iterator[HostBatch]:
    """Yields the batches of steps [start, stop); each stage has a plan, and a loader, of its own.

    A stage begins a new epoch. Its epochs have the numbers `first`, `first + 1` and so on, which no
    other stage has, so each epoch of a run has an order of its own. `loader` is that of the stage
    of `start`, if it has been made.
    """
    for stage in stages:
        first, last = max(start, stage.first), min(stop, stage.stop)
        if first < last:
            loader = loader or make_loader(stage)
            before = stage.first * (loader.plan.steps_per_epoch - 1)
            yield from loader.iterate(before + first, before + last)
            loader = None  # frees its memory before the next one is planned


def measure_stages(
    stages: Sequence[Stage], plan: BatchPlan, corpora: Sequence[Corpus]
) -> list[dict[str, Any]]:
    """Computes the share of each corpus in an epoch of each stage.

    Shares are of pairs, of sub-words of both sides, and of sub-words of targets ("predicted").
    Steps are counted from 1, as in the log; the last stage ends at None. The result is empty if the
    run has one task and all weights are 1.

    Raises:
        DataError: an epoch of a stage uses no pair, less than one of a corpus, or none of a task.
    """
    measured = []
    has_tasks = len({corpus.task for corpus in corpora}) > 1
    for stage in stages:
        uses = np.array(plan.count_uses(stage.weights))
        if has_tasks:
            _check_tasks(stage, uses[:, 0].tolist(), corpora, plan)
        shares = (uses / uses.sum(axis=0)).round(4).tolist()
        parts = [
            {"name": corpus.name, "task": corpus.task, "weight": weight, "pairs": pairs,
             "subwords": subwords, "predicted": predicted}
            for corpus, weight, (pairs, subwords, predicted) in zip(
                corpora, stage.weights, shares, strict=True
            )
        ]  # fmt: skip
        last = None if stage.stop == NO_END else stage.stop
        measured.append({"steps": [stage.first + 1, last], "corpora": parts})
    is_plain = all(each == 1 for stage in stages for each in stage.weights)
    return [] if is_plain and not has_tasks else measured


def _check_tasks(
    stage: Stage, uses: Sequence[float], corpora: Sequence[Corpus], plan: BatchPlan
) -> None:
    """Raises `DataError` if a stage has a weight for a task of which no pair is left."""
    for task in dict.fromkeys(corpus.task for corpus in corpora):
        own = [number for number, corpus in enumerate(corpora) if corpus.task == task]
        if any(stage.weights[n] for n in own) and not any(uses[n] for n in own):
            raise DataError(
                f"{task}: none of its {sum(len(corpora[n]) for n in own)} examples is left to "
                f"train on (dropped over all tasks: {plan.describe_dropped()}); raise "
                "data.max_length, or max_length_ratio of a task of pairs, or remove the task"
            )


def format_stage(stage: Mapping[str, Any]) -> str:
    """Formats one of the results of `measure_stages` as a title and a line for each corpus.

    Each task of several corpora has a line, too.
    """
    first, last = stage["steps"]
    rows = [
        [f"{part['pairs']:.1%} of pairs", f"{part['subwords']:.1%} of sub-words",
         f"{part['predicted']:.1%} of predicted", f"each {part['weight']:.4g} times", part["name"]]
        for part in stage["corpora"]
    ]  # fmt: skip
    tasks = Counter(part["task"] for part in stage["corpora"])
    for task in (task for task, count in tasks.items() if task and count > 1):
        own = [part for part in stage["corpora"] if part["task"] == task]
        pairs, subwords, predicted = (
            f"{sum(part[name] for part in own):.1%}" for name in ("pairs", "subwords", "predicted")
        )
        rows.append(
            [f"{pairs} of pairs", f"{subwords} of sub-words", f"{predicted} of predicted", "", task]
        )
    title = f"steps {first} to {last}" if last else f"step {first} and later"
    return f"{title}:\n{textwrap.indent(format_table(rows, align='rrrr'), '  ')}"
