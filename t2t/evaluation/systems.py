"""Reads the systems of a comparison from saved evaluations, and checks that they are comparable.

An operand names a system: a run directory or the .json of an evaluation, or several of them that
differ only in their seed, joined by commas; of another program's outputs, those that are said to be
seeds of one system. Other fields in which the seeds may differ have to be
named, such as data.train_src if each seed trained on translations of its own teacher.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from t2t.config.field_types import Role
from t2t.config.fields import ConfigError, TokenizerConfig, fields_with
from t2t.config.measure_rules import choose_measure, needs_model
from t2t.config.measures import CASED_MEASURES, MEASURE_FIELD, REFERENCE_MEASURES
from t2t.config.variants import choices, find_role
from t2t.data.sentences import is_missing
from t2t.evaluation.find_evaluations import find_evaluation, is_scores_file
from t2t.evaluation.measure import LEFT_OUT, Measure, Statistics, TestSet, have_spaces
from t2t.evaluation.passport import Passport
from t2t.evaluation.saved_evaluations import Evaluation, EvaluationError
from t2t.storage.paths import split_run_paths

# Roles of config fields that may differ between the seeds of one system. Of these, devices change
# the rounding; its effect on scores is random like the seed's, but much smaller.
_MAY_DIFFER = {Role.SEED, Role.DEVICES, Role.STORE, Role.CHECKPOINTS, Role.LOGGING}
STEP = "checkpoint"  # in `may_differ`: seeds may be evaluated at different steps

# Number formats of the backend, which seeds of one system share as well.
_FORMATS = ("backend.compute_type", "backend.products")
# The search, apart from its batches. How lines are cut follows from the config.
_SEARCH = ("backend.name", "decoding.utility", *fields_with(Role.SEARCH))
# Facts by which models with equal parameters may compute different outputs.
_MODEL = ("vocabulary", "ensemble", *fields_with(Role.MODEL, Role.REGULARIZATION, Role.COMPUTATION))

# The facts that systems share if their scores are comparable, and what to do if they do not.
_COMPARABLE = {
    "objective": "their scores measure other things; compare runs of one objective",
    "backend.name": "the searches of two backends do not end alike; evaluate all with one "
    "--backend",
    "documents": "evaluate both with one --segments",
    "kinds": "evaluate both with one --kinds",
    "references": "evaluate both on one test set, with --split, or with --src and --ref",
    "sources": "evaluate both on one test set, with --split, or with --src and --ref",
}


@dataclasses.dataclass(frozen=True)
class System:
    """One training setup, in one run or in several that differ only in their seed."""

    name: str
    evaluations: Sequence[Evaluation]
    is_named: bool = True  # False if a run's newest evaluation was taken

    @property
    def passport(self) -> Passport:
        """The passport of the first seed; all share objective, test set, search and formats."""
        return self.evaluations[0].passport

    @property
    def is_lowercase(self) -> bool:
        """True if a seed's vocabulary is lower-case (`tokenizer.lowercase`), and so its text."""
        return any(self._list_values("tokenizer.lowercase", False))

    @property
    def tokenizer_kind(self) -> str:
        """`tokenizer.kind` of the models: "symbols" if any seed writes no words."""
        kinds = self._list_values("tokenizer.kind", TokenizerConfig().kind)
        return "symbols" if "symbols" in kinds else str(kinds[0])

    def _list_values(self, field: str, default: Any) -> list[Any]:
        """Returns each seed's value of a field of the config."""
        return [each.passport.config.get(field, default) for each in self.evaluations]

    def read_scores(self, measure: str, kind: str = "") -> list[float]:
        """Returns each seed's score by a measure, on all sentences or on those of a kind.

        It is empty if a seed has no such score.
        """
        scores = []
        for each in self.evaluations:
            own = each.result.get("kinds", {}).get(kind, {}) if kind else each.result
            if measure in own.get("measures", {}):
                scores.append(float(own["measures"][measure]["value"]))
        return scores if len(scores) == len(self.evaluations) else []

    def is_same_model(self, other: "System") -> bool:
        """True if both are one run with equal parameters; False if it is not known."""
        seeds = [*self.evaluations, *other.evaluations]
        known = [each.passport.origin.get("parameters") for each in seeds]
        is_same = len(known) == 2 and None not in known and known[0] == known[1]
        recorded = [*self.passport.config, *other.passport.config]
        options = (name for name in recorded if name.startswith("plugin."))
        return is_same and not self.passport.diff(other.passport, *_MODEL, *options)


def read_system(
    operand: str,
    split: str,
    evaluation: str,
    may_differ: Sequence[str] = (),
    checkpoint: str = "",
    name: str = "",
    task: str = "",
) -> System:
    """Reads the evaluations that an operand names.

    From each run it takes the evaluation that `evaluation` names, or the newest one of the split
    and, if given, of the task and of the checkpoint, such as best or avg:5. `may_differ` are config
    fields in which the seeds may differ. The system has this name, or else that of its first seed.

    Raises:
        EvaluationError: one is missing, or they are not seeds of one system.
    """
    places = split_run_paths(operand)
    found = [find_evaluation(place, split, evaluation, checkpoint, task) for place in places]
    check_seeds(operand, found, may_differ)
    more = len(places) - 1
    seeds = f" (and {more} more seed{'s' * (more > 1)})" if more else ""
    is_named = bool(evaluation) or all(map(is_scores_file, places))
    return System(name or f"{places[0]}{seeds}", found, is_named)


def check_seeds(
    operand: str, evaluations: Sequence[Evaluation], may_differ: Sequence[str] = ()
) -> None:
    """Raises `EvaluationError` if runs share a seed, or differ in more than it and `may_differ`."""
    first, *others = evaluations
    one, remedy = first.passport, "name the file of one evaluation of each"
    for other in others:
        another = other.passport
        names = [each.origin.get("system", "") for each in (one, another)]
        if one.is_of_run != another.is_of_run or len({*names}) > 1:
            raise EvaluationError(
                f"{operand}: {' and '.join(each.describe_origin() for each in (one, another))} are "
                "no seeds of one system; separate them by a space"
            )
        if one.kind != another.kind:
            raise EvaluationError(
                f"{operand}: the seeds were evaluated with different checkpoints, "
                f"{one.checkpoint} and {another.checkpoint}; {remedy}"
            )
        if one.checkpoint != another.checkpoint and not (one.kind == "best" or STEP in may_differ):
            raise EvaluationError(
                f"{operand}: the seeds were evaluated with different checkpoints, "
                f"{one.checkpoint} and {another.checkpoint}; {remedy}, or allow other steps, as of "
                f"early stopping: --may_differ={STEP}"
            )
        if found := one.diff(another, *_FORMATS, *_SEARCH):
            raise EvaluationError(
                f"{operand}: the seeds were translated by different searches, {in_words(found)}; "
                f"{remedy}"
            )
        if changed := [name for name in list_setup_changes(first, other) if name not in may_differ]:
            raise EvaluationError(
                f"{operand}: {other.path} is not another seed of {first.path}: it differs in "
                f"{', '.join(changed)}; separate them by a space to compare them as two systems, "
                "or let the seeds of a system differ there: "
                f"{' '.join(f'--may_differ={name}' for name in changed)}"
            )
    seeds = [_find_seed(each) for each in evaluations]
    if len(set(seeds)) < len(seeds):
        raise EvaluationError(
            f"{operand}: the seeds are {', '.join(seeds)}; runs joined by commas need "
            "different seeds, since equal ones do not show the variance over seeds"
        )


def _find_seed(evaluation: Evaluation) -> str:
    """Returns the seed of a run or of another program's output; without one the output's hash."""
    passport = evaluation.passport
    if passport.is_of_run:
        return str(passport.config.get("seed", 0))
    return str(passport.origin.get("seed", passport.origin["sha256"][:8]))


def in_words(differences: Mapping[str, str]) -> str:
    """Formats what `Passport.diff` found: "decoding.beam_size 4 -> 1, seed 0 -> 1"."""
    return ", ".join(f"{name} {change}" for name, change in differences.items())


def list_unlike(systems: Sequence[System], *names: str) -> dict[str, list[str]]:
    """Returns the facts in which any two evaluations differ, with the values of each system.

    For example {"decoding.beam_size": ["2", "4"], "code.t2t": ["5e1f, 77ab", "5e1f"]}, where two
    seeds of the first system differ. `names` limits the facts as in `Passport.diff`.
    """
    seeds = [[each.passport for each in system.evaluations] for system in systems]
    pairs = itertools.combinations(itertools.chain.from_iterable(seeds), 2)
    unlike = dict.fromkeys(fact for one, other in pairs for fact in one.diff(other, *names))
    return {
        fact: [", ".join(sorted({each.find(fact) for each in own})) for own in seeds]
        for fact in unlike
    }


def list_changes(one: System, other: System) -> dict[str, str]:
    """Returns the config fields that differ, for example {"model.num_heads": "4 -> 1"}."""
    unlike = list_unlike([one, other], "config").items()
    return {name: f"{before} -> {after}" for name, (before, after) in unlike if before != after}


def list_setup_changes(one: Evaluation, other: Evaluation) -> list[str]:
    """Returns the config fields in which two runs differ, though seeds of one system may not."""
    changes = one.passport.diff(other.passport, "config")
    return [name for name in changes if find_role(name) not in _MAY_DIFFER]


def list_circumstances(systems: Sequence[System]) -> dict[str, list[str]]:
    """Returns the facts of an evaluation in which any two seeds differ, as `list_unlike` does.

    These facts are checkpoint, search, backend, code and versions.
    """
    found: dict[str, list[str]] = {}
    if all(each.passport.is_of_run for each in systems):
        labels = list_unlike(systems, "checkpoint")
        found |= {name: values for name, values in labels.items() if len({*values}) > 1}
    else:
        origins = [[each.passport.describe_origin() for each in x.evaluations] for x in systems]
        found["origin"] = [", ".join(dict.fromkeys(own)) for own in origins]
    return found | list_unlike(systems, "decoding", "backend", "code", "versions")


def check_alike(systems: Sequence[System]) -> None:
    """Raises `EvaluationError` if runs' newest evaluations have different checkpoints or searches.

    Evaluations that the user names may differ, since the difference may be the question.
    """
    runs = [system for system in systems if system.passport.is_of_run]
    if all(system.is_named for system in runs):
        return
    passports = [system.passport for system in runs]
    kinds = ["checkpoint"] if len({each.kind for each in passports}) > 1 else []
    # Of JAX the formats follow from device and config.
    others = any(each.backend["name"] != "jax" for each in passports)
    unlike = list_unlike(runs, *kinds, *_SEARCH, *["backend.compute_type"] * others)
    if not unlike:
        return
    differing = [f"{name}: {' and '.join(dict.fromkeys(own))}" for name, own in unlike.items()]
    raise EvaluationError(
        f"the newest evaluations of {' and '.join(system.name for system in runs)} differ in "
        f"{'; '.join(differing)}. Evaluate all "
        "alike, choose with --checkpoint=best or --evaluation=NAME, or name one .json of each run"
    )


def check_comparable(systems: Sequence[System]) -> TestSet:
    """Returns the test set of all systems.

    Raises:
        EvaluationError: the systems have different test sets, documents or backends.
    """
    first, *others = [each for system in systems for each in system.evaluations]
    test_set = first.read_test_set()
    if len(systems) > 1 and len(test_set.sources) < 2:
        raise EvaluationError(
            f"{first.path} has one sentence, which shows no difference between systems; evaluate "
            "all on a larger test set"
        )
    # With the texts as they are now, since somebody may have edited them.
    own = dataclasses.replace(first.passport, texts=first.hash_texts())
    for other in others:
        found = own.diff(dataclasses.replace(other.passport, texts=other.hash_texts()))
        unlike = ((fact, name) for name in _COMPARABLE for fact in found if fact.startswith(name))
        for fact, name in unlike:
            first_size, other_size = (
                f"{each.passport.data['split']}, {each.result['num_sentences']} sentences"
                for each in (first, other)
            )
            raise EvaluationError(
                f"{first.path} ({first_size}) and {other.path} ({other_size}) have different "
                f"{fact}: {found[fact]}; {_COMPARABLE[name]}"
            )
    return _check_predicted(systems, test_set) if first.passport.objective else test_set


def _check_predicted(systems: Sequence[System], texts: TestSet) -> TestSet:
    """Checks that all runs predict equally many sub-words of each text; drops texts without any.

    Perplexities per sub-word of two vocabularies are not comparable.
    """
    first, *others = [each for system in systems for each in system.evaluations]
    if len({system.is_lowercase for system in systems}) > 1:
        raise EvaluationError(
            "some of the systems predict lower-case text (tokenizer.lowercase), which is another "
            "text; compare runs of one case"
        )
    counts = first.read_log_probs()[:, 1]
    for other in others:
        if (other.read_log_probs()[:, 1] != counts).any():
            raise EvaluationError(
                f"{first.path} and {other.path} predict different numbers of sub-words of a text: "
                "their vocabularies differ, or what is left out or masked, or a text is too long "
                "for one of the models; train both with one tokenizer.path and data.objective"
            )
    kept = [text for text, count in zip(texts.sources, counts, strict=True) if count]
    return TestSet(kept, [kept])


def open_measure(systems: Sequence[System], name: str | None = None) -> tuple[Measure, list[str]]:
    """Returns the measure by which all systems are compared; `name=None`: `choose_measure`.

    Also returns notes for the reader: one if BLEU, the usual choice, does not fit the text.

    Raises:
        ConfigError: the measure does not fit all systems.
        EvaluationError: as `Evaluation.open_measure`.
    """
    cases = {system.is_lowercase for system in systems}
    if len(cases) > 1 and name in CASED_MEASURES:
        raise ConfigError(
            f"--measure={name} counts lower-case outputs as errors, and some of the systems are "
            "lower-case (tokenizer.lowercase); use --measure=bleu_lowercase"
        )
    first, kinds = systems[0].evaluations[0], {system.tokenizer_kind for system in systems}
    if first.passport.objective:
        return first.open_measure(choose_measure(name, lowercase=False, text_alone=True)), []
    language = first.passport.data["tgt_language"]
    choose = functools.partial(
        choose_measure,
        lowercase=any(cases),
        kind="symbols" if "symbols" in kinds else "",
        language=language,
    )
    chosen = choose(name, spaces=have_spaces(language, *first.read_test_set().references))
    notes = []
    saved = [each.result["measures"] for system in systems for each in system.evaluations]
    of_others = not any(system.passport.is_of_run for system in systems)
    if not name and of_others and not all(chosen in own for own in saved):
        shared = [each for each in saved[0] if all(each in own for own in saved)]
        if shared and shared != [REFERENCE_MEASURES[0]]:
            notes.append(
                f"no {chosen}, by which not all were scored: the verdicts are by {shared[0]}"
            )
            return first.open_measure(shared[0]), notes
    if not name and chosen != (usual := choose(None, spaces=True)):
        notes.append(
            f"the references have no spaces between words, by which {usual} would count them: the "
            f"first verdict is by {chosen}"
        )
    return first.open_measure(chosen), notes


def read_statistics(
    systems: Sequence[System], measure: Measure, test_set: TestSet
) -> dict[str, Statistics]:
    """Returns the statistics of each sentence by a measure, for each seed of each system.

    Raises:
        EvaluationError: a saved score has another definition, or its texts do not give it.
    """
    return {
        system.name: np.stack(
            [_read_statistics(each, measure, test_set) for each in system.evaluations]
        )
        for system in systems
    }


def _read_statistics(
    evaluation: Evaluation, measure: Measure, test_set: TestSet
) -> Float[np.ndarray, "n _"]:
    """Returns the statistics of an evaluation, and checks its saved score by them."""
    measures = evaluation.result["measures"]
    tolerance = 1e-6
    counts = evaluation.read_statistics(measure, test_set)
    if evaluation.passport.objective:
        tolerance *= max(measures[measure.name]["value"], 1.0)  # nats are saved with six digits
    own, checked = counts, measure
    if measure.name not in measures:  # not saved: another measure shows whether the texts belong
        known = choices(MEASURE_FIELD)  # scores by a model are stored, and do not depend on texts
        others = [name for name in measures if name in known and not needs_model(name)]
        if not others:
            return counts
        checked = evaluation.open_measure(others[0])
        own = evaluation.read_statistics(checked, test_set)
    saved, value = measures[checked.name], checked.aggregate(own.sum(axis=0))
    definitions = [saved["definition"], checked.definition]
    if evaluation.passport.objective:  # `_check_predicted` compares which texts are left out
        definitions = [each.partition(LEFT_OUT)[0] for each in definitions]
    if definitions[0] != definitions[1]:
        remedy = "score all systems alike"
        if evaluation.passport.objective:
            remedy = "compare runs whose data.objective has the same settings"
        elif checked.segments:
            remedy = "evaluate that run again with the versions that are installed here"
        raise EvaluationError(
            f"{checked.name} of {evaluation.path} has another definition than the first system "
            f"here: {saved['definition']}, not {checked.definition}; {remedy}"
        )
    if not np.isclose(saved["value"], value, rtol=0, atol=tolerance, equal_nan=True):
        texts = "texts" if evaluation.passport.objective else "hypotheses"
        raise EvaluationError(
            f"{evaluation.path} says {checked.name} {saved['value']:.4f}, but its {texts} give "
            f"{value:.4f}: the files do not belong together; evaluate that run again"
        )
    return counts


def read_reference_losses(
    systems: Sequence[System], test_set: TestSet
) -> tuple[dict[str, Statistics], TestSet, str] | None:
    """Reads (nats, tokens) of each first reference under each run, by system.

    A token is a sub-word if all runs have the same number of sub-words in each reference, else a
    word separated by white space. References that are missing or whose loss is not finite under
    some run are left out, and those without a word, if words are counted.

    Returns the losses of the references that are left; the test set, whose `documents` and `part`
    are those of the references that are left; and the token ("sub-word" or "word"). None if a run
    was evaluated without log-probabilities, or fewer than two references are left.
    """
    evaluations = [each for system in systems for each in system.evaluations]
    if not all("log_probs" in each.result["texts"] for each in evaluations):
        return None
    losses = {  # nats are minus the log-probability
        system.name: np.array([each.read_log_probs() * (-1, 1) for each in system.evaluations])
        for system in systems
    }
    runs = np.concatenate([*losses.values()])
    missing = [*map(is_missing, test_set.sources, test_set.references[0])]
    kept = np.isfinite(runs[..., 0]).all(axis=0) & ~np.array(missing, bool)
    if test_set.part is not None:
        kept &= np.isin(np.arange(len(kept)), test_set.part)
    token = "sub-word"
    if (runs[..., 1] != runs[0, :, 1])[:, kept].any():
        token = "word"
        words = np.array([len(line.split()) for line in test_set.references[0]])
        kept &= words > 0
        for values in losses.values():
            values[..., 1] = words
    if kept.sum() < 2:  # one shows no difference
        return None
    if test_set.documents is not None:  # numbered anew, without documents that have become empty
        renumbered = np.unique(test_set.documents[kept], return_inverse=True)[1]
        test_set = test_set._replace(documents=renumbered)
    test_set = test_set._replace(part=None)
    return {name: values[:, kept] for name, values in losses.items()}, test_set, token
