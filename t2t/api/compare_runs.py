"""`compare`: scores of systems side by side, with verdicts, as text."""

import dataclasses
import html
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from t2t.config.fields import ConfigError
from t2t.data.sentences import describe_empty_references
from t2t.evaluation import verification
from t2t.evaluation.find_evaluations import find_evaluation, is_scores_file
from t2t.evaluation.forest import ForestRow, format_forest, list_rows
from t2t.evaluation.judge_systems import judge_systems
from t2t.evaluation.kinds import KindJudgement
from t2t.evaluation.measure import (
    MIN_SENTENCES,
    Measure,
    TestSet,
)
from t2t.evaluation.number_format import format_interval, format_score
from t2t.evaluation.plots import (
    check_format,
    draw_by_length,
    draw_forest,
    embed_figure,
    write_figure,
)
from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.evaluation.significance import Bucket, score_by_length
from t2t.evaluation.systems import (
    System,
    check_alike,
    check_comparable,
    list_changes,
    list_circumstances,
    list_setup_changes,
    open_measure,
    read_statistics,
    read_system,
)
from t2t.evaluation.verdict_table import VerdictTable
from t2t.runtime.text_tables import Table, list_items, wrap_text
from t2t.storage.paths import split_run_paths

_FILES = "the file chooses: leave the flag out, or name run directories"


class Comparison(str):
    """The text of a comparison; a notebook also shows the differences by each measure."""

    rows: Sequence[ForestRow] = ()
    first = ""  # the system from which the others differ

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        shown = ""
        if self.rows:
            shown = embed_figure(draw_forest(self.rows, self.first), "differences")
        return f"<pre>{html.escape(self)}</pre>{shown}"


def compare(
    operands: Sequence[str],
    measure: str | None,
    split: str,
    evaluation: str,
    plot: Path | None,
    may_differ: Sequence[str] = (),
    checkpoint: str = "",
    forest: Path | None = None,
    task: str = "",
) -> Comparison:
    """Returns the comparison, and draws the scores by length if `plot` is given.

    `forest` is the path of a plot of the differences by each measure.

    No `measure` means the one of `choose_measure`, without case if any system writes none. Runs on
    text alone are compared by what they predict: perplexity or accuracy.

    `may_differ` names config fields that each seed of a system may have of its own, `checkpoint`
    the checkpoint whose newest evaluation is taken from each run, and `task` the task.

    Raises:
        ConfigError, EvaluationError: an operand is missing, or the operands are not comparable.
    """
    _check_choice(operands, split, evaluation, checkpoint, task)
    for flag, path in (("plot", plot), ("forest", forest)):
        if path:
            check_format(path, flag)
    if forest and len(operands) < 2:
        raise ConfigError(f"--forest={forest} shows differences; name two systems or more")
    systems = [
        read_system(operand, split, evaluation, may_differ, checkpoint, task=task)
        for operand in operands
    ]
    _check_repeated(systems)
    chosen, notes = open_measure(systems, measure)
    test_set = check_comparable(systems)
    statistics = read_statistics(systems, chosen, test_set)
    check_alike(systems)
    names = [system.name for system in systems]
    labels = name_systems(operands, systems)
    systems = [
        dataclasses.replace(system, name=label)
        for label, system in zip(labels, systems, strict=True)
    ]
    statistics = dict(zip(labels, statistics.values(), strict=True))
    buckets = score_by_length(chosen, statistics, test_set.sources)
    if plot:
        write_figure(draw_by_length(buckets, chosen.name), plot)
    found = judge_systems(systems, chosen, test_set, statistics)
    table = VerdictTable(found.lines, chosen.name, found.log_prob, found.by_measure.unit)
    rows: list[ForestRow] = []
    left_out: list[str] = []
    if len(systems) > 1:
        rows, left_out = list_rows(systems, test_set, chosen, found.by_measure, found.by_log_prob)
    if forest:
        write_figure(draw_forest(rows, labels[0]), forest)
    circumstances = [
        *_describe_circumstances(systems, test_set, chosen),
        *notes,
        *_describe_systems(systems, names),
    ]
    is_text_alone = bool(systems[0].passport.objective)
    length = "length" if is_text_alone else "source length"
    parts = [
        wrap_text(table.describe()),
        *[table.make_table(narrow=True).format()] * (len(systems) > 1),
        list_items(circumstances),
        *[format_forest(rows, labels[0])] * bool(rows),
        *_describe_kinds(found.by_kind),
        "DETAILS",
        table.make_score_table().format(),
        list_items([*found.sentences, *left_out]),
        f"{chosen.name} by {length} in words, with 95% intervals over sentences",
        format_buckets(buckets, chosen.name),
    ]
    comparison = Comparison("\n\n".join(filter(None, parts)))
    comparison.rows, comparison.first = rows, labels[0]
    return comparison


def _describe_kinds(judged: Sequence[KindJudgement]) -> list[str]:
    """Returns the paragraphs on kinds: a title, the table and what it means."""
    parts = list[str]()
    for each in judged:
        title = f"{each.measure} by kind"
        parts += [title, each.make_table().format(), list_items(each.describe())]
    return parts


def name_systems(operands: Sequence[str], systems: Sequence[System]) -> list[str]:
    """Returns the names that the outputs of other programs were given, or those of the paths."""
    given = [str(each.passport.origin.get("system", "")) for each in systems]
    found = [own or path for own, path in zip(given, shorten_names(operands), strict=True)]
    return found if len({*found}) == len(found) else shorten_names(operands)


def shorten_names(operands: Sequence[str]) -> list[str]:
    """Returns a short name for each system: its path without the folders that all of them share.

    The seeds `runs/base-seed0,runs/base-seed1` are `base`, and an evaluation has the name of its
    run. If two names would be equal, all systems keep their operands.
    """
    places = [[Path(place) for place in split_run_paths(operand)] for operand in operands]
    runs = [
        [each.parents[1] if each.parent.name == "evaluations" else each for each in own]
        for own in places
    ]
    for paths in (runs, places):
        start = _count_shared([own[0].parts[:-1] for own in paths])
        names = []
        for own in paths:
            first, *others = ("/".join(path.parts[start:]) for path in own)
            shared = first[: _count_shared([first, *others])]
            names.append(re.sub(r"[-_.]?(seed)?[-_.=]?$", "", shared) if others else first)
        if len({*names}) == len(names) and all(names):
            return names
    return [*operands]


def _count_shared(sequences: Sequence[Sequence[str]]) -> int:
    """Counts the items with which all sequences begin."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len({*column}) == 1, columns))


def _check_choice(
    operands: Sequence[str], split: str, evaluation: str, checkpoint: str, task: str
) -> None:
    """Raises `ConfigError` if a flag that chooses among a run's evaluations chooses nothing."""
    for name, value in (("checkpoint", checkpoint), ("split", split), ("task", task)):
        if value and evaluation:
            raise ConfigError(f"--{name} and --evaluation both choose; leave one of them out")
    places = [place for operand in operands for place in split_run_paths(operand)]
    if not (split or evaluation) or not all(map(is_scores_file, places)):
        return
    for found in map(load_evaluation, places):
        own = found.passport.data["split"]
        if split not in ("", own):
            raise ConfigError(
                f"{found.path} is of the split {own}, not of --split={split}; {_FILES}"
            )
        if evaluation not in ("", found.name):
            raise ConfigError(f"{found.path} is not --evaluation={evaluation}; {_FILES}")


def _check_repeated(systems: Sequence[System]) -> None:
    """Raises `ConfigError` if an evaluation is given twice."""
    paths = [each.path.absolute() for system in systems for each in system.evaluations]
    if repeated := [path for path in paths if paths.count(path) > 1]:
        raise ConfigError(
            f"{' '.join(each.name for each in systems)}: {repeated[0]} is given twice"
        )


def _describe_circumstances(
    systems: Sequence[System], test_set: TestSet, measure: Measure
) -> list[str]:
    """Describes test set and measure, and how the systems were evaluated where it differs."""
    split = systems[0].passport.data["split"]
    lines = [f"{split}, {describe_size(test_set)}; {measure.name}: {measure.definition}"]
    lines += describe_empty_references(test_set.sources, test_set.references)
    for name, values in list_circumstances(systems).items():
        own = "; ".join(
            f"{value} ({each.name})" for value, each in zip(values, systems, strict=True)
        )
        lines.append(f"not alike, {name}: {own}")
    return lines


def verify(
    operands: Sequence[str], split: str, evaluation: str, checkpoint: str = "", task: str = ""
) -> str:
    """Computes every score of saved evaluations from their texts; the arguments are `compare`'s.

    Raises:
        ConfigError: the arguments contradict each other.
        EvaluationError: a number, a definition or a file is not as it was saved.
    """
    _check_choice(operands, split, evaluation, checkpoint, task)
    found = [
        find_evaluation(place, split, evaluation, checkpoint, task)
        for operand in operands
        for place in split_run_paths(operand)
    ]
    return "\n\n".join(map(verification.verify, found))


def describe_size(test_set: TestSet) -> str:
    """Returns the numbers of sentences, documents and references, as far as they say something."""
    found = f"{len(test_set.sources)} sentences"
    if test_set.documents is not None:
        found += f" in {test_set.documents.max() + 1} documents"
    if len(test_set.references) > 1:
        found += f" with {len(test_set.references)} references"
    return found


def _describe_systems(systems: Sequence[System], places: Sequence[str]) -> list[str]:
    """Says where each system and its evaluation are, and what it changes from the first one."""
    lines = []
    for system, place in zip(systems, places, strict=True):
        names = ", ".join(dict.fromkeys(each.name for each in system.evaluations))
        lines.append(f"{system.name}: {place}, evaluation {names}")
        first, *others = system.evaluations
        if own := sorted({name for other in others for name in list_setup_changes(first, other)}):
            lines.append(f"{system.name}: each seed has its own {', '.join(own)}")
    for system in systems[1:]:
        if changes := list_changes(systems[0], system).items():
            changed = ", ".join(f"{name} {change}" for name, change in changes)
            lines.append(f"{system.name} changes {changed}")
    return lines


def format_buckets(buckets: Sequence[Bucket], measure: str) -> str:
    """Table of scores by length: a line for each system in each bucket."""
    rows = []
    for bucket in buckets:
        labels = bucket.words, str(len(bucket.indices))
        for system, score in bucket.scores.items():
            interval = format_interval(score.over_sentences, score.value)
            rows.append([*labels, system, format_score(score.value), interval])
            labels = "", ""
    header = "words", "sentences", "system", measure, "95% interval"
    table = Table(header, rows, "lrlrl", wrapped=(2,)).format()
    if any(len(bucket.indices) < MIN_SENTENCES for bucket in buckets):
        table += f"\nFewer than {MIN_SENTENCES} sentences have no interval."
    return table
