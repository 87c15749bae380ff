"""Judges systems by a measure and by the references' log-probability: lines, and sentences."""

import dataclasses
from collections.abc import Mapping, Sequence

from t2t.evaluation.kinds import KindJudgement, judge_kinds
from t2t.evaluation.measure import Measure, Statistics, TestSet
from t2t.evaluation.significance import Judgement, judge
from t2t.evaluation.systems import System, read_statistics
from t2t.evaluation.verdict import (
    describe_all,
    describe_losses,
    judge_log_probs,
    list_same,
    warn_of_losses,
)
from t2t.evaluation.verdict_table import Line, list_lines

_OTHER_LOSS = "no neutral judge: other loss"


@dataclasses.dataclass(frozen=True)
class Findings:
    """The verdicts on systems, each against the first one."""

    lines: Sequence[Line] = ()  # of the table of verdicts, one for each system
    sentences: Sequence[str] = ()  # the verdicts in full
    by_measure: Judgement = dataclasses.field(default_factory=lambda: Judgement({}, {}))
    by_kind: Sequence[KindJudgement] = ()  # by the measure, if the test set names kinds
    # the measure, nats per token, and the judgement by it; None if the systems have none
    by_log_prob: tuple[Measure, Judgement] | None = None

    @property
    def log_prob(self) -> str:
        """The unit of log-probabilities, such as "nats per sub-word"; empty without verdicts."""
        return self.by_log_prob[0].name if self.by_log_prob else ""


def judge_systems(
    systems: Sequence[System],
    measure: Measure,
    test_set: TestSet,
    statistics: Mapping[str, Statistics] | None = None,
    share: float = 1.0,
    family: int = 0,
) -> Findings:
    """Judges systems that `check_comparable` has found comparable; `test_set` is its result.

    `statistics` are those of `read_statistics`, if they are read already; `share` and `family` are
    those of `judge`. Runs on text alone are judged by the measure only, which is of
    log-probabilities itself.

    Raises:
        EvaluationError: as `read_statistics`.
    """
    statistics = statistics or read_statistics(systems, measure, test_set)
    by_measure = judge(statistics, measure, test_set, share, family)
    if len(systems) == 1:
        return Findings(list_lines(by_measure), [], by_measure)
    same, by_log_prob = list_same(systems), None
    sentences = describe_all(by_measure, measure.name, same)
    is_text_alone = bool(systems[0].passport.objective)
    if is_text_alone:
        sentences += warn_of_losses(systems)
    else:
        by_log_prob, described = judge_log_probs(systems, test_set, share, family)
        sentences += described
    lines = list_lines(by_measure, by_log_prob and by_log_prob[1], same)
    losses = describe_losses(systems)
    for number, line in enumerate(lines):
        if line.system in losses and is_text_alone:
            lines[number] = dataclasses.replace(line, remarks=[_OTHER_LOSS])
        elif line.system in losses:
            lines[number] = dataclasses.replace(line, log_prob_remarks=[_OTHER_LOSS])
    by_kind = judge_kinds(statistics, measure, test_set, share)
    return Findings(lines, sentences, by_measure, [by_kind] if by_kind else [], by_log_prob)
