"""Judges rows: which is compared with which, on which sentences, and what is corrected for."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

from t2t.evaluation.forest import ForestRow, list_rows
from t2t.evaluation.judge_systems import Findings, judge_systems
from t2t.evaluation.kinds import KindJudgement
from t2t.evaluation.measure import Measure
from t2t.evaluation.significance import LOOK_SHARE
from t2t.evaluation.systems import System, check_comparable
from t2t.evaluation.trials import halve
from t2t.sweeps.sweep_rows import BASE, BEST, Row
from t2t.sweeps.sweep_steps import Stopped


def judge_rows(
    systems: Sequence[System],
    measure_name: str,
    rows: Mapping[str, Row],
    stopped: Mapping[str, Stopped] | None = None,
    *,
    is_tuned: bool = False,
) -> tuple[Findings, list[ForestRow]]:
    """Judges each row against base, another row, or the best of its group.

    Args:
        systems: the rows that have scores; without base there is no verdict against it.
        measure_name: by which they are judged.
        rows: all rows by name.
        stopped: the verdicts on rows that a look has stopped; None: there was no look.
        is_tuned: judge by the half of the sentences on which no trial was chosen.

    Returns:
        The verdicts, and the differences from base by each measure that all rows have.
    """
    if not systems:
        return Findings(), []
    measure = systems[0].evaluations[0].open_measure(measure_name)
    test_set = check_comparable(systems)
    if is_tuned:
        test_set = halve(test_set).judging
    share = 1.0 if stopped is None else 1 - LOOK_SHARE
    alone = {each.name: judge_systems([each], measure, test_set) for each in systems}
    lines = {name: each.lines[0] for name, each in alone.items()}
    for name, each in (stopped or {}).items():
        if name in lines:
            lines[name] = each.judge(lines[name])
    going_on = {each.name: each for each in systems if each.name not in (stopped or {})}
    sentences, forest = list[str](), list[ForestRow]()
    by_measure, by_log_prob = next(iter(alone.values())).by_measure, None
    by_kind = list[KindJudgement]()
    scores = {name: line.score.value for name, line in lines.items() if line.score}
    for first, (others, family) in find_families(rows, going_on, scores, measure).items():
        found = judge_systems(
            [going_on[each] for each in (first, *others)], measure, test_set,
            share=share, family=family,
        )  # fmt: skip
        lines |= {line.system: line for line in found.lines[1:]}
        sentences += found.sentences
        by_kind += found.by_kind
        if first == BASE or by_log_prob is None:
            by_measure, by_log_prob = found.by_measure, found.by_log_prob
        if first == BASE:
            own = [going_on[each] for each in (first, *others)]
            forest, left_out = list_rows(own, test_set, measure, by_measure, by_log_prob)
            sentences += left_out
    for name in lines.keys() - {BASE}:
        if not lines[name].against and rows[name].against != BEST:  # as yet without a verdict
            lines[name] = dataclasses.replace(lines[name], against=rows[name].against)
    return Findings([*lines.values()], sentences, by_measure, by_kind, by_log_prob), forest


def find_families(
    rows: Mapping[str, Row], known: Collection[str], scores: Mapping[str, float], measure: Measure
) -> dict[str, tuple[list[str], int]]:
    """Returns the rows that are compared with each row, and the comparisons to correct for.

    `known` names the rows that are judged, which have `scores`. Rows that are compared with the
    best of their group could have been compared with any of it, so all its pairs count.
    """
    found: dict[str, tuple[list[str], int]] = {}
    sign = 1 if measure.higher_is_better else -1
    for name in known:
        row = rows[name]
        first, family = row.against, 0
        if first == BEST:
            group = [each for each in known if rows[each].group == row.group]
            first = max(group, key=lambda each: sign * scores[each])
            family = math.comb(len(group), 2)
        if name not in (BASE, first) and first in known:
            others, before = found.get(first, ([], 0))
            found[first] = [*others, name], max(family, before)
    return found
