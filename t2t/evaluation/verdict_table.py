"""The table of verdicts, and the sentence above it that says what was found.

`t2t.compare` and the reports of sweeps and pipelines begin with them. `verdict.py` has the
sentences that say the rest.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t2t.config.measures import USELESS
from t2t.evaluation.kinds import KindJudgement
from t2t.evaluation.number_format import (
    format_difference,
    format_interval,
    format_p_value,
    format_score,
)
from t2t.evaluation.significance import Judgement, SystemComparison, SystemScore
from t2t.evaluation.verdict import claim, name_verdict
from t2t.runtime.text_tables import NO_BREAK, Table

COSTS = ("minutes", "start", "core-minutes", "device-minutes")
_NAMED = 4  # systems that the opening sentence names for each verdict
_VERDICTS = {
    "better": ("better", "than"),
    "worse": ("worse", "than"),
    "not distinguishable": ("not distinguishable", "from"),
    "no verdict": ("without a verdict", "against"),
}


class SystemCost(NamedTuple):
    """The cost of a system, all starts of its programs together."""

    minutes: float
    core_minutes: float
    device_minutes: float = 0.0  # of GPUs; 0 without any
    # the share of the minutes of trainings and evaluations until their first batches, from 0 to 1
    start: float | None = None

    def format(self) -> dict[str, str]:
        """Formats each figure, by the header of its column in `COSTS`."""
        return {
            "minutes": f"{self.minutes:.1f}",
            "start": "" if self.start is None else f"{self.start:.0%}",
            "core-minutes": f"{self.core_minutes:.1f}",
            "device-minutes": f"{self.device_minutes:.1f}" if self.device_minutes else "",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A system, and its difference from the one that it is judged against."""

    system: str
    against: str = ""  # empty: it is judged against none
    score: SystemScore | None = None  # None: it has no evaluation yet
    measure: str = ""  # of the score, if it is not the table's
    comparison: SystemComparison | None = None
    by_log_prob: SystemComparison | None = None  # of the references, in nats per token
    same: str | None = None  # as in `verdict.describe`, if both are one model
    family: int = 1  # number of comparisons that are corrected together
    changes: str = ""  # what the system changes
    cost: SystemCost | None = None
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # further columns
    remarks: Sequence[str] = ()  # on the verdict by the measure, or why there is none
    log_prob_remarks: Sequence[str] = ()  # on the verdict by log-probability

    @property
    def verdict(self) -> str:
        """The verdict by the measure; empty if the system is not compared."""
        return name_verdict(self.comparison, self.same) if self.comparison else ""

    @property
    def other_verdict(self) -> str:
        """The verdict by log-probability, which no search changes; empty if there is none."""
        same = None if self.same is None else ""
        return name_verdict(self.by_log_prob, same) if self.by_log_prob else ""


def list_lines(
    by_measure: Judgement,
    by_log_prob: Judgement | None = None,
    same: Mapping[str, str] = {},
) -> list[Line]:
    """Returns a line for each system of a judgement; the first one is judged against none.

    `same` is the result of `verdict.list_same`.
    """
    first = next(iter(by_measure.scores))
    log_probs = by_log_prob.comparisons if by_log_prob else {}
    return [
        Line(
            system=name,
            against=first if name in by_measure.comparisons else "",
            score=score,
            comparison=by_measure.comparisons.get(name),
            by_log_prob=log_probs.get(name),
            same=same.get(name),
            family=by_measure.num_corrected,
        )
        for name, score in by_measure.scores.items()
    ]


class _Column(NamedTuple):
    header: str
    align: str
    cells: list[str]


@dataclasses.dataclass(frozen=True)
class VerdictTable:
    """The lines of a report; any line may be judged against another system than its neighbour."""

    lines: Sequence[Line]
    measure: str
    log_prob: str = ""  # the unit, such as "nats per sub-word"; empty: no line is judged by it
    unit: str = "sentences"  # that is resampled; or "documents"
    noun: str = "system"  # of a line
    by_kind: Sequence[KindJudgement] = ()  # if the test set names kinds of sentences

    @property
    def judged(self) -> dict[str, list[Line]]:
        """The lines with a comparison by their verdict, the largest difference first."""
        lines = [line for line in self.lines if line.comparison]
        lines.sort(key=lambda line: -abs(_compare(line).difference))
        found: dict[str, list[Line]] = {verdict: [] for verdict in _VERDICTS}
        for line in lines:
            found[line.verdict].append(line)
        return found

    def describe(self) -> str:
        """Says what was found and which chance that covers, in one sentence or a few short ones."""
        return " ".join(self._list_sentences())

    def _list_sentences(self) -> Iterator[str]:
        scored = {line.system: line.score for line in self.lines if line.score}
        judged = [line for lines in self.judged.values() for line in lines]
        missing = {line.system for line in self.lines} - scored.keys()
        useless = [line.system for line in judged if self._is_useless(line)]
        if not scored:
            yield f"No {self.noun} has a score yet."
            return
        if useless and len(useless) == len(judged):
            known = dict.fromkeys([judged[0].against, *useless])
            yield (
                f"Nothing is found: {_join(list(known))} have less than {USELESS:g} BLEU, so they "
                "translate nothing yet, and a verdict on them means nothing."
            )
        elif len(judged) == 1:
            yield self._describe_one(judged[0])
        elif judged:
            yield self._describe_many(judged)
        elif len(self.lines) == 1:
            yield self._describe_score(*scored.popitem())
        else:
            unknown = [name for name in self._list_against() if name in missing]
            reason = f"{_join(unknown)} has no score" if unknown else "nothing can be compared"
            yield f"No verdicts: {reason} yet."
        if useless and len(useless) < len(judged):
            yield f"Verdicts on {_join(useless)} mean nothing: neither side translates yet."
        if judged and (other := [*self._list_other_verdicts(judged)]):
            yield f"By log-probability {_join(other)}."
        if judged and missing:
            count = len({line.system for line in self.lines})
            are = "has" if len(missing) == 1 else "have"
            yield f"{len(missing)} of {count} {self.noun}s {are} no score yet."

    def _describe_score(self, name: str, score: SystemScore) -> str:
        value = f"{format_score(score.value)} {self.measure}"
        interval = format_interval(score.over_sentences, score.value)
        seeds = "one seed" if len(score.seeds) == 1 else f"the mean of {len(score.seeds)} seeds"
        covers = f" (95% over {self.unit})" if interval else ""
        return f"{name} has {' '.join(filter(None, (value, interval)))}{covers}, {seeds}."

    def _describe_one(self, line: Line) -> str:
        comparison = _compare(line)
        difference, interval = _show_difference(comparison)
        facts = " ".join(filter(None, (difference, self.measure, interval)))
        clause = claim(line.verdict, line.against, line.system)
        if line.verdict == "no verdict":
            return f"{clause[0].upper()}{clause[1:]}: {facts}."
        p_value = format_p_value(comparison.adjusted, sign=True)
        corrected = f", with {comparison.correction}" if comparison.correction else ""
        return f"{clause}: {facts}, p {p_value}; this covers {self._cover([line])}{corrected}."

    def _describe_many(self, judged: Sequence[Line]) -> str:
        against = [*dict.fromkeys(line.against for line in judged)]
        common = f" {{}} {against[0]}" if len(against) == 1 else ""
        counts = list[str]()
        for verdict, lines in self.judged.items():
            word, preposition = _VERDICTS[verdict]
            if not lines and verdict != "better":
                continue
            number = str(len(lines)) if lines else "none"
            is_single = len(lines) < 2
            phrase = f"{number} {'is' if is_single else 'are'} {word}"
            phrase += common.format(preposition) if not counts else ""
            counts.append(phrase + self._name(lines, verdict))
        families = {line.family for line in judged}
        sizes = " or ".join(map(str, sorted(families)))
        corrected = f"p-values and intervals are corrected for {sizes} comparisons"
        if families == {1}:
            corrected = "each comparison is judged alone"
        if any("look" in _compare(line).correction for line in judged):
            corrected += ", with the correction for a look before the end"
        return (
            f"Of {len(judged)} comparisons by {self.measure}, {_join(counts)}; this covers "
            f"{self._cover(judged)}, and {corrected}."
        )

    def _name(self, lines: Sequence[Line], verdict: str) -> str:
        """Names the systems with the largest differences in parentheses."""
        if not lines:
            return ""
        names = []
        for line in lines[:_NAMED]:
            name = line.system
            if len(self._list_against()) > 1:
                name += f" {_VERDICTS[verdict][1]} {line.against}"
            if verdict in ("better", "worse"):
                name += f" {_show_difference(_compare(line))[0]}"
            names.append(name)
        more = [f"{len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
        return f" ({', '.join([*names, *more])})"

    def _cover(self, judged: Sequence[Line]) -> str:
        """The sources of variance that the verdicts cover."""
        choice = f"the choice of the {self.unit}"
        if all(line.same is not None for line in judged):
            left_out = dict.fromkeys(line.same for line in judged if line.same)
            return f"{choice}, but not {'; '.join(left_out)}" if left_out else f"{choice} alone"
        seeds = [count for line in judged for count in _compare(line).num_seeds]
        alone = [line for line in judged if _compare(line).seed_error is None]
        if len(alone) == len(judged):
            return f"{choice} alone (one seed each: another seed may give another verdict)"
        number = str(min(seeds)) if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
        covers = f"{choice} and of the seeds ({number} each)"
        if alone:
            names = [line.system for line in alone]
            return f"{covers}, but of {_join(names)} the {self.unit} alone"
        return covers

    def _list_other_verdicts(self, judged: Sequence[Line]) -> Iterator[str]:
        """Yields the verdicts by log-probability that are not those by the measure."""
        for line in judged:
            if line.other_verdict in (line.verdict, "no verdict", ""):
                continue
            remarks = f" ({', '.join(line.log_prob_remarks)})" if line.log_prob_remarks else ""
            yield f"{claim(line.other_verdict, line.against, line.system)}{remarks}"

    def _is_useless(self, line: Line) -> bool:
        """Returns whether neither system translates, so that a verdict means nothing."""
        comparison = line.comparison
        is_bleu = self.measure.startswith("bleu")
        return is_bleu and comparison is not None and max(comparison.values) < USELESS

    def _list_remarks(self, line: Line) -> list[str]:
        useless = f"neither {self.noun} translates yet"
        return [*[useless] * self._is_useless(line), *line.remarks]

    def make_table(self, narrow: bool = False) -> Table:
        """Makes the table of a report, or a narrow one for a terminal.

        The narrow one lacks what a system changes, its further facts, and the minutes.
        """
        columns = [column for column in self._list_columns(narrow) if any(column.cells)]
        names = [column.header for column in columns]
        if narrow:
            names = [name.replace(", ", ",\n").replace("-minutes", "-\nminutes") for name in names]
        align = "".join(column.align for column in columns)
        rows = [*zip(*(column.cells for column in columns), strict=True)]
        texts = [number for number, letter in enumerate(align) if letter == "l"]
        return Table(names, rows, align, wrapped=texts)

    def _list_columns(self, narrow: bool) -> Iterator[_Column]:
        lines, against = self.lines, self._list_against()
        # A system that is judged twice has one score and one cost.
        seen = [{line.system for line in lines[:number]} for number in range(len(lines))]
        own = [
            Line(system="") if line.system in before else line
            for line, before in zip(lines, seen, strict=True)
        ]
        costs = [line.cost.format() if line.cost else dict.fromkeys(COSTS, "") for line in own]
        yield _Column(self.noun, "l", [line.system for line in lines])
        if not narrow:
            yield _Column("what changes", "l", [line.changes for line in own])
        counts = {len(line.score.seeds) for line in lines if line.score}
        in_header = len(counts) == 1 and max(counts) > 1
        seeds = f", {max(counts)} seeds" if in_header else ""
        scores = [_format_own_score(line, with_seeds=not in_header) for line in own]
        yield _Column(self.measure + seeds, "r", scores)
        if len(against) > 1:
            yield _Column("against", "l", [line.against for line in lines])
        yield from self._list_differences(narrow)
        if not narrow:
            for name in dict.fromkeys(name for line in lines for name in line.facts):
                yield _Column(name, "r", [line.facts.get(name, "") for line in own])
            yield _Column("minutes", "r", [cost["minutes"] for cost in costs])
            yield _Column("start", "r", [cost["start"] for cost in costs])
        for name in ("core-minutes", "device-minutes"):
            yield _Column(name, "r", [cost[name] for cost in costs])

    def _list_differences(self, narrow: bool) -> Iterator[_Column]:
        """Yields the verdicts with differences and the p-values, by both measures."""
        lines, against = self.lines, self._list_against()
        common = f" from {against[0]}" if len(against) == 1 else ""
        corrected = ", corrected" * any(x.comparison.correction for x in lines if x.comparison)
        p_value = f"p{corrected}"
        by_measure = [
            _show(line.verdict, line.comparison, self._list_remarks(line), narrow) for line in lines
        ]
        by_log_prob = [
            _show(line.other_verdict, line.by_log_prob, line.log_prob_remarks, narrow)
            if line.by_log_prob
            else ("", "")
            for line in lines
        ]
        other = f"by log-probability, {self.log_prob} (less is better)"
        difference = f"difference{common}, 95% interval{corrected}"
        for header, cells in ((difference, by_measure), (other, by_log_prob)):
            yield _Column(header, "l", [verdict for verdict, _ in cells])
            yield _Column(p_value, "r", [p for _, p in cells])

    def _list_against(self) -> list[str]:
        """The systems that others are judged against."""
        return [*dict.fromkeys(line.against for line in self.lines if line.against)]

    def make_score_table(self) -> Table:
        """Makes the table of the scores with their intervals over sentences and over seeds."""
        rows = []
        for line in {line.system: line for line in self.lines if line.score}.values():
            score = line.score
            assert score
            over_seeds = format_interval(score.over_seeds, score.value) or "one seed"
            rows.append(
                [
                    line.system, str(len(score.seeds)), format_score(score.value),
                    format_interval(score.over_sentences, score.value), over_seeds,
                ]
            )  # fmt: skip
        header = (
            self.noun, "seeds", self.measure, f"95% over {self.unit}", "95% over seeds"
        )  # fmt: skip
        return Table(header, rows, "lrrll", wrapped=(0,))

    def record(self) -> list[dict[str, Any]]:
        """Returns the lines for programs, with all digits."""
        return [
            {
                "name": line.system,
                "changes": line.changes,
                "measure": self.measure,
                "score": line.score and line.score.value,
                "seeds": list(line.score.seeds) if line.score else [],
                "over_sentences": line.score and line.score.over_sentences,
                "over_seeds": line.score and line.score.over_seeds,
                "against": line.against,
                "by_measure": _record(line.verdict, line.comparison),
                "by_log_probability": _record(line.other_verdict, line.by_log_prob),
                "remarks": [*self._list_remarks(line), *line.log_prob_remarks],
                "cost": line.cost and line.cost._asdict(),
                **line.facts,
            }
            for line in self.lines
        ]


def _compare(line: Line) -> SystemComparison:
    assert line.comparison
    return line.comparison


def _format_own_score(line: Line, with_seeds: bool) -> str:
    if line.score is None:
        return ""
    count = len(line.score.seeds)
    seeds = f", {count} seeds" if with_seeds and count > 1 else ""
    return " ".join(filter(None, (format_score(line.score.value), line.measure))) + seeds


def _show_difference(comparison: SystemComparison) -> tuple[str, str]:
    return format_difference(comparison.values, comparison.interval)


def _show(
    verdict: str, comparison: SystemComparison | None, remarks: Sequence[str], narrow: bool
) -> tuple[str, str]:
    """Returns the cells of the verdict with the difference, and of the p-value.

    A narrow cell has one line for the difference, and one for verdict and p-value.
    """
    if comparison is None:
        return ("\n" if narrow else "; ").join(remarks), ""
    difference, interval = _show_difference(comparison)
    shown = " ".join(filter(None, (difference, interval.replace(" ", NO_BREAK if narrow else " "))))
    has_verdict = verdict != "no verdict"
    if narrow:
        p_value = f", p {format_p_value(comparison.adjusted, sign=True)}".replace(" ", NO_BREAK)
        return "\n".join([shown, verdict + p_value * has_verdict, *remarks]), ""
    p_value = format_p_value(comparison.adjusted) if has_verdict else ""
    return "; ".join([f"{verdict}: {shown}", *remarks]), p_value


def _record(verdict: str, comparison: SystemComparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {
        "verdict": verdict,
        "difference": comparison.difference,
        "interval": comparison.interval,
        "p": None if math.isnan(comparison.p_value) else comparison.p_value,
        "p_corrected": None if math.isnan(comparison.adjusted) else comparison.adjusted,
        "interval_level": 1 - comparison.level,
        "correction": comparison.correction,
        "sentence_error": comparison.sentence_error,
        "seed_error": comparison.seed_error,
    }


def _join(names: Sequence[str]) -> str:
    """Joins names like "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
