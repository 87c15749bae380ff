"""The report of a sweep: the verdict on each row, its cost and size, with plots."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.field_types import Role
from t2t.config.files import differences, overrides
from t2t.config.variants import find_role
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.forest import format_forest
from t2t.evaluation.number_format import format_score
from t2t.evaluation.plots import draw_by_cost, draw_by_step, draw_forest, write_figure
from t2t.evaluation.report_page import ReportPage, ReportSection
from t2t.evaluation.significance import SystemScore
from t2t.evaluation.systems import STEP, System, read_system
from t2t.evaluation.verdict_table import Line, SystemCost, VerdictTable
from t2t.ops.flops import count_parameters, count_sequential_operations
from t2t.runtime.text_tables import Table
from t2t.sweeps.judge_rows import judge_rows
from t2t.sweeps.sweep_rows import BASE, EVALUATION, Paper, SweepRun
from t2t.sweeps.sweep_steps import Job, SweepPlan, read_stopped
from t2t.sweeps.tuning import describe_trials, read_choices, warn_of_trials
from t2t.training.provenance import read_ledger
from t2t.training.run_directory import read_curve, read_metrics
from t2t.training.stop_request import read_stop_request
from t2t.training.total_flops import LENGTH, count_flops
from t2t.workshop.inputs import OF_MACHINES
from t2t.workshop.records import Record, StepPlan

PAPER_BASE_SIZE = 65  # million parameters of the paper's base model
PAPER_NOTE = (
    "Paper: perplexity and BLEU on newstest2013 as the paper measures them, and the difference in "
    "parameters from base. Compare differences from base, not values."
)
PERPLEXITY_NOTE = "Perplexity: exp of the mean over seeds of the nats per sub-word."
NOTES = (
    "FLOPs: of the whole training, or up to a requested stop, by formula, with batches of "
    f"data.batch_tokens filled with sentences of {LENGTH} sub-words.",
    f"Sequential: operations of the forward pass that cannot run in parallel, for {LENGTH} "
    "sub-words on either side (table 1 of the paper).",
    "Tokens/s: target sub-words per second, median over the training, beside any other programs on "
    "the machine.",
)


@dataclasses.dataclass(frozen=True)
class RowOutcome:
    """The results of a row; values that are not known yet are None."""

    runs: Sequence[SweepRun]
    system: System | None  # the evaluations of the finished runs
    vocabulary: str | None = None  # its fingerprint
    parameters: int | None = None
    flops: int | None = None

    def has_units_of(self, base: "RowOutcome | None", figure: str) -> bool:
        """Returns whether the validation loss or bleu has the same definition as base's.

        A loss is per sub-word of the vocabulary. Lower-case runs have `bleu_lowercase` during
        training.
        """
        if base is None:
            return True
        if figure == "loss":
            return None in (self.vocabulary, base.vocabulary) or self.vocabulary == base.vocabulary
        cases = {each.runs[0].config.tokenizer.lowercase for each in (self, base)}
        return len(cases) == 1


def write_report(
    workdir: Path,
    runs: Sequence[SweepRun],
    measure: str,
    plan: SweepPlan,
    works: Mapping[str, StepPlan],
) -> str:
    """Writes report.md, report.html, report.json and the plots.

    Args:
        workdir: the folder of the sweep.
        runs: the rows with their seeds.
        measure: by which they are compared.
        plan: that of the sweep.
        works: the plan of each step.

    Returns:
        What a terminal shows.

    Raises:
        EvaluationError: evaluations are damaged or not comparable.
    """
    costs = sum_costs(plan.list_jobs(runs), works)
    names = sorted(dict.fromkeys(run.row.name for run in runs), key=lambda name: name != BASE)
    outcomes = {
        name: read_outcome([run for run in runs if run.row.name == name], works) for name in names
    }
    choices = read_choices(workdir, [row for row in plan.trials if row in names])
    stopped = read_stopped(workdir, runs) if plan.gates else None
    systems = [
        dataclasses.replace(outcome.system, name=name)
        for name, outcome in outcomes.items()
        if outcome.system
    ]
    rows = {run.row.name: run.row for run in runs}
    against = {name: row.against for name, row in rows.items() if name != BASE}
    found, forest = judge_rows(systems, measure, rows, stopped, is_tuned=bool(plan.trials))
    judged = {line.system: line for line in found.lines}
    base = outcomes.get(BASE)
    lines = [
        dataclasses.replace(
            line := judged.get(name, Line(system=name, against=against.get(name, ""))),
            changes=describe_changes(outcome, base, choices.get(name)),
            cost=costs[name],
            remarks=[*line.remarks, *find_states(outcome.runs, works)],
        )
        for name, outcome in outcomes.items()
    ]
    table = VerdictTable(lines, measure, found.log_prob, found.by_measure.unit, noun="row")
    scores = {line.system: line.score for line in lines if line.score}
    plots = draw(workdir, runs, outcomes, scores, measure)
    if forest:
        title = f"Differences from {BASE} by each measure"
        plots = {title: workdir / "forest.svg"} | plots
        for path in (plots[title], workdir / "forest.png"):
            write_figure(draw_forest(forest, BASE), path)
    sizes, size_notes = describe_sizes(outcomes, measure)
    report = ReportPage(
        f"Sweep {workdir.resolve().name}",
        table,
        warn_of_trials(plan.trials, choices),
        figures=plots,
        sections=[
            ReportSection("The verdicts in full", sentences=found.sentences),
            ReportSection(
                "Scores and how they were made",
                [table.make_score_table()],
                describe_scoring(systems, measure),
            ),
            describe_trials(choices, measure),
            ReportSection("Cost and size of a row", [sizes], size_notes),
            ReportSection("Origin of the runs", sentences=describe_provenance(runs)),
        ],
        content={"sizes": [dict(zip(sizes.header, row, strict=True)) for row in sizes.rows]},
        terminal=format_forest(forest, BASE) if forest else "",
    )
    return report.write(workdir)


def sum_costs(jobs: Mapping[str, Job], works: Mapping[str, StepPlan]) -> dict[str, SystemCost]:
    """Returns the cost of each row, its trials included, all starts together."""
    records: dict[str, list[Record]] = {}
    for job in jobs.values():
        records.setdefault(job.row, []).extend(works[step.name].record for step in job.steps)
    return {
        row: SystemCost(
            sum(each.sum_up("seconds") for each in own) / 60,
            sum(each.sum_up("core_seconds") for each in own) / 60,
        )
        for row, own in records.items()
    }


def read_outcome(runs: Sequence[SweepRun], works: Mapping[str, StepPlan]) -> RowOutcome:
    """Reads the results of a row from the directories of its runs."""
    finished = [run for run in runs if works[run.scoring].action == "none"]
    operand = ",".join(str(run.workdir) for run in finished)
    system = read_system(operand, "", EVALUATION, (STEP,)) if finished else None
    vocabularies = [run.workdir / "vocab" for run in runs]
    saved = next(filter(Vocabulary.is_saved, vocabularies), None)
    if saved is None:
        return RowOutcome(runs, system)
    vocabulary = Vocabulary.load(saved)
    steps = runs[0].config.training.steps
    requests = [read_stop_request(run.workdir) for run in runs]
    made = statistics.mean((request and request.obeyed_at) or steps for request in requests)
    return RowOutcome(
        runs,
        system,
        vocabulary.fingerprint(),
        count_parameters(runs[0].config.model, *vocabulary.sizes),
        round(count_flops(runs[0].config, vocabulary.tgt.vocab_size) * made / steps),
    )


def find_states(runs: Sequence[SweepRun], works: Mapping[str, StepPlan]) -> list[str]:
    """Describes the different states of the runs that have no evaluation yet."""
    states = []
    for run in runs:
        train, scores = works[run.name], works[run.scoring]
        if scores.action == "none":
            continue
        if reason := train.record.failure:
            states.append(f"training failed: {reason}")
        elif reason := scores.record.failure:
            states.append(f"evaluating failed: {reason}")
        elif train.is_aside:
            states.append(f"changed: {train.reason}")
        elif metrics := read_metrics(run.workdir):
            steps = run.config.training.steps
            states.append(f"stopped after step {metrics[-1]['step']} of {steps}")
        else:
            states.append("not started")
    return [*dict.fromkeys(states)]


def describe_changes(
    outcome: RowOutcome, base: RowOutcome | None, choice: Mapping[str, Any] | None = None
) -> str:
    """Describes what a row changes, empty without base, and the value that was chosen for it."""
    changes = differences(base.runs[0].config, outcome.runs[0].config) if base else []
    found = [
        str(change).removeprefix("model.")
        for change in changes
        if find_role(change.name) is not Role.SEED
    ]
    if choice:
        found.append(f"tuned {choice['setting'].rpartition('.')[2]} {choice['value']:g}")
    return ", ".join(found)


def describe_sizes(outcomes: Mapping[str, RowOutcome], measure: str) -> tuple[Table, list[str]]:
    """Makes the table of parameters, operations, speed, perplexity and the paper's values.

    Where perplexity is the measure, which is a mean over seeds, the table has no other one.
    """
    base = outcomes.get(BASE)
    cells = [{"row": name} | make_size_cells(each, base) for name, each in outcomes.items()]
    is_in_paper = any(row["paper"] for row in cells)
    left_out = {measure} if is_in_paper else {measure, "paper"}
    header = [name for name in cells[0] if name not in left_out]
    rows = [[row[name] for name in header] for row in cells]
    notes = [
        *NOTES,
        *[PERPLEXITY_NOTE] * ("perplexity" in header),
        *[PAPER_NOTE] * is_in_paper,
        *describe_vocabularies(outcomes),
    ]
    return Table(header, rows, "lrrrrrl"), notes


def make_size_cells(outcome: RowOutcome, base: RowOutcome | None) -> dict[str, str]:
    """Returns the cells of a row that need no comparison of translations."""
    config = outcome.runs[0].config
    count, before = outcome.parameters, base.parameters if base else None
    parameters = "" if count is None else f"{count / 1e6:.2f}M"
    if count is not None and before is not None and count != before:
        parameters += f" ({(count - before) / 1e6:+.2f}M)"
    speeds = [
        speed
        for run in outcome.runs
        for _, speed in read_curve(run.workdir, "train/tokens_per_second")
    ]
    return {
        "parameters": parameters,
        "FLOPs": f"{outcome.flops:.2e}" if outcome.flops else "",
        "sequential": str(count_sequential_operations(config.model, LENGTH, LENGTH)),
        "tokens/s": f"{statistics.median(speeds):.0f}" if speeds else "",
        "perplexity": _format_perplexity(outcome.system),
        "paper": _format_paper(outcome.runs[0].row.paper),
    }


def _format_perplexity(system: System | None) -> str:
    """Formats exp of the mean nats per sub-word over the runs."""
    if system is None:
        return ""
    measures = [each.result["measures"] for each in system.evaluations]
    if not all("perplexity" in each for each in measures):
        return "not finite"
    values = [each["perplexity"]["value"] for each in measures]
    return format_score(statistics.geometric_mean(values))


def _format_paper(paper: Paper | None) -> str:
    if paper is None:
        return ""
    change = f", {paper.parameters - PAPER_BASE_SIZE:+d}M" if paper.parameters else ""
    return f"{paper.perplexity:.2f}, {paper.bleu:.1f}{change}"


def describe_scoring(systems: Sequence[System], measure: str) -> list[str]:
    """Describes how all systems were scored; empty without systems."""
    if not systems:
        return []
    first = systems[0].evaluations[0]
    definition = first.open_measure(measure).definition
    names: dict[str, list[str]] = {}  # of the rows with a seed that was scored at a checkpoint
    for system in systems:
        for checkpoint in dict.fromkeys(each.passport.checkpoint for each in system.evaluations):
            names.setdefault(checkpoint, []).append(system.name)
    checkpoint, *others = names
    own = "".join(f" ({other}: {', '.join(names[other])})" for other in others)
    evaluations = [each for system in systems for each in system.evaluations]
    dates = sorted(each.date[:10] for each in evaluations)
    codes: dict[str, set[str]] = {}  # of t2t, and of the same plugins
    for passport in (each.passport for each in evaluations):
        codes.setdefault("t2t", set()).add(str(passport.code.get("t2t")))
        codes.setdefault(str(passport.config.get("plugins")), set()).add(str(passport.code))
    count = max(map(len, codes.values()))
    return [
        f"Scored on the {first.passport.data['split']} split, checkpoint {checkpoint}{own}, "
        f"{first.result['num_sentences']} sentences. {measure}: {definition}",
        f"Scores were saved from {dates[0]} to {dates[-1]}"
        f"{f' by {count} versions of the code' * (count > 1)}.",
    ]


def describe_vocabularies(outcomes: Mapping[str, RowOutcome]) -> list[str]:
    """Names the rows whose losses and perplexities cannot be compared with base's."""
    base = outcomes.get(BASE)
    others = [name for name, each in outcomes.items() if not each.has_units_of(base, "loss")]
    if not others:
        return []
    return [
        f"Losses and perplexities of {', '.join(others)} are per sub-word of another vocabulary "
        "than base's; do not compare them. The plot of the validation loss leaves them out."
    ]


def describe_provenance(runs: Sequence[SweepRun]) -> list[str]:
    """Describes the date, code, packages, devices and base config of the runs.

    The list is empty if no run has started.
    """
    starts = [start for run in runs for start in read_ledger(run.workdir)]
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
        if find_role(name) not in OF_MACHINES
    )
    return [
        f"Runs from {begun[:10]} on, revision {', '.join(revisions)}"
        f"{' with changes that were not committed' if changed else ''}"
        f"{', code ' * bool(codes)}{', '.join(codes)}, {', '.join(packages)}, "
        f"on {' and '.join(devices)} per run.",
        f"Base, where it differs from the defaults in t2t/config/fields.py: {fields}.",
    ]


def draw(
    workdir: Path,
    runs: Sequence[SweepRun],
    outcomes: Mapping[str, RowOutcome],
    scores: Mapping[str, SystemScore],
    measure: str,
) -> dict[str, Path]:
    """Draws the plots for which there are figures; returns their paths by title."""
    plots, base = {}, outcomes.get(BASE)
    for name, title in (("loss", "Validation loss"), ("bleu", "Validation BLEU")):
        curves = {
            run.name: curve
            for run in runs
            if outcomes[run.row.name].has_units_of(base, name)
            and (curve := read_curve(run.workdir, f"validation/{name}"))
        }
        if curves:
            plots[title] = workdir / f"{name}.svg"
            write_figure(draw_by_step(curves, title), plots[title])
    costs = {
        name: (flops, score) for name, score in scores.items() if (flops := outcomes[name].flops)
    }
    if costs:
        title = f"{measure} against training FLOPs"
        plots[title] = workdir / "cost.svg"
        write_figure(draw_by_cost(costs, measure), plots[title])
    return plots
