"""Reads the rungs of a finished ladder: sizes, costs and losses of the runs of a sweep."""

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from t2t.config.field_types import Role
from t2t.config.fields import Config
from t2t.config.files import load_config
from t2t.config.variants import find_role
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.saved_evaluations import Evaluation, load_evaluation
from t2t.evaluation.systems import System, check_comparable
from t2t.evaluation.trials import halve
from t2t.model.parametrization import Growth
from t2t.scaling.law import LawError, Losses
from t2t.scaling.rungs import RUNG
from t2t.sweeps.sweep_rows import BASE, EVALUATION
from t2t.training.provenance import read_last_start
from t2t.training.sharing import count_run_parameters
from t2t.training.total_flops import count_flops, count_target_tokens
from t2t.workshop.records import read_record
from t2t.workshop.steps import STEPS

SUBWORD, CHARACTER = "sub-word", "character"
_SAME_TEXT = {
    Role.TEXT, Role.LANGUAGES, Role.FILES, Role.HELD_OUT, Role.VOCABULARY, Role.COPIED,
}  # fmt: skip
_SPREAD = 0.25  # of log D about a line over log N, below which a ladder has one rule for its text


class Size(NamedTuple):
    """The size of a training."""

    parameters: int  # trained ones, tables included; tied tables count once
    tokens: int  # target tokens that training sees, with full batches
    flops: int  # of the whole training, by formula

    def pick(self, names: Iterable[str]) -> list[float]:
        """Returns the sizes with these names."""
        return [float(getattr(self, name)) for name in names]


@dataclasses.dataclass(frozen=True)
class Rung:
    """A row of a ladder with its seeds."""

    name: str
    family: str
    size: Size
    losses: Mapping[int, float]  # nats per token, by the config's seed
    minutes: float | None  # of a core, trials and evaluations included; None: not recorded

    @property
    def loss(self) -> float:
        """The geometric mean over seeds, since the law is fitted to logarithms."""
        return math.exp(math.fsum(map(math.log, self.losses.values())) / len(self.losses))

    @property
    def label(self) -> str:
        """The name without the family: what rungs of several families have in common."""
        return self.name.partition("-")[2]


@dataclasses.dataclass(frozen=True)
class Ladder:
    """The rungs of one or several families, by size, and those that no law is fitted to."""

    folder: Path
    families: Mapping[str, Sequence[Rung]]
    held_out: Mapping[str, Sequence[Rung]]
    token: str  # of which the loss is a mean: "sub-word", or "character" if vocabularies differ
    text: str  # what was scored, in words
    # Families of several widths with one rate, which no factors adapt to the width.
    of_one_rate: Collection[str] = ()

    def collect(self, family: str, names: Sequence[str]) -> Losses:
        """Returns the losses of the runs of a family, with sizes of these names."""
        rungs = enumerate(self.families[family])
        runs = [(number, rung, loss) for number, rung in rungs for loss in rung.losses.values()]
        return Losses(
            np.array([rung.size.pick(names) for _, rung, _ in runs]),
            np.array([loss for *_, loss in runs]),
            np.array([number for number, *_ in runs]),
        )

    def has_one_rule(self, family: str) -> bool:
        """Returns whether the tokens of a family's rungs follow from their parameters.

        Then a law cannot tell the two apart: log D lies near a line over log N.
        """
        sizes = [each.size for each in self.families[family]]
        parameters, tokens = np.log([(each.parameters, each.tokens) for each in sizes]).T
        if len(sizes) < 3 or np.ptp(parameters) == 0:
            return True
        line = np.polynomial.Polynomial.fit(parameters, tokens, 1)
        return bool(np.std(tokens - line(parameters)) < _SPREAD)


def read_ladder(folder: Path, only: Sequence[str] = (), held_out: Sequence[str] = ()) -> Ladder:
    """Reads the runs of a sweep whose rows are rungs.

    Args:
        folder: the folder of the sweep.
        only: the rows or families that are read; empty: all.
        held_out: the rows to which no law is fitted.

    Raises:
        LawError: there are no runs, one has no evaluation or no finite loss, or the rungs of a
            family differ in their text or vocabulary.
        EvaluationError: evaluations are damaged, or not of one test set.
    """
    places = _find_runs(folder, only, held_out)
    found = {name: [_read_evaluation(place) for place in own] for name, own in places.items()}
    configs = {
        name: [load_config(place / "config.json") for place in own] for name, own in places.items()
    }
    for name in places:
        for place, evaluation, config in zip(places[name], found[name], configs[name], strict=True):
            _check_end(place, evaluation, config)
    families = _group(places)
    for rows in families.values():
        _check_text([each for row in rows for each in found[row]])
    losses, token, text = _read_losses(folder, found)
    rungs = []
    for family, rows in families.items():
        for name in rows:
            seeds = [config.seed for config in configs[name]]
            size = _measure(places[name][0], configs[name][0])
            own = dict(zip(seeds, losses[name], strict=True))
            rungs.append(Rung(name, family, size, own, _sum_minutes(folder, name)))
    rungs.sort(key=lambda rung: rung.size.flops)
    held = {name for name in places if name in held_out}
    return Ladder(
        folder,
        _by_family(each for each in rungs if each.name not in held),
        _by_family(each for each in rungs if each.name in held),
        token,
        text,
        [
            name
            for name, rows in families.items()
            if _has_one_rate([configs[row][0] for row in rows])
        ],
    )


def _has_one_rate(configs: Sequence[Config]) -> bool:
    """Returns whether models of several widths have one rate, and no factors by their width."""
    widths, rates, growths = (
        {each.model.d_model for each in configs},
        {each.training.learning_rate for each in configs},
        {Growth.of(each.model) for each in configs},
    )
    return len(widths) > 1 and len(rates) == len(growths) == 1


def _find_runs(folder: Path, only: Sequence[str], held_out: Sequence[str]) -> dict[str, list[Path]]:
    """Returns the run directories of each row, by seed."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for place in folder.glob("*-seed*"):
        matched = re.fullmatch(r"(.+)-seed(\d+)", place.name)
        if matched and (place / "config.json").exists():
            found.setdefault(matched[1], []).append((int(matched[2]), place))
    if not found:
        raise LawError(
            f"--ladder={folder} holds no runs ROW-seedN; name the --workdir of a t2t.sweep, such "
            "as one of configs/sweeps/ladder.py"
        )
    group = {row: family for family, rows in _group(found).items() for row in rows}
    if unknown := [name for name in only if name not in {*group, *group.values()}]:
        raise LawError(
            f"--only={','.join(unknown)}: no such row or family; there are "
            f"{', '.join(sorted({*group, *group.values()}))}"
        )
    kept = {
        row: [place for _, place in sorted(own)]
        for row, own in sorted(found.items())
        if not only or {row, group[row]} & {*only} or row in held_out
    }
    if unknown := [name for name in held_out if name not in kept]:
        raise LawError(
            f"--held_out={','.join(unknown)}: no such row; the rows are {', '.join(kept)}"
        )
    return kept


def _group(rows: Iterable[str]) -> dict[str, list[str]]:
    """Returns the rows of each family; base belongs to `RUNG`, if there are such rows."""
    families: dict[str, list[str]] = {}
    names = [*rows]
    has_rungs = any(name.startswith(f"{RUNG}-") for name in names)
    for name in names:
        family = RUNG if name == BASE and has_rungs else name.partition("-")[0]
        families.setdefault(family, []).append(name)
    return families


def _by_family(rungs: Iterable[Rung]) -> dict[str, list[Rung]]:
    found: dict[str, list[Rung]] = {}
    for rung in rungs:
        found.setdefault(rung.family, []).append(rung)
    return dict(sorted(found.items(), key=lambda item: item[0] != RUNG))


def _read_evaluation(place: Path) -> Evaluation:
    path = place / "evaluations" / f"{EVALUATION}.json"
    if not path.exists():
        raise LawError(
            f"{place} has no evaluation {EVALUATION}: finish the sweep with the same command, or "
            "name the rows that are finished with --only"
        )
    return load_evaluation(path)


def _check_end(place: Path, evaluation: Evaluation, config: Config) -> None:
    """Raises `LawError` if a run was scored before the end of its training."""
    step, passport = evaluation.passport.checkpoint.rpartition("-")[-1], evaluation.passport
    if passport.kind != "best" and step != str(config.training.steps):
        raise LawError(
            f"{place} was scored at step {step} of {config.training.steps}; a rung counts with its "
            "whole training, so finish it, or leave its row out with --only"
        )


def _check_text(evaluations: Sequence[Evaluation]) -> None:
    """Raises `LawError` if rungs of a family differ in their text or vocabulary."""
    first, *others = evaluations
    for other in others:
        changes = first.passport.diff(other.passport, "config", "vocabulary")
        for name, change in changes.items():
            if name == "vocabulary" or find_role(name) in _SAME_TEXT:
                raise LawError(
                    f"{first.path.parents[1]} and {other.path.parents[1]} differ in {name}: "
                    f"{change}; the rungs of a ladder learn from one text with one vocabulary, so "
                    "fix data and tokenizer for all"
                )


def _read_losses(
    folder: Path, evaluations: Mapping[str, Sequence[Evaluation]]
) -> tuple[dict[str, list[float]], str, str]:
    """Returns the losses of each row's seeds, their unit, and what was scored in words.

    Of tuned rows it is the half of the sentences on which no trial was chosen.
    """
    systems = [System(name, own) for name, own in evaluations.items()]
    test_set = check_comparable(systems)
    first = systems[0].evaluations[0]
    counts: dict[str, list[Float[np.ndarray, "n 2"]]] = {
        name: [_read_counts(each) for each in own] for name, own in evaluations.items()
    }
    every = np.array([each for own in counts.values() for each in own])
    kept = np.asarray((every[..., 1] > 0).all(axis=0))
    if any(folder.glob("*-choice")):
        judging = halve(test_set).judging.part
        known = np.arange(len(kept))
        if first.passport.objective:  # whose test set has only texts that are predicted
            known = np.flatnonzero(every[0, :, 1] > 0)
        kept &= np.isin(np.arange(len(kept)), known[judging])
    token = SUBWORD
    if (every[..., 1] != every[0, :, 1])[:, kept].any():
        token = CHARACTER
        if len({system.is_lowercase for system in systems}) > 1:
            raise LawError(
                "some runs predict lower-case text (tokenizer.lowercase), which is another text; "
                "compare families of one case"
            )
    if token == CHARACTER:
        lengths = np.array([len(line) + 1 for line in test_set.references[0]], float)
        counts = {
            name: [np.column_stack([each[:, 0], lengths]) for each in own]
            for name, own in counts.items()
        }
    found = {}
    for name, own in counts.items():
        sums = [each[kept].sum(axis=0) for each in own]
        found[name] = [float(-log_prob / tokens) for log_prob, tokens in sums]
        for evaluation, loss in zip(evaluations[name], found[name], strict=True):
            if not (math.isfinite(loss) and loss > 0):
                raise LawError(
                    f"{evaluation.path}: the loss is {loss}, not finite and positive; lower the "
                    "rate of this row and train it again, or leave it out with --only"
                )
    split = first.passport.data["split"]
    text = f"{int(kept.sum())} sentences of the {split} split, the same for all runs"
    if token == CHARACTER:
        text += ", per character of the references, one for the end of each included"
    return found, token, text


def _read_counts(evaluation: Evaluation) -> Float[np.ndarray, "n 2"]:
    """Returns log P of each reference and its sub-words; (NaN, 0) where it was left out."""
    if "log_probs" not in evaluation.result["texts"]:
        raise LawError(
            f"{evaluation.path} has no log-probabilities of the references; evaluate the run again"
        )
    return evaluation.read_log_probs()


def _measure(place: Path, config: Config) -> Size:
    sizes = Vocabulary.load(place / "vocab").sizes
    recorded = read_last_start(place).get("stages", ())
    return Size(
        count_run_parameters(config, *sizes),
        count_target_tokens(config, recorded),
        count_flops(config, sizes[1], recorded),
    )


def _sum_minutes(folder: Path, row: str) -> float | None:
    """Returns the core-minutes of all steps of a row, as their records have them."""
    records = [
        record
        for path in (folder / STEPS).glob(f"{row}-*")
        if path.is_dir()  # beside locks
        and re.match(r"(seed|trial)", path.name.removeprefix(f"{row}-"))
        and (record := read_record(path))
    ]
    if not records:
        return None
    return math.fsum(record.sum_up("core_seconds") for record in records) / 60
