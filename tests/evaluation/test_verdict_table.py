"""The table of verdicts, and the sentence that says what was found."""

import dataclasses

import numpy as np
import pytest

from t2t.evaluation.number_format import (
    format_difference,
    format_interval,
    format_p_value,
    format_score,
)
from t2t.evaluation.significance import SystemComparison, SystemScore
from t2t.evaluation.verdict_table import Line, SystemCost, VerdictTable


def make_line(
    system: str, against: str, difference: float, p_value: float = 0.001, seeds: int = 3
) -> Line:
    """A system whose score is 80 + difference, judged against one of 80."""
    score = SystemScore(80 + difference, (80 + difference,) * seeds, (79, 81), None, 500,
                        np.zeros((0, seeds)))  # fmt: skip
    comparison = SystemComparison(
        (80.0, 80 + difference), difference > 0, (seeds, seeds), 0.5, 0.5 if seeds > 1 else None,
        (difference - 1, difference + 1), p_value, p_value,
    )  # fmt: skip
    return Line(system=system, against=against, score=score, comparison=comparison,
                cost=SystemCost(3.0, 6.04))  # fmt: skip


BASE = dataclasses.replace(make_line("base", "", 0.0), comparison=None)


def test_systems_may_be_judged_against_different_ones() -> None:
    lines = [BASE, make_line("a", "base", -2.0), make_line("b", "base", 3.0),
             make_line("b", "a", 5.0, 0.2)]  # fmt: skip
    table = VerdictTable(lines, "bleu")
    assert table.describe() == (
        "Of 3 comparisons by bleu, 1 is better (b than base +3.00), 1 is worse (a than base "
        "-2.00) and 1 is not distinguishable (b from a); this covers the choice of the sentences "
        "and of the seeds (3 each), and each comparison is judged alone."
    )
    found = table.make_table()
    assert found.header == ["system", "bleu, 3 seeds", "against", "difference, 95% interval", "p",
                            "minutes", "core-minutes"]  # fmt: skip
    cost = "3.0", "6.0"
    assert found.rows == [
        ("base", "80.00", "", "", "", *cost),
        ("a", "78.00", "base", "worse: -2.00 [-3.00, -1.00]", "0.001", *cost),
        ("b", "83.00", "base", "better: +3.00 [+2.00, +4.00]", "0.001", *cost),
        ("b", "", "a", "not distinguishable: +5.00 [+4.00, +6.00]", "0.2", "", ""),
    ]


def test_many_rows_are_counted_and_the_largest_differences_named() -> None:
    rows = [make_line(f"row-{n}", "base", -n, seeds=1) for n in (1, 2, 3, 4, 5)]
    lines = [dataclasses.replace(row, family=5) for row in rows]
    found = VerdictTable([BASE, *lines], "bleu", noun="row").describe()
    assert found.startswith(
        "Of 5 comparisons by bleu, none is better than base and 5 are worse (row-5 -5.00, row-4 "
        "-4.00, row-3 -3.00, row-2 -2.00, 1 more); this covers the choice of the sentences alone "
    )
    assert found.endswith("p-values and intervals are corrected for 5 comparisons.")


def test_verdicts_that_mean_nothing_are_set_apart() -> None:
    line = make_line("b", "base", 0.1)
    assert line.comparison
    useless = dataclasses.replace(line.comparison, values=(0.1, 0.2))
    lines = [BASE, make_line("a", "base", 2.0), dataclasses.replace(line, comparison=useless)]
    table = VerdictTable(lines, "bleu", noun="row")
    assert "Verdicts on b mean nothing: neither side translates yet." in table.describe()
    assert table.make_table().rows[2][2].endswith("; neither row translates yet")


@pytest.mark.parametrize(
    ("value", "interval", "shown"),
    [
        (1.93, (1.4994, 2.4), "1.93 [1.50, 2.40]"),
        (0.8417, (0.8, 1.2), "0.8417 [0.8000, 1.2000]"),
        (0.0, (0.0, 0.5), "0.00 [0.00, 0.50]"),
        (3.2e20, (1.0, 2.0), "3.2e+20 [1.00, 2.00]"),
        (38.1, None, "38.10 "),
    ],
)
def test_an_interval_has_the_decimals_of_its_score(
    value: float, interval: tuple[float, float] | None, shown: str
) -> None:
    assert f"{format_score(value)} {format_interval(interval, value)}" == shown


@pytest.mark.parametrize(
    ("values", "interval", "shown"),
    [
        ((83.22, 81.47), (-3.97, 0.4558), ("-1.75", "[-3.97, +0.46]")),
        ((0.3493, 0.3678), (-0.004041, 0.04093), ("+0.0185", "[-0.0040, +0.0409]")),
        ((2.5, 2.48), (-0.021, -0.019), ("-0.0200", "[-0.0210, -0.0190]")),
        ((2.5, 2.48), None, ("-0.02", "")),
        ((2.5, 2.5), (-1e-12, 1e-12), ("+0.00", "[-0.00, +0.00]")),
    ],
)
def test_a_difference_shows_two_digits_of_half_its_interval(
    values: tuple[float, float], interval: tuple[float, float] | None, shown: tuple[str, str]
) -> None:
    assert format_difference(values, interval) == shown


def test_a_p_value_has_one_form() -> None:
    values = 0.09216, 2.5e-6, 1e-9, 1.0
    assert [*map(format_p_value, values)] == ["0.0922", "2.5e-06", "< 1e-6", "1"]
    assert [format_p_value(value, sign=True) for value in values[1:3]] == ["= 2.5e-06", "< 1e-6"]
