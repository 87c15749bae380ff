"""Describes the result of a significance test in words."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from t2t.config.field_types import Role
from t2t.config.variants import find_role
from t2t.evaluation.measure import LEVEL, MIN_SENTENCES, Measure, TestSet, make_likelihood
from t2t.evaluation.number_format import (
    format_difference,
    format_error,
    format_p_value,
    format_score,
)
from t2t.evaluation.passport import Passport
from t2t.evaluation.saved_evaluations import Evaluation
from t2t.evaluation.significance import Judgement, SystemComparison, judge
from t2t.evaluation.systems import System, in_words, list_changes, read_reference_losses

# Options of a plugin may be of a loss, such as the temperature of a distillation.
_OF_LOSSES = {Role.LOSS, Role.OPTIONS}
USELESS = 1.0  # BLEU, from 0 to 100: less comes from chance matches of frequent words


def describe(
    comparison: SystemComparison,
    names: tuple[str, str],
    measure: str,
    num_units: int,
    *,
    same: str | None = None,
    unit: str = "sentences",
) -> str:
    """Says whether the second system is better, worse or not distinguishable, with the figures.

    `same` is that of `list_same`, or None if the models are not the same. `num_units` is the number
    of what is resampled: sentences or documents (`unit`).
    """
    first, second = names
    old, new = comparison.values
    difference, interval = format_difference(comparison.values, comparison.interval)
    facts = f"{format_score(new)} {measure} against {format_score(old)}, {difference}"
    if _is_same_output(comparison, same):
        return f"No verdict: {second} is the same model as {first}, with equal scores: {facts}."
    if math.isnan(comparison.p_value):
        return f"No verdict on {second}: {facts}. {_explain(comparison, num_units, unit)}"
    p_values = f"p {format_p_value(comparison.p_value, sign=True)}"
    if comparison.adjusted != comparison.p_value:
        p_values += f", {format_p_value(comparison.adjusted)} with {comparison.correction}"
    error = format_error(comparison.sentence_error)
    if comparison.seed_error is None:
        errors = f"{error} from {num_units} {unit}"
    else:
        seeds = " and ".join(map(str, comparison.num_seeds))
        errors = (
            f"{format_error(comparison.seed_error)} from {seeds} seeds on these {num_units} {unit},"
            f" an additional {error} from the choice of the {unit}"
        )
    if interval:
        corrected = f" with {comparison.correction}" if comparison.level != LEVEL else ""
        interval = f"95% interval {interval}{corrected}, "
    facts += f" ({interval}two-sided {p_values}; standard error {errors})."
    sentences = [
        f"{claim(name_verdict(comparison), first, second)}: {facts}",
        _advise(comparison, num_units, unit),
        _describe_coverage(comparison, names, same, unit),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _explain(comparison: SystemComparison, num_units: int, unit: str) -> str:
    """Says why a difference was not tested."""
    if num_units < MIN_SENTENCES:
        return f"Resamples of fewer than {MIN_SENTENCES} {unit} do not show how scores vary."
    if not math.isfinite(comparison.difference):
        return "A score is not finite."
    return f"The scores differ, but do not vary over resamples of the {unit}."


def _is_same_output(comparison: SystemComparison, same: str | None) -> bool:
    """Returns whether one model, without any chance, has two equal scores."""
    return same == "" and math.isclose(*comparison.values, rel_tol=1e-6)  # saved ones are rounded


def name_verdict(comparison: SystemComparison, same: str | None = None) -> str:
    """Returns "better", "worse", "not distinguishable" or "no verdict"; `same` as in `describe`."""
    if math.isnan(comparison.p_value) or _is_same_output(comparison, same):
        return "no verdict"
    if not comparison.distinguishable:
        return "not distinguishable"
    return "better" if comparison.better else "worse"


def claim(verdict: str, first: str, second: str) -> str:
    """Returns the result of `name_verdict` as a clause."""
    if verdict == "no verdict":
        return f"no verdict on {second} against {first}"
    return f"{second} is {verdict} {'from' if verdict == 'not distinguishable' else 'than'} {first}"


def _describe_coverage(
    comparison: SystemComparison, names: tuple[str, str], same: str | None, unit: str
) -> str:
    """Says which sources of variance the verdict covers."""
    if same == "":
        return f"Both are the same model, so only the choice of the {unit} varies; it is covered."
    if same:
        return f"Both are the same model. This covers the choice of the {unit}, but not {same}."
    if comparison.seed_error is not None:
        covered = f"This covers the choice of the {unit} and of the seeds"
        if 1 not in comparison.num_seeds:
            return f"{covered}."
        single = names[comparison.num_seeds.index(1)]
        return f"{covered}, if both vary equally over seeds: {single} has one run."
    return (
        f"This covers only the choice of the {unit}: with one run per system the variance over "
        "seeds is unknown, and another seed may give another verdict."
    )


def _advise(comparison: SystemComparison, num_units: int, unit: str) -> str:
    """Says how many sentences would show this difference, or what reduces the error more."""
    if comparison.distinguishable or not comparison.difference or comparison.interval is None:
        return ""
    if comparison.seed_error is not None:
        parts = [unit, "seeds"]
        if comparison.seed_error > comparison.sentence_error:
            parts.reverse()
        return f"More {parts[0]} would reduce the error more than more {parts[1]}."
    half = (comparison.interval[1] - comparison.interval[0]) / 2
    needed = num_units * (half / comparison.difference) ** 2
    if not num_units < needed <= 1_000_000:
        return ""
    digits = 10 ** max(math.floor(math.log10(needed)) - 1, 0)
    return (
        f"Showing a difference of this size would take about "
        f"{math.ceil(needed / digits) * digits:,} {unit}."
    )


def translates(evaluation: Evaluation) -> bool:
    """Returns whether outputs have `USELESS` BLEU or more or, without BLEU, an exact match.

    True if neither was measured.
    """
    measures = evaluation.result["measures"]
    bleu = [evaluation.value(name) for name in measures if name.startswith("bleu")]
    exact = [evaluation.value(name) for name in measures if name.startswith("exact_match")]
    return max(bleu) >= USELESS if bleu else max(exact, default=math.inf) > 0


def describe_all(judgement: Judgement, measure: str, same: Mapping[str, str] = {}) -> list[str]:
    """Describes each comparison in a line, and the error rate of several verdicts together.

    `same` is the result of `list_same`.
    """
    first = next(iter(judgement.scores))
    lines = [
        describe(
            comparison,
            (first, name),
            measure,
            judgement.num_units,
            same=same.get(name),
            unit=judgement.unit,
        )
        for name, comparison in judgement.comparisons.items()
    ]
    count, share = len(judgement.comparisons), judgement.share
    if judgement.num_corrected > 1 or (count and share < 1):
        correction = next(iter(judgement.comparisons.values())).correction
        together = f"These {count} comparisons are judged together" if count > 1 else "It is judged"
        if judgement.num_corrected > count:
            together += f" as part of {judgement.num_corrected} that could have been made"
        looks = ", at the look or at the end," if share < 1 else ""
        without_seeds = any(each.seed_error is None for each in judgement.comparisons.values())
        lines.append(
            f"{together} ({correction}): if no system differs from {first}, the probability of any "
            f"false verdict{looks} is at most {LEVEL:.0%}"
            f"{f', as far as the choice of the {judgement.unit} goes' * without_seeds}."
        )
    return lines


def list_same(systems: Sequence[System]) -> dict[str, str]:
    """Returns the systems that are the same model as the first one.

    The value says in words which chance other than the choice of the sentences made the difference
    between their translations; it is empty if there is none.
    """
    first, *others = systems
    return {
        each.name: _list_chances(first.passport, each.passport)
        for each in others
        if first.is_same_model(each)
    }


def _list_chances(one: Passport, other: Passport) -> str:
    """Says what varies besides the sentences where one model translates twice."""
    found, strategies = [], {each.decoding.get("strategy") for each in (one, other)}
    if "sampling" in strategies and one.diff(other, "decoding"):
        found.append("the draws of the samples: another sampling_seed may give another verdict")
    if engine := one.diff(other, "backend"):
        found.append(f"the rounding, in which they differ by {in_words(engine)}")
    return ", nor ".join(found)


def describe_losses(systems: Sequence[System]) -> dict[str, str]:
    """Describes the loss of each system that trained with another one than the first system.

    For example {"smooth": "training.label_smoothing 0.0 -> 0.1"}. Each loss wants other
    probabilities: label smoothing wants less than 1 even for a certain word.
    """
    first, *others = systems
    found = {}
    for each in others:
        changes = list_changes(first, each)
        names = [name for name in changes if find_role(name) in _OF_LOSSES]
        if own := [f"{name} {changes[name]}" for name in names]:
            found[each.name] = ", ".join(own)
    return found


def warn_of_losses(systems: Sequence[System]) -> list[str]:
    """Says that log-probability and perplexity are no neutral judges between two losses."""
    if not (losses := describe_losses(systems)):
        return []
    rows = "; ".join(f"{name}: {loss}" for name, loss in losses.items())
    return [
        "Log-probability and perplexity are no neutral judges where the loss of training differs "
        f"from that of {systems[0].name} ({rows}): label smoothing, for example, lowers the "
        "probability of right words by intention."
    ]


class LogProbVerdicts(NamedTuple):
    """The verdicts by the references' log-probability."""

    judged: tuple[Measure, Judgement] | None  # the measure, nats per token; None if there are none
    sentences: list[str]  # that describe them, or say why there are none


def judge_log_probs(
    systems: Sequence[System], test_set: TestSet, share: float = 1.0, family: int = 0
) -> LogProbVerdicts:
    """Judges by the references' log-probability, which resolves smaller differences than BLEU.

    Systems that write another case than the first one are left out: their references are another
    text. `share` and `family` are those of `judge`.
    """
    first, *others = systems
    lines = []
    if cased := [each.name for each in others if each.is_lowercase != first.is_lowercase]:
        own, other = ("lower-case", "cased") if first.is_lowercase else ("cased", "lower-case")
        lines.append(
            f"No verdict by the references' log-probability on {', '.join(cased)}: {other} "
            f"references are another text than {first.name}'s {own} ones (tokenizer.lowercase)."
        )
        systems = [each for each in systems if each.name not in cased]
    found = read_reference_losses(systems, test_set)
    if found is None:
        reason = (
            "a run was evaluated without it, or fewer than two references have a finite one under "
            "all runs; evaluate that run again."
        )
        if outputs := [each.name for each in systems if not each.passport.is_of_run]:
            reason = f"another program translated {' and '.join(outputs)}, and gives none."
        lines.append(f"No verdict by the references' log-probability: {reason}")
        return LogProbVerdicts(None, lines)
    losses, kept, token = found
    lines += warn_of_losses(systems)
    count = len(test_set.sources if test_set.part is None else test_set.part)
    if left_out := count - next(iter(losses.values())).shape[1]:
        lines.append(
            f"{left_out} of {count} references have no finite log-probability under"
            " some run, or no words to count, or are missing (empty, but not their sources); they "
            "are left out of the verdict by it."
        )
    measure = make_likelihood(token)
    judgement = judge(losses, measure, kept, share, family)
    with np.errstate(over="ignore"):  # a diverged run has an infinite perplexity
        perplexities = ", ".join(
            f"{name} {format_score(float(np.exp(score.value)))}"
            for name, score in judgement.scores.items()
        )
    lines += [
        f"By the references' log-probability, perplexity per {token}: {perplexities}",
        *describe_all(judgement, measure.name, dict.fromkeys(list_same(systems), "")),
    ]
    return LogProbVerdicts((measure, judgement), lines)
