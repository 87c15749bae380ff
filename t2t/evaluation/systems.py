"""Systems of a comparison, from saved evaluations; what does not compare is refused.

An operand names a system: a run directory or the .json of an evaluation, or several that differ in
their seed, joined by commas.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t2t.config.type_checks import REMOVED_FIELDS
from t2t.evaluation.saved_evaluations import Evaluation, EvaluationError, find_evaluation
from t2t.evaluation.scores import Measure
from t2t.evaluation.significance import Statistics

# What may differ between the seeds of one system: where things lie, and in which shapes they are
# computed, whose rounding is chance as the seed is, and much less of it.
_MAY_DIFFER = ("seed", "mesh.", "data.directory", "data.cache_directory", "checkpoints.",
         "training.log_every", "decoding.batch_size", *REMOVED_FIELDS)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class System:
    """One way to train, in one or several runs that differ in their seed."""

    name: str
    evaluations: Sequence[Evaluation]
    hypotheses: Sequence[Sequence[str]]  # of each run


@dataclasses.dataclass(frozen=True)
class TestSet:
    """What all systems translated."""

    sources: Sequence[str]
    references: Sequence[str]


def read_system(operand: str, split: str, evaluation: str) -> System:
    """The evaluations that an operand names, with their hypotheses.

    Raises:
        EvaluationError: one is not there, or they are not seeds of one system.
    """
    places = [Path(place).expanduser() for place in operand.split(",")]
    found = [find_evaluation(place, split, evaluation) for place in places]
    hypotheses = [each.read_lines("hypotheses") for each in found]
    check_seeds(operand, found)
    name = str(places[0]) if len(places) == 1 else f"{places[0]} (+{len(places) - 1})"
    return System(name, found, hypotheses)


def check_seeds(operand: str, evaluations: Sequence[Evaluation]) -> None:
    """Raises `EvaluationError` where runs joined by a comma differ in more than their seed."""
    first, *others = evaluations
    for other in others:
        if changed := [
            name for name in list_changes(first, other) if not name.startswith(_MAY_DIFFER)
        ]:
            raise EvaluationError(
                f"{operand}: {other.path} is no other seed of {first.path}, for it differs in "
                f"{', '.join(changed)}; give it as a system of its own, after a blank"
            )
    seeds = [each.result["config"].get("seed", 0) for each in evaluations]
    if len(set(seeds)) < len(seeds):
        raise EvaluationError(
            f"{operand}: the seeds are {', '.join(map(str, seeds))}; runs joined by a comma need "
            "different ones, for the same run twice says nothing about chance"
        )


def list_changes(one: Evaluation, other: Evaluation) -> dict[str, str]:
    """The config fields that differ: name -> "4 -> 1"."""
    configs = [each.result["config"] for each in (one, other)]
    names = dict.fromkeys([*configs[0], *configs[1]])
    values = {name: [config.get(name, "default") for config in configs] for name in names}
    return {name: f"{a} -> {b}" for name, (a, b) in values.items() if a != b}


def check_comparable(systems: Sequence[System], measure: str, chosen: Measure) -> TestSet:
    """The test set of all systems.

    Raises:
        EvaluationError: they are of different ones, or scored by different definitions.
    """
    evaluations = [each for system in systems for each in system.evaluations]
    first = evaluations[0]
    test_set = TestSet(first.read_lines("sources"), first.read_lines("references"))
    for other in evaluations[1:]:
        if other.result["num_sentences"] != first.result["num_sentences"]:
            raise EvaluationError(
                f"{first.path} has {first.result['num_sentences']} sentences and {other.path} "
                f"{other.result['num_sentences']}; evaluate both on one test set"
            )
        if other.read_lines("references") != test_set.references:
            raise EvaluationError(
                f"{first.path} ({first.result['split']}) and {other.path} "
                f"({other.result['split']}) have different references; evaluate both on one test "
                "set, with --split or with --src and --ref"
            )
        if other.read_lines("sources") != test_set.sources:
            raise EvaluationError(
                f"{first.path} and {other.path} translate different sources; evaluate both on one "
                "test set"
            )
    for system in systems:
        for each, hypotheses in zip(system.evaluations, system.hypotheses, strict=True):
            check_definition(each, hypotheses, test_set, measure, chosen)
    return test_set


def count_references(
    systems: Sequence[System], references: Sequence[str]
) -> tuple[dict[str, Statistics], str] | None:
    """(nats, tokens) of each reference under each run, by system, and what a token is.

    Tokens are sub-words where all runs have the same, else words between blanks. References that
    one of the runs could not take are left out of all. None where a run was evaluated without its
    log-probabilities, or has none that is finite.
    """
    evaluations = [each for system in systems for each in system.evaluations]
    if not all("log_probs" in each.result.get("texts", {}) for each in evaluations):
        return None
    found = {
        system.name: np.array([each.read_log_probs() for each in system.evaluations])
        for system in systems
    }
    every = np.concatenate([*found.values()])
    taken = np.isfinite(every[..., 0]).all(axis=0)
    if not taken.any():
        return None
    unit = "sub-word"
    if (every[..., 1] != every[0, :, 1])[:, taken].any():
        unit = "word"
        words = [len(line.split()) for line in references]
        for counts in found.values():
            counts[..., 1] = words
    for counts in found.values():
        counts[..., 0] *= -1
    return {name: counts[:, taken] for name, counts in found.items()}, unit


def check_definition(
    evaluation: Evaluation,
    hypotheses: Sequence[str],
    test_set: TestSet,
    measure: str,
    chosen: Measure,
) -> None:
    """Raises `EvaluationError` where the saved score is not what is computed here."""
    saved = evaluation.result["measures"].get(measure)
    now = chosen.score(hypotheses, test_set.references)
    if saved is None or saved["definition"] != now.definition:
        raise EvaluationError(
            f"{measure} of {evaluation.path} is defined otherwise than that of the first system "
            f"here: {saved['definition'] if saved else 'it was not measured'}, not "
            f"{now.definition}; evaluate that run again with the versions that are installed here"
        )
    if abs(saved["value"] - now.value) > 1e-6:
        raise EvaluationError(
            f"{evaluation.path} says {measure} {saved['value']:.4f}, but its hypotheses give "
            f"{now.value:.4f}: the files do not belong together; evaluate that run again"
        )
