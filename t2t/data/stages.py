"""Stages of training: the batches of each, and the shares of the corpora in it."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2t.config.fields import DataConfig
from t2t.config.mixture import count_corpora
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
    return _weigh_stages(data, [(each.task, each.weight) for each in corpora])


def _weigh_stages(data: DataConfig, corpora: Sequence[tuple[str, float]]) -> list[Stage]:
    """The stages of a run whose corpora have these tasks and weights."""
    own = tuple(weight for _, weight in corpora)
    stages = read_stages(data.stages) or [Stage(0, NO_END, own)]
    if not (data.stages and data.mixture):
        return stages
    names = [each.task for each in list_tasks(data)]
    return [
        stage._replace(
            weights=tuple(stage.weights[names.index(task)] * weight for task, weight in corpora)
        )
        for stage in stages
    ]


def assume_stages(data: DataConfig) -> list[dict[str, Any]]:
    """Returns what `measure_stages` would find if all corpora had equally many pairs.

    Of each corpus it has the pairs alone, and they are its weight. It needs no data.
    """
    corpora = [
        (task.task, weight)
        for task in list_tasks(data)
        for weight in task.train_weights or (1.0,) * count_corpora(task)
    ]
    return [
        {
            "steps": [stage.first + 1, None if stage.stop == NO_END else stage.stop],
            "corpora": [
                {"task": task, "pairs": weight}
                for (task, _), weight in zip(corpora, stage.weights, strict=True)
            ],
        }
        for stage in _weigh_stages(data, corpora)
    ]


def share_tasks(
    stages: Sequence[Mapping[str, Any]], steps: int, figure: str
) -> list[tuple[int, dict[str, float]]]:
    """Returns how many of `steps` steps each stage has, and the share of each task in it.

    `stages` are those of `measure_stages` or `assume_stages`, and the share is of this figure.
    """
    found = []
    for stage in stages:
        first, last = stage["steps"]
        if (count := min(last or steps, steps) - first + 1) > 0:
            sums = Counter[str]()
            for part in stage["corpora"]:
                sums[part["task"]] += part[figure]
            found.append((count, {task: each / sums.total() for task, each in sums.items()}))
    return found


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
