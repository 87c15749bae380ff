"""`compare`: scores of systems side by side, with verdicts, as text."""

import html
from collections.abc import Sequence
from pathlib import Path

from t2t.config.fields import ConfigError
from t2t.data.sentences import describe_empty_references
from t2t.evaluation import verification
from t2t.evaluation.find_evaluations import find_evaluation, is_scores_file
from t2t.evaluation.forest import ForestRow, format_forest, list_rows
from t2t.evaluation.measure import (
    MIN_SENTENCES,
    Measure,
    TestSet,
    format_interval,
    format_score,
)
from t2t.evaluation.plots import (
    check_format,
    draw_by_length,
    draw_forest,
    embed_figure,
    write_figure,
)
from t2t.evaluation.saved_evaluations import load_evaluation
from t2t.evaluation.significance import Bucket, Judgement, judge, score_by_length
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
from t2t.evaluation.verdict import describe_all, judge_log_probs, list_same, warn_of_losses
from t2t.runtime.text_tables import format_table
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
) -> Comparison:
    """Returns the comparison, and draws the scores by length if `plot` is given.

    `forest` is the path of a plot of the differences by each measure.

    No `measure` means the one of `choose_measure`, without case if any system writes none. Runs on
    text alone are compared by what they predict: perplexity or accuracy.

    `may_differ` names config fields that each seed of a system may have of its own, `checkpoint`
    the checkpoint whose newest evaluation is taken from each run.

    Raises:
        ConfigError, EvaluationError: an operand is missing, or the operands are not comparable.
    """
    _check_choice(operands, split, evaluation, checkpoint)
    for flag, path in (("plot", plot), ("forest", forest)):
        if path:
            check_format(path, flag)
    if forest and len(operands) < 2:
        raise ConfigError(f"--forest={forest} shows differences; name two systems or more")
    systems = [
        read_system(operand, split, evaluation, may_differ, checkpoint) for operand in operands
    ]
    _check_repeated(systems)
    chosen, notes = open_measure(systems, measure)
    test_set = check_comparable(systems)
    statistics = read_statistics(systems, chosen, test_set)
    is_text_alone = bool(systems[0].passport.objective)
    check_alike(systems)
    judgement = judge(statistics, chosen, test_set)
    buckets = score_by_length(chosen, statistics, test_set.sources)
    if plot:
        write_figure(draw_by_length(buckets, chosen.name), plot)
    lines = [
        *_describe_circumstances(systems, test_set, chosen),
        *notes,
        "",
        format_scores(systems, judgement, chosen.name),
        "",
        *describe_all(judgement, chosen.name, list_same(systems)),
    ]
    rows: list[ForestRow] = []
    if len(systems) > 1:
        by_likelihood = None
        if is_text_alone:  # its perplexity is that of the same nats
            lines += warn_of_losses(systems)
        else:
            by_likelihood, described = judge_log_probs(systems, test_set)
            lines += ["", *described]
        rows, left_out = list_rows(systems, test_set, chosen, judgement, by_likelihood)
        lines += ["", format_forest(rows, systems[0].name), *left_out]
        if forest:
            write_figure(draw_forest(rows, systems[0].name), forest)
    length = "length" if is_text_alone else "source length"
    lines += ["", f"{chosen.name} by {length} in words, with 95% intervals over sentences", ""]
    found = Comparison("\n".join([*lines, format_buckets(buckets)]))
    found.rows, found.first = rows, systems[0].name
    return found


def _check_choice(operands: Sequence[str], split: str, evaluation: str, checkpoint: str) -> None:
    """Raises `ConfigError` if a flag that chooses among a run's evaluations chooses nothing."""
    for name, value in (("checkpoint", checkpoint), ("split", split)):
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
    lines = [f"{split}, {describe_size(test_set)}, {measure.name}: {measure.definition}"]
    lines += describe_empty_references(test_set.sources, test_set.references)
    for name, values in list_circumstances(systems).items():
        own = "; ".join(
            f"{value} ({each.name})" for value, each in zip(values, systems, strict=True)
        )
        lines.append(f"not alike, {name}: {own}")
    return lines


def verify(operands: Sequence[str], split: str, evaluation: str, checkpoint: str = "") -> str:
    """Computes every score of saved evaluations from their texts; the arguments are `compare`'s.

    Raises:
        ConfigError: the arguments contradict each other.
        EvaluationError: a number, a definition or a file is not as it was saved.
    """
    _check_choice(operands, split, evaluation, checkpoint)
    found = [
        find_evaluation(place, split, evaluation, checkpoint)
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


def format_scores(systems: Sequence[System], judgement: Judgement, measure: str) -> str:
    """Table of the systems' scores and intervals, then their config changes from the first."""
    over_units = f"95% over {judgement.unit}"
    header = ["system", "evaluation", "seeds", measure, over_units, "95% over seeds"]
    rows = []
    for system in systems:
        score = judgement.scores[system.name]
        rows.append(
            [
                system.name,
                ", ".join(dict.fromkeys(each.name for each in system.evaluations)),
                len(score.seeds),
                format_score(score.value),
                format_interval(score.over_sentences),
                format_interval(score.over_seeds) or "one run",
            ]
        )
    lines = [format_table(rows, header, align="llrr")]
    for system in systems:
        first, *others = system.evaluations
        if own := sorted({name for other in others for name in list_setup_changes(first, other)}):
            lines.append(f"{system.name}: each seed has its own {', '.join(own)}")
    for system in systems[1:]:
        changes = list_changes(systems[0], system).items()
        lines += [f"{system.name}: {name} {change}" for name, change in changes]
    return "\n".join(lines)


def format_buckets(buckets: Sequence[Bucket]) -> str:
    """Table of scores by length: a column for each bucket, a row for each system."""
    header = ["words", *(bucket.words for bucket in buckets)]
    rows = [["sentences", *(len(bucket.indices) for bucket in buckets)]]
    for system in buckets[0].scores:
        scores = [bucket.scores[system] for bucket in buckets]
        cells = [
            f"{format_score(score.value)} {format_interval(score.over_sentences)}"
            for score in scores
        ]
        rows.append([system, *cells])
    table = format_table(rows, header)
    if any(len(bucket.indices) < MIN_SENTENCES for bucket in buckets):
        table += f"\nFewer than {MIN_SENTENCES} sentences have no interval."
    return table
