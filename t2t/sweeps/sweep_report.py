"""The report of a sweep: a table of each row's cost, score and verdict, with plots."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2t.config.fields import Config
from t2t.config.files import differences, overrides
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.measures import (
    collect_statistics,
    format_interval,
    make_measure,
    sacrebleu_score,
)
from t2t.evaluation.plots import plot_by_cost, plot_by_step
from t2t.evaluation.significance import Judgement, SystemScore, judge
from t2t.evaluation.systems import STEP, System, check_comparable, read_system
from t2t.evaluation.verdict import describe_all, judge_log_probs, list_useless
from t2t.model.flops import count_parameters, count_sequential_operations
from t2t.runtime.text_tables import format_table
from t2t.storage.paths import find_name
from t2t.sweeps.report_pages import SweepReport, write_pages
from t2t.sweeps.sweep_directory import EVALUATION, LOCATION_FIELDS, find_failure, find_score
from t2t.sweeps.sweep_rows import BASE, LENGTH, Run
from t2t.training.early_stopping import read_stop_request
from t2t.training.provenance import read_ledger
from t2t.training.run_directory import read_curve, read_metrics

PAPER_BASE_SIZE = 65  # million parameters of the paper's base model
HEADER = (
    "row", "changes", "parameters", "FLOPs", "sequential", "tokens/s", "perplexity", "MEASURE",
    "paper", "verdict", "by log-probability",
)  # fmt: skip
PAPER_NOTE = (
    "Paper: perplexity and BLEU on newstest2013 as the paper measures them, and the difference in "
    "parameters from base. Compare differences from base, not values."
)
NOTES = (
    "Verdicts compare each row with base, with Holm's correction for several comparisons. Brackets "
    "are 95% intervals over sentences. Perplexity: exp of the mean over seeds of the nats per "
    "sub-word.",
    "FLOPs: of the whole training, or up to a requested stop, by formula, with batches of "
    f"data.batch_tokens filled with sentences of {LENGTH} sub-words.",
    f"Sequential: operations of the forward pass that cannot run in parallel, for {LENGTH} "
    "sub-words on either side (table 1 of the paper).",
    "Tokens/s: target sub-words per second, median over the training, beside any other programs on "
    "the machine.",
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of a row; values that are not known yet are None."""

    runs: Sequence[Run]
    system: System | None  # the evaluations of the finished runs
    vocabulary: str | None  # its fingerprint
    parameters: int | None
    flops: int | None
    speed: float | None  # target tokens per second
    states: Sequence[str]  # of the unfinished runs

    @property
    def config(self) -> Config:
        """The config of the first run."""
        return self.runs[0].config

    @property
    def perplexity(self) -> str:
        """exp of the mean nats per sub-word over the runs."""
        evaluations = self.system.evaluations if self.system else []
        measures = [each.result["measures"] for each in evaluations]
        values = [each["perplexity"]["value"] for each in measures if "perplexity" in each]
        if len(values) < len(measures):
            return "not finite"
        return f"{statistics.geometric_mean(values):.2f}" if values else ""


def write_report(workdir: Path, runs: Sequence[Run], measure: str) -> str:
    """Writes report.md, report.html and the plots; returns the table and the report's paths.

    Raises:
        EvaluationError: evaluations are damaged or not comparable.
    """
    names = sorted(dict.fromkeys(run.row.name for run in runs), key=lambda name: name != BASE)
    outcomes = {
        name: read_outcome(workdir, [run for run in runs if run.row.name == name]) for name in names
    }
    systems = {name: outcome.system for name, outcome in outcomes.items() if outcome.system}
    judgement, by_loss, sentences = judge_rows(systems, measure)
    header = [measure if name == "MEASURE" else name for name in HEADER]
    useless = list_useless(judgement, measure) if judgement else []
    rows = [describe(name, outcomes, judgement, by_loss, useless) for name in outcomes]
    is_in_paper = any(run.row.paper for run in runs)
    if not is_in_paper:
        column = HEADER.index("paper")
        header, *rows = [[*row[:column], *row[column + 1 :]] for row in (header, *rows)]
    plots = draw(workdir, runs, outcomes, judgement, measure)
    report = SweepReport(
        f"Sweep {find_name(workdir)}",
        header,
        rows,
        sentences,
        [
            *describe_scoring(systems, measure),
            *NOTES,
            *([PAPER_NOTE] if is_in_paper else []),
            *describe_vocabularies(outcomes),
            *describe_provenance(workdir, runs),
        ],
        plots,
    )
    written = "\n".join(map(str, write_pages(workdir, report)))
    return f"{format_table(rows, header, markdown=True)}\n\n{written}"


def read_outcome(workdir: Path, runs: Sequence[Run]) -> Outcome:
    """Reads the results of a row from the directories of its runs."""
    finished = [run for run in runs if find_score(workdir, run).exists()]
    operand = ",".join(str(workdir / run.name) for run in finished)
    parameters = flops = fingerprint = None
    vocabularies = [workdir / run.name / "vocab" for run in runs]
    if saved := [folder for folder in vocabularies if Vocabulary.is_saved(folder)]:
        vocabulary = Vocabulary.load(saved[0])
        fingerprint = vocabulary.fingerprint()
        sizes = vocabulary.src.vocab_size, vocabulary.tgt.vocab_size
        parameters = count_parameters(runs[0].config.model, *sizes)
        steps = runs[0].config.training.steps
        made = statistics.mean(find_last_step(workdir, run) for run in runs)
        flops = round(runs[0].count_flops(sizes[1]) * made / steps)
    speeds = [
        line["train/tokens_per_second"]
        for run in runs
        for line in read_metrics(workdir / run.name)
        if "train/tokens_per_second" in line
    ]
    return Outcome(
        runs,
        read_system(operand, "", EVALUATION, (STEP,)) if finished else None,
        fingerprint,
        parameters,
        flops,
        statistics.median(speeds) if speeds else None,
        [find_state(workdir, run) for run in runs if run not in finished],
    )


def find_last_step(workdir: Path, run: Run) -> int:
    """Returns the step at which a run ends: that of its config, or an earlier one on request."""
    request = read_stop_request(workdir / run.name)
    return (request and request.obeyed_at) or run.config.training.steps


def find_state(workdir: Path, run: Run) -> str:
    """Describes the state of a run that has no evaluation yet."""
    failure = find_failure(workdir, run)
    if failure.exists():
        return failure.read_text("utf-8").strip()
    metrics = read_metrics(workdir / run.name)
    if not metrics:
        return "not started"
    return f"stopped after step {metrics[-1]['step']} of {run.config.training.steps}"


def describe_scoring(systems: Mapping[str, System], measure: str) -> list[str]:
    """Describes how all systems were scored; empty without systems."""
    if not systems:
        return []
    system = next(iter(systems.values()))
    first, references = system.evaluations[0].result, system.evaluations[0].read_lines("references")
    chosen = make_measure(measure, first["tgt_language"])
    definition = chosen.score(system.hypotheses[0], references).definition
    names: dict[str, list[str]] = {}  # of the rows with a seed that was scored at a checkpoint
    for name, system in systems.items():
        for checkpoint in dict.fromkeys(each.result["checkpoint"] for each in system.evaluations):
            names.setdefault(checkpoint, []).append(name)
    checkpoint, *others = names
    own = "".join(f" ({other}: {', '.join(names[other])})" for other in others)
    evaluations = [each for system in systems.values() for each in system.evaluations]
    dates = sorted(each.date[:10] for each in evaluations)
    codes = {each.result.get("key", {}).get("code") for each in evaluations}
    return [
        f"Scored on the {first['split']} split, checkpoint {checkpoint}{own}, "
        f"{first['num_sentences']} sentences. {measure}: {definition}",
        f"Scores were saved from {dates[0]} to {dates[-1]}"
        f"{f' by {len(codes)} versions of the code' * (len(codes) > 1)}.",
    ]


def describe_vocabularies(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Names the rows whose losses and perplexities cannot be compared with base's."""
    others = [name for name in outcomes if not has_units_of_base("loss", name, outcomes)]
    if not others:
        return []
    return [
        f"Losses and perplexities of {', '.join(others)} are per sub-word of another vocabulary "
        "than base's; do not compare them. The plot of the validation loss leaves them out."
    ]


def has_units_of_base(figure: str, name: str, outcomes: Mapping[str, Outcome]) -> bool:
    """Returns whether a row's validation loss or bleu has the same definition as base's.

    A loss is per sub-word of the vocabulary. Lower-case runs have `bleu_lowercase` during training.
    """
    row, base = outcomes[name], outcomes.get(BASE)
    if base is None or name == BASE:
        return True
    if figure == "loss":
        return None in (row.vocabulary, base.vocabulary) or row.vocabulary == base.vocabulary
    return row.config.tokenizer.lowercase == base.config.tokenizer.lowercase


def describe_provenance(workdir: Path, runs: Sequence[Run]) -> list[str]:
    """Describes the date, code, packages, devices and base config of the runs.

    The list is empty if no run has started.
    """
    starts = [start for run in runs for start in read_ledger(workdir / run.name)]
    if not starts:
        return []
    begun = min(start["date"] for start in starts)
    packages = [
        f"{name} {' and '.join(sorted({start['versions'][name] for start in starts}))}"
        for name in ("python", "jax", "flax", "optax")
    ]
    devices = dict.fromkeys(f"{start['devices']} x {start['device']}" for start in starts)
    revisions = dict.fromkeys(str(start["revision"])[:10] for start in starts)
    changed = any(start["changed"] for start in starts)
    # With uncommitted changes or no revision, only the hash of the code identifies it.
    uncommitted = [start for start in starts if start["changed"] or not start["revision"]]
    codes = dict.fromkeys(start["code"][:10] for start in uncommitted if "code" in start)
    base = next((run for run in runs if run.row.name == BASE), runs[0])
    fields = ", ".join(
        f"{name}={value!r}"
        for name, value in overrides(base.config).items()
        if not name.startswith(LOCATION_FIELDS)
    )
    return [
        f"Runs from {begun[:10]} on, revision {', '.join(revisions)}"
        f"{' with changes that were not committed' if changed else ''}"
        f"{', code ' * bool(codes)}{', '.join(codes)}, {', '.join(packages)}, "
        f"on {' and '.join(devices)} per run.",
        f"Base, where it differs from the defaults in t2t/config/fields.py: {fields}.",
    ]


def judge_rows(
    systems: Mapping[str, System], measure_name: str
) -> tuple[Judgement | None, Judgement | None, list[str]]:
    """Compares the rows with base, which comes first; without base there are no verdicts.

    Returns:
        The judgement by the measure, the one by the references' log-probability, and sentences
        that describe both.
    """
    if not systems:
        return None, None, []
    first = next(iter(systems.values()))
    measure = make_measure(measure_name, first.evaluations[0].result["tgt_language"])
    references = check_comparable([*systems.values()], measure_name, measure).references
    named = [dataclasses.replace(system, name=name) for name, system in systems.items()]
    counts = {
        system.name: collect_statistics(measure, system.hypotheses, references) for system in named
    }
    score = sacrebleu_score(measure.metric)
    by_measure = judge(counts, score, measure.scale)
    if BASE not in systems:
        return Judgement(by_measure.scores, {}), None, ["No verdicts: base has no evaluation."]
    sentences = describe_all(by_measure, measure_name, len(references))
    by_loss, described = judge_log_probs(named, references)
    return by_measure, by_loss, sentences + described


def describe(
    name: str,
    outcomes: Mapping[str, Outcome],
    judgement: Judgement | None,
    by_loss: Judgement | None,
    useless: Sequence[str] = (),
) -> list[str]:
    """Returns the cells of a row in the table; `useless` rows translate nothing, as base does."""
    outcome, base = outcomes[name], outcomes.get(BASE)
    score = judgement.scores.get(name) if judgement else None
    changes = differences(base.config, outcome.config) if base else []
    changes = [change for change in changes if not change.startswith("seed: ")]
    verdict = _list_verdict(judgement, name)
    if verdict and name in useless:
        verdict.append("neither row translates yet")
    return [
        name,
        ", ".join(change.removeprefix("model.") for change in changes),
        _format_parameters(outcome.parameters, base.parameters if base else None),
        f"{outcome.flops:.2e}" if outcome.flops else "",
        str(count_sequential_operations(outcome.config.model, LENGTH, LENGTH)),
        f"{outcome.speed:.0f}" if outcome.speed else "",
        outcome.perplexity,
        _format_score(score) if score else "",
        _format_paper(outcome.runs[0]),
        "; ".join([*verdict, *dict.fromkeys(outcome.states)]),
        "".join(_list_verdict(by_loss, name)),
    ]


def _list_verdict(judgement: Judgement | None, name: str) -> list[str]:
    """Returns the verdict on a row in a list, which is empty if there is none."""
    if judgement is None or name not in judgement.comparisons:
        return []
    comparison = judgement.comparisons[name]
    if math.isnan(comparison.p_value):
        return ["no verdict"]
    word = "better" if comparison.better else "worse"
    return [word if comparison.distinguishable else "not distinguishable"]


def _format_parameters(count: int | None, base: int | None) -> str:
    if count is None:
        return ""
    change = f" ({(count - base) / 1e6:+.2f}M)" if base is not None and count != base else ""
    return f"{count / 1e6:.2f}M{change}"


def _format_score(score: SystemScore) -> str:
    seeds = f", {len(score.seeds)} seeds" if len(score.seeds) > 1 else ""
    return f"{score.value:.2f} {format_interval(score.over_sentences)}{seeds}"


def _format_paper(run: Run) -> str:
    paper = run.row.paper
    if paper is None:
        return ""
    change = f", {paper.parameters - PAPER_BASE_SIZE:+d}M" if paper.parameters else ""
    return f"{paper.perplexity:.2f}, {paper.bleu:.1f}{change}"


def draw(
    workdir: Path,
    runs: Sequence[Run],
    outcomes: Mapping[str, Outcome],
    judgement: Judgement | None,
    measure: str,
) -> dict[str, Path]:
    """Draws the plots for which there are figures; returns their paths by title."""
    plots = {}
    for name, title in (("loss", "Validation loss"), ("bleu", "Validation BLEU")):
        curves = {
            run.name: read_curve(workdir / run.name, f"validation/{name}")
            for run in runs
            if has_units_of_base(name, run.row.name, outcomes)
        }
        if drawn := {run: curve for run, curve in curves.items() if curve}:
            plots[title] = workdir / f"{name}.svg"
            plot_by_step(drawn, title, plots[title])
    scores = judgement.scores if judgement else {}
    costs = {
        name: (flops, score) for name, score in scores.items() if (flops := outcomes[name].flops)
    }
    if costs:
        title = f"{measure} against training FLOPs"
        plots[title] = workdir / "cost.svg"
        plot_by_cost(costs, measure, plots[title])
    return plots
