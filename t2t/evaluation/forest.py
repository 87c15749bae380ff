"""A forest plot: differences from the first system with their intervals, a row for each measure.

Each measure has a scale of its own, since the units differ; better is always to the right.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from t2t.config.fields import ConfigError
from t2t.config.measures import CASED_MEASURES, REFERENCE_MEASURES
from t2t.evaluation.measure import Measure, MeasureError, TestSet
from t2t.evaluation.number_format import format_difference
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.evaluation.significance import Judgement, SystemComparison, judge
from t2t.evaluation.systems import System, read_statistics
from t2t.runtime.text_tables import Table, wrap_text

_HALF = 14  # characters from zero to the end of a bar


class ForestRow(NamedTuple):
    """The difference of a system from the first one, by one measure."""

    measure: Measure
    system: str
    comparison: SystemComparison

    @property
    def label(self) -> str:
        """The measure, and whether a negative difference is the better one."""
        return self.measure.name + ", less is better" * (not self.measure.higher_is_better)

    @property
    def bounds(self) -> tuple[float, float, float]:
        """The interval's worse end, the difference and the better end; higher is better."""
        low, high = self.comparison.interval or (self.comparison.difference,) * 2
        if self.measure.higher_is_better:
            return low, self.comparison.difference, high
        return -high, -self.comparison.difference, -low


def list_rows(
    systems: Sequence[System],
    test_set: TestSet,
    measure: Measure,
    by_measure: Judgement,
    by_log_prob: tuple[Measure, Judgement] | None,
) -> tuple[list[ForestRow], list[str]]:
    """Judges the systems by each measure that all of their evaluations have.

    Of measures with and without case only those that suit the systems' outputs are taken. First
    comes `measure`, with the judgement by it, and last that by the references' log-probability.
    Returns the rows, and a sentence for each measure that is left out.
    """
    evaluations = [each for system in systems for each in system.evaluations]
    is_lowercase = any(system.is_lowercase for system in systems)
    judged, left_out = [(measure, by_measure)], []
    for name in dict.fromkeys(name for each in evaluations for name in each.result["measures"]):
        is_of_case = name not in CASED_MEASURES if is_lowercase else "_lowercase" not in name
        have_all = all(name in each.result["measures"] for each in evaluations)
        is_likelihood = not systems[0].passport.objective and name in REFERENCE_MEASURES
        if name == measure.name or not is_of_case or is_likelihood:
            continue
        if not have_all:
            left_out.append(f"{name} is left out of the plot: not all evaluations have it")
            continue
        try:
            other = evaluations[0].open_measure(name)
            statistics = read_statistics(systems, other, test_set)
        except (ConfigError, EvaluationError, MeasureError) as error:
            left_out.append(f"{name} is left out of the plot: {error}")
            continue
        judgement = judge(statistics, other, test_set, by_measure.share, by_measure.family)
        judged.append((other, judgement))
    if by_log_prob:
        judged.append(by_log_prob)
    rows = [
        ForestRow(each, system, comparison)
        for each, judgement in judged
        for system, comparison in judgement.comparisons.items()
    ]
    left_out += [
        f"{row.measure.name} of {row.system} is left out of the plot: a score is not finite"
        for row in rows
        if not math.isfinite(row.comparison.difference)
    ]
    return [row for row in rows if math.isfinite(row.comparison.difference)], left_out


def find_correction(rows: Sequence[ForestRow]) -> str:
    """Names the correction of the intervals; empty if none of them is corrected."""
    return next((row.comparison.correction for row in rows if row.comparison.correction), "")


def format_forest(rows: Sequence[ForestRow], first: str) -> str:
    """Returns the plot as text."""
    widest: dict[str, float] = {}
    for row in rows:
        edge = max(map(abs, row.bounds))
        widest[row.measure.name] = max(widest.get(row.measure.name, 0.0), edge)
    cells = [
        [
            row.measure.name,
            row.system,
            " ".join(format_difference(row.comparison.values, row.comparison.interval)),
            _draw_bar(row.bounds, widest[row.measure.name]),
        ]
        for row in rows
    ]
    correction = find_correction(rows)
    scale = f"{'worse':.<{_HALF}}0{'better':.>{_HALF}}"
    table = Table(["measure", "system", "difference", scale], cells, "llr", wrapped=(0, 1))
    title = f"Differences from {first} with 95% intervals, each measure on a scale of its own"
    title += f"; intervals with {correction}" if correction else ""
    less = dict.fromkeys(row.measure.name for row in rows if not row.measure.higher_is_better)
    return "\n".join(
        [
            wrap_text(title),
            table.format(),
            *[f"Less is better: {', '.join(less)}"] * bool(less),
        ]
    )


def _draw_bar(bounds: tuple[float, float, float], edge: float) -> str:
    """An interval on a line with zero in its middle and `edge` at its end."""
    line = ["."] * (2 * _HALF + 1)
    start, place, end = (_HALF + round(_HALF * each / (edge or 1.0)) for each in bounds)
    line[start : end + 1] = "-" * (end + 1 - start)
    line[_HALF] = "|"
    line[place] = "o"
    return "".join(line)
