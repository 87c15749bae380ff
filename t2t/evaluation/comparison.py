"""`compare`: scores of systems side by side, with verdicts, as text."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2t.config.fields import ConfigError
from t2t.config.measures import choose_measure
from t2t.evaluation.scores import format_interval, make_measure
from t2t.evaluation.scores_by_length import Bucket, plot_by_length, score_by_length
from t2t.evaluation.significance import (
    SystemScore,
    collect_statistics,
    judge,
    mean_nats,
    sacrebleu_score,
)
from t2t.evaluation.systems import (
    System,
    check_comparable,
    list_changes,
    read_reference_losses,
    read_system,
)
from t2t.evaluation.verdict import describe_all
from t2t.runtime.text_tables import format_table

PLOTS = (".svg", ".png", ".pdf")


def compare(
    operands: Sequence[str], measure: str | None, split: str, evaluation: str, plot: Path | None
) -> str:
    """Returns the comparison as text, and draws the scores by length if `plot` is given.

    An empty `measure` means the one of `choose_measure` for the first operand.

    Raises:
        ConfigError, EvaluationError: an operand is missing, or the operands are not comparable.
    """
    if plot and plot.suffix not in PLOTS:
        raise ConfigError(f"--plot={plot} must end in one of {', '.join(PLOTS)}")
    if len(set(operands)) < len(operands):
        raise ConfigError(f"{' '.join(operands)}: a system is given twice")
    systems = [read_system(operand, split, evaluation) for operand in operands]
    result = systems[0].evaluations[0].result
    lowercase = result["config"].get("tokenizer.lowercase", False)
    measure = choose_measure(measure, lowercase=lowercase)
    chosen = make_measure(measure, result["tgt_language"])
    test_set = check_comparable(systems, measure, chosen)
    statistics = {
        system.name: collect_statistics(chosen, system.hypotheses, test_set.references)
        for system in systems
    }
    score = sacrebleu_score(chosen.metric)
    judgement = judge(statistics, score, higher_is_better=chosen.higher_is_better)
    buckets = score_by_length(score, statistics, test_set.sources)
    if plot:
        plot_by_length(buckets, measure, plot)
    number = len(test_set.references)
    lines = [
        f"{result['split']}, {number} sentences, {measure}: "
        f"{result['measures'][measure]['definition']}",
        "",
        format_scores(systems, judgement.scores, measure),
        "",
        *describe_all(judgement, measure, number),
    ]
    if len(systems) > 1:
        lines += ["", *describe_log_probs(systems, test_set.references)]
    lines += ["", f"{measure} by source length in words, with 95% intervals over sentences", ""]
    return "\n".join([*lines, format_buckets(buckets)])


def describe_log_probs(systems: Sequence[System], references: Sequence[str]) -> list[str]:
    """Verdicts by the references' log-probability, which resolves smaller differences than BLEU."""
    found = read_reference_losses(systems, references)
    if found is None:
        return [
            "No verdict by the references' log-probability: a run was evaluated without it, or no "
            "reference has a finite one under all runs; evaluate that run again."
        ]
    losses, unit = found
    judgement = judge(losses, mean_nats, higher_is_better=False)
    number = len(next(iter(losses.values()))[0])
    perplexities = ", ".join(
        f"{name} {math.exp(score.value):.4g}" for name, score in judgement.scores.items()
    )
    return [
        f"by the references' log-probability, perplexity per {unit}: {perplexities}",
        *describe_all(judgement, f"nats per {unit}", number),
    ]


def format_scores(
    systems: Sequence[System], scores: Mapping[str, SystemScore], measure: str
) -> str:
    """Table of the systems' scores and intervals, then their config changes from the first."""
    header = ["system", "evaluation", "seeds", measure, "95% over sentences", "95% over seeds"]
    rows = []
    for system in systems:
        score = scores[system.name]
        rows.append(
            [
                system.name,
                system.evaluations[0].name,
                len(score.seeds),
                f"{score.value:.2f}",
                format_interval(score.over_sentences),
                format_interval(score.over_seeds) or "one run",
            ]
        )
    lines = [format_table(rows, header, align="llrr")]
    for system in systems[1:]:
        changes = list_changes(systems[0].evaluations[0], system.evaluations[0])
        lines += [f"{system.name}: {name} {change}" for name, change in changes.items()]
    return "\n".join(lines)


def format_buckets(buckets: Sequence[Bucket]) -> str:
    """Table of scores by length: a column for each bucket, a row for each system."""
    header = ["words", *(bucket.words for bucket in buckets)]
    rows = [["sentences", *(len(bucket.indices) for bucket in buckets)]]
    for system in buckets[0].scores:
        scores = [bucket.scores[system] for bucket in buckets]
        halves = [(high - low) / 2 for low, high in (score.over_sentences for score in scores)]
        cells = [f"{s.value:.2f} ± {half:.2f}" for s, half in zip(scores, halves, strict=True)]
        rows.append([system, *cells])
    return format_table(rows, header)
