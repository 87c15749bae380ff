"""Reads the systems of a comparison from saved evaluations, and checks that they are comparable.

An operand names a system: a run directory or the .json of an evaluation, or several of them that
differ only in their seed, joined by commas. What else its seeds may differ in has to be named, for
example data.train_src where each seed trained on translations of its own teacher.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from t2t.config.type_checks import REMOVED_FIELDS
from t2t.evaluation.saved_evaluations import (
    Evaluation,
    EvaluationError,
    find_evaluation,
    identify_backend,
)
from t2t.evaluation.scores import Measure
from t2t.evaluation.significance import Statistics
from t2t.storage.paths import make_path

# Config fields that may differ between the seeds of one system: locations, and devices and batch
# shapes, which change only the rounding; its effect is random like the seed's, but much smaller.
_MAY_DIFFER = ("seed", "mesh.", "data.directory", "data.cache_directory", "checkpoints.",
         "training.log_every", "decoding.batch_size", *REMOVED_FIELDS)  # fmt: skip


STEP = "checkpoint"  # in `may_differ`: seeds may be evaluated at different steps


@dataclasses.dataclass(frozen=True)
class System:
    """One training setup, in one run or in several that differ only in their seed."""

    name: str
    evaluations: Sequence[Evaluation]
    hypotheses: Sequence[Sequence[str]]  # of each run

    @property
    def is_lowercase(self) -> bool:
        """True if the model's vocabulary is lower-case (`tokenizer.lowercase`), and so its text."""
        return bool(self.evaluations[0].result["config"].get("tokenizer.lowercase", False))


@dataclasses.dataclass(frozen=True)
class TestSet:
    """The sentences that all systems translated."""

    sources: Sequence[str]
    references: Sequence[str]


def read_system(
    operand: str, split: str, evaluation: str, may_differ: Sequence[str] = ()
) -> System:
    """Reads the evaluations that an operand names, with their hypotheses.

    Args:
        operand: places of evaluations, joined by commas.
        split: the split of which each run's newest evaluation is read.
        evaluation: the name of an evaluation to read instead, or "".
        may_differ: config fields that each seed may have of its own.

    Raises:
        EvaluationError: one is missing, or they are not seeds of one system.
    """
    places = [make_path(place) for place in operand.split(",")]
    found = [find_evaluation(place, split, evaluation) for place in places]
    hypotheses = [each.read_lines("hypotheses") for each in found]
    check_seeds(operand, found, may_differ)
    more = len(places) - 1
    seeds = f" (and {more} more seed{'s' * (more > 1)})" if more else ""
    return System(f"{places[0]}{seeds}", found, hypotheses)


def check_seeds(
    operand: str, evaluations: Sequence[Evaluation], may_differ: Sequence[str] = ()
) -> None:
    """Raises `EvaluationError` if runs share a seed, or differ in more than it and `may_differ`."""
    first, *others = evaluations
    for other in others:
        labels = [each.result["checkpoint"] for each in (first, other)]
        (kind, _, step), (other_kind, _, other_step) = (label.rpartition("-") for label in labels)
        is_step_free = kind == "best" or STEP in may_differ
        if kind != other_kind or (step != other_step and not is_step_free):
            remedy = "name the file of one evaluation of each"
            if kind == other_kind:
                remedy += f", or allow other steps, as of early stopping: --may_differ={STEP}"
            raise EvaluationError(
                f"{operand}: the seeds were evaluated with different checkpoints, "
                f"{' and '.join(labels)}; {remedy}"
            )
        one, another = (identify_backend(each.result.get("backend", {})) for each in (first, other))
        if one != another:
            raise EvaluationError(
                f"{operand}: the seeds were translated by different backends, {one} and {another}; "
                "name the file of one evaluation of each"
            )
        if changed := [name for name in list_own(first, other) if name not in may_differ]:
            raise EvaluationError(
                f"{operand}: {other.path} is not another seed of {first.path}: it differs in "
                f"{', '.join(changed)}; separate them by a space to compare them as two systems, "
                "or let the seeds of a system differ there: "
                f"{' '.join(f'--may_differ={name}' for name in changed)}"
            )
    seeds = [each.result["config"].get("seed", 0) for each in evaluations]
    if len(set(seeds)) < len(seeds):
        raise EvaluationError(
            f"{operand}: the seeds are {', '.join(map(str, seeds))}; runs joined by commas need "
            "different seeds, since equal ones do not show the variance over seeds"
        )


def list_changes(one: Evaluation, other: Evaluation) -> dict[str, str]:
    """Returns the config fields that differ, for example {"model.num_heads": "4 -> 1"}."""
    # Earlier versions had these defaults, and recorded what differs from the defaults.
    languages = {"data.src_language": "en", "data.tgt_language": "de"}
    configs = [languages | each.result["config"] for each in (one, other)]
    names = dict.fromkeys([*configs[0], *configs[1]])
    values = {name: [config.get(name, "default") for config in configs] for name in names}
    return {name: f"{a} -> {b}" for name, (a, b) in values.items() if a != b}


def list_own(one: Evaluation, other: Evaluation) -> list[str]:
    """Returns the config fields that make two runs more than two seeds of one setup."""
    return [name for name in list_changes(one, other) if not name.startswith(_MAY_DIFFER)]


def check_comparable(systems: Sequence[System], measure: str, chosen: Measure) -> TestSet:
    """Returns the test set of all systems.

    Raises:
        EvaluationError: the systems have different test sets or definitions of the measure.
    """
    evaluations = [each for system in systems for each in system.evaluations]
    first = evaluations[0]
    test_set = TestSet(first.read_lines("sources"), first.read_lines("references"))
    if len(systems) > 1 and len(test_set.references) < 2:
        raise EvaluationError(
            f"{first.path} has one sentence, which shows no difference between systems; evaluate "
            "all on a larger test set"
        )
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


def read_reference_losses(
    systems: Sequence[System], references: Sequence[str]
) -> tuple[dict[str, Statistics], str] | None:
    """Reads (nats, tokens) of each reference under each run, by system.

    A token is a sub-word if all runs have the same number of sub-words in each reference, else a
    word separated by white space. References whose loss is not finite under some run are left out,
    and those without a word, if words are counted.

    Returns:
        The losses and the unit ("sub-word" or "word"); None if a run was evaluated without
        log-probabilities, or fewer than two references are left.
    """
    evaluations = [each for system in systems for each in system.evaluations]
    if not all("log_probs" in each.result.get("texts", {}) for each in evaluations):
        return None
    losses = {
        system.name: np.array([each.read_log_probs() for each in system.evaluations])
        for system in systems
    }
    runs = np.concatenate([*losses.values()])
    kept = np.isfinite(runs[..., 0]).all(axis=0)
    unit = "sub-word"
    if (runs[..., 1] != runs[0, :, 1])[:, kept].any():
        unit = "word"
        words = np.array([len(line.split()) for line in references])
        kept &= words > 0
        for values in losses.values():
            values[..., 1] = words
    if kept.sum() < 2:  # one shows no difference
        return None
    for values in losses.values():
        values[..., 0] *= -1
    return {name: values[:, kept] for name, values in losses.items()}, unit


def check_definition(
    evaluation: Evaluation,
    hypotheses: Sequence[str],
    test_set: TestSet,
    measure: str,
    chosen: Measure,
) -> None:
    """Raises `EvaluationError` if the saved score is not the one computed from the hypotheses."""
    saved = evaluation.result["measures"].get(measure)
    if saved is None:  # it was not asked for; the texts have all that it needs
        return
    now = chosen.score(hypotheses, test_set.references)
    if saved["definition"] != now.definition:
        raise EvaluationError(
            f"{measure} of {evaluation.path} has another definition than that of the first system "
            f"here: {saved['definition']}, not "
            f"{now.definition}; evaluate that run again with the versions that are installed here"
        )
    if abs(saved["value"] - now.value) > 1e-6:
        raise EvaluationError(
            f"{evaluation.path} says {measure} {saved['value']:.4f}, but its hypotheses give "
            f"{now.value:.4f}: the files do not belong together; evaluate that run again"
        )
