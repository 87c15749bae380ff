"""The report of a sweep: the verdict on each row, its cost and size, with plots."""

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.field_types import Role
from t2t.config.files import differences, overrides
from t2t.config.variants import find_role
from t2t.data.directions import choose_task, list_tasks
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.forest import format_forest
from t2t.evaluation.number_format import format_score
from t2t.evaluation.plots import draw_against, draw_by_step, draw_forest, write_figure
from t2t.evaluation.published import judge_published
from t2t.evaluation.report_page import ReportPage, ReportSection
from t2t.evaluation.significance import SystemScore
from t2t.evaluation.systems import STEP, System
from t2t.evaluation.verdict_table import Line, VerdictTable
from t2t.ops.build_model import find_family
from t2t.runtime.text_tables import Table, wrap_text
from t2t.sweeps.judge_rows import judge_rows
from t2t.sweeps.sweep_rows import BASE, SweepRun
from t2t.sweeps.sweep_steps import SweepPlan, read_stopped
from t2t.sweeps.tuning import describe_trials, read_choices, warn_of_trials
from t2t.training.provenance import read_last_start
from t2t.training.run_directory import read_curve
from t2t.training.sharing import count_run_parameters
from t2t.training.stop_request import read_stop_request
from t2t.training.total_flops import LENGTH, count_flops
from t2t.workshop.costs import sum_costs
from t2t.workshop.inputs import OF_MACHINES
from t2t.workshop.records import StepPlan
from t2t.workshop.report import describe_workshop, list_states, read_seeds
from t2t.workshop.steps import Workshop

PUBLISHED_NOTE = (
    "A verdict is from the seeds of both sides alone: the sentences count as given. Verdicts on "
    "kinds of a row are corrected for their number (Bonferroni)."
)
NOTES = (
    "FLOPs: of the whole training, or up to a requested stop, by formula, with batches of "
    f"data.batch_tokens filled with sentences of {LENGTH} sub-words. Of several tasks each counts "
    "by its share of the sub-words that the run has read.",
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
    workshop: Workshop,
    runs: Sequence[SweepRun],
    measure: str,
    plan: SweepPlan,
    works: Mapping[str, StepPlan],
) -> str:
    """Writes report.md, report.html, report.json and the plots.

    Args:
        workshop: the steps of the sweep.
        runs: the rows with their seeds.
        measure: by which they are compared.
        plan: that of the sweep.
        works: the plan of each step.

    Returns:
        What a terminal shows.

    Raises:
        EvaluationError: evaluations are damaged or not comparable.
    """
    workdir = workshop.workdir
    names = sorted(dict.fromkeys(run.row.name for run in runs), key=lambda name: name != BASE)
    outcomes = {
        name: read_outcome(workshop, [run for run in runs if run.row.name == name], works)
        for name in names
    }
    steps: dict[str, list[StepPlan]] = {name: [] for name in ("", *names)}  # trials, too
    for job in plan.list_jobs(runs).values():
        steps[job.row] += [works[step.name] for step in job.steps]
    choices = read_choices(workdir, [row for row in plan.trials if row in names])
    stopped = read_stopped(workdir, runs) if plan.gates else None
    systems = {name: each.system for name, each in outcomes.items() if each.system}
    rows = {run.row.name: run.row for run in runs}
    found, forest = judge_rows(
        [*systems.values()], measure, rows, stopped, is_tuned=bool(plan.trials)
    )
    givers = {name: row.tuned_by or name for name, row in rows.items()}
    chosen = {name: choices[giver] for name, giver in givers.items() if giver in choices}
    judged, base = {line.system: line for line in found.lines}, outcomes.get(BASE)
    lines = []
    for name, outcome in outcomes.items():
        against = rows[name].against if name != BASE else ""
        line = judged.get(name, Line(system=name, against=against))
        scoring = [workshop.steps[run.scoring] for run in outcome.runs]
        lines.append(
            dataclasses.replace(
                line,
                changes=describe_changes(outcome, base, find_other_choice(chosen, name)),
                cost=sum_costs(workshop, steps[name]),
                remarks=[*line.remarks, *list_states(workshop, works, scoring)],
            )
        )
    table = VerdictTable(
        lines, measure, found.log_prob, found.by_measure.unit, "row", found.by_kind
    )
    scores = {line.system: line.score for line in lines if line.score}
    plots = draw(workdir, runs, outcomes, scores, measure)
    if forest:
        title = f"Differences from {BASE} by each measure"
        plots = {title: workdir / "forest.svg"} | plots
        for path in (plots[title], workdir / "forest.png"):
            write_figure(draw_forest(forest, BASE), path)
    sizes, size_notes = describe_sizes(outcomes)
    definitions = [
        f"{measure}: {system.evaluations[0].open_measure(measure).definition}"
        for system in [*systems.values()][:1]
    ]
    notes = [*definitions, *describe_vocabularies(outcomes)]
    size = ReportSection("Size of a row", [sizes], size_notes)
    by_task = {
        task: judge_task(workshop, runs, plan, works, task, name)
        for task, name in plan.protocol.others.items()
    }
    shown = [format_forest(forest, BASE)] if forest else []
    for task, (section, _) in by_task.items():
        shown.append(wrap_text(f"Task {task}: {section.sentences[0]}"))
    sections, content = describe_workshop(
        workshop, works, table, systems, found.sentences, notes,
        [describe_published(outcomes), describe_trials(choices), size],
    )  # fmt: skip
    report = ReportPage(
        f"Sweep {workdir.resolve().name}",
        table,
        [
            *name_main_task(runs, plan),
            *warn_of_trials(plan.trials, choices),
            describe_cost(workshop, works),
        ],
        figures=plots,
        sections=[*(section for section, _ in by_task.values()), *sections, describe_base(runs)],
        content=content
        | {
            "tasks": {task: lines for task, (_, lines) in by_task.items()},
            "sizes": [dict(zip(sizes.header, x, strict=True)) for x in sizes.rows],
        },
        terminal="\n\n".join(shown),
    )
    return report.write(workdir)


def name_main_task(runs: Sequence[SweepRun], plan: SweepPlan) -> Iterator[str]:
    """Yields which task the rows are judged by, if they learn several."""
    data = runs[0].config.data
    if len(list_tasks(data)) > 1:
        main = choose_task(data, plan.protocol.task).task
        others = ", ".join(plan.protocol.others)
        more = f", except in sections on {others}" if others else "; --other_tasks=all adds others"
        yield f"All scores are of the task {main}{more}."


def judge_task(
    workshop: Workshop,
    runs: Sequence[SweepRun],
    plan: SweepPlan,
    works: Mapping[str, StepPlan],
    task: str,
    measure: str,
) -> tuple[ReportSection, list[dict[str, Any]]]:
    """Judges the rows by another task than the main one.

    Returns a section with the table, and its lines for programs.

    Raises:
        EvaluationError: evaluations are damaged or not comparable.
    """
    by_row: dict[str, list[SweepRun]] = {}
    for run in sorted(runs, key=lambda run: run.row.name != BASE):
        by_row.setdefault(run.row.name, []).append(run)
    scoring = {
        name: [workshop.steps[run.name_scoring(task)] for run in own]
        for name, own in by_row.items()
    }
    systems = [read_seeds(workshop, works, steps, (STEP,)) for steps in scoring.values()]
    rows = {name: own[0].row for name, own in by_row.items()}
    found, _ = judge_rows([*filter(None, systems)], measure, rows, is_tuned=bool(plan.trials))
    judged = {line.system: line for line in found.lines}
    lines = [
        dataclasses.replace(
            (line := judged.get(name, Line(system=name, against=rows[name].against))),
            remarks=[*line.remarks, *list_states(workshop, works, steps)],
        )
        for name, steps in scoring.items()
    ]
    table = VerdictTable(
        lines, measure, found.log_prob, found.by_measure.unit, "row", found.by_kind
    )
    note = "p-values and intervals are corrected within this task, not for the number of tasks."
    kinds = [each.make_table() for each in found.by_kind]
    section = ReportSection(f"Task {task}", [table.make_table(), *kinds], [table.describe(), note])
    return section, table.record()


def read_outcome(
    workshop: Workshop, runs: Sequence[SweepRun], works: Mapping[str, StepPlan]
) -> RowOutcome:
    """Reads the results of a row from the directories of its runs."""
    scoring = [workshop.steps[run.scoring] for run in runs]
    system = read_seeds(workshop, works, scoring, (STEP,))
    vocabularies = [run.workdir / "vocab" for run in runs]
    saved = next(filter(Vocabulary.is_saved, vocabularies), None)
    if saved is None:
        return RowOutcome(runs, system)
    vocabulary = Vocabulary.load(saved)
    return RowOutcome(
        runs,
        system,
        vocabulary.fingerprint(),
        count_run_parameters(runs[0].config, *vocabulary.sizes),
        round(statistics.mean(_count_flops(run, vocabulary.tgt.vocab_size) for run in runs)),
    )


def _count_flops(run: SweepRun, tgt_vocab_size: int) -> int:
    """Counts the FLOPs of a run up to its end or the stop that was asked for."""
    request, training = read_stop_request(run.workdir), run.config.training
    steps = (request and request.obeyed_at) or training.steps
    made = dataclasses.replace(run.config, training=dataclasses.replace(training, steps=steps))
    return count_flops(made, tgt_vocab_size, read_last_start(run.workdir).get("stages", ()))


def describe_cost(workshop: Workshop, works: Mapping[str, StepPlan]) -> str:
    """Says what the costs of rows hold, and how much all rows have cost together."""
    total = sum_costs(workshop, works.values()).format()
    shown = ", ".join(f"{cost} {name}" for name, cost in total.items() if name != "start" and cost)
    return f"The cost of a row is that of all its runs, trials included; all together: {shown}."


def find_other_choice(
    chosen: Mapping[str, Mapping[str, Any]], name: str
) -> Mapping[str, Any] | None:
    """Returns what trials chose for a row, if it is another value than that of base."""
    own, of_base = chosen.get(name), chosen.get(BASE)
    asked = ("setting", "value")
    if name != BASE and own and of_base and all(own[each] == of_base[each] for each in asked):
        return None
    return own


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


def describe_sizes(outcomes: Mapping[str, RowOutcome]) -> tuple[Table, list[str]]:
    """Makes the table of parameters, operations and speed, and its notes."""
    base = outcomes.get(BASE)
    cells = [{"row": name} | make_size_cells(each, base) for name, each in outcomes.items()]
    header = [*cells[0]]
    rows = [[row[name] for name in header] for row in cells]
    return Table(header, rows, "lrrrr"), [*NOTES]


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
    family = find_family(config.model)
    return {
        "parameters": parameters,
        "FLOPs": f"{outcome.flops:.2e}" if outcome.flops else "",
        "sequential": str(family.count_sequential(config.model, LENGTH, LENGTH)),
        "tokens/s": f"{statistics.median(speeds):.0f}" if speeds else "",
    }


def describe_published(outcomes: Mapping[str, RowOutcome]) -> ReportSection:
    """Makes the table of published scores beside ours, of each measure and each kind."""
    rows, sources, judges = list[tuple[str, ...]](), dict[str, None](), False
    base = outcomes[BASE].runs[0].row.published if BASE in outcomes else None
    for name, outcome in outcomes.items():
        if (published := outcome.runs[0].row.published) is None:
            continue
        sources[published.source] = None
        if published.parameters:
            before = base.parameters if base else None
            change = f" ({published.parameters - before:+d}M)" if before and name != BASE else ""
            ours = f"{outcome.parameters / 1e6:.2f}M" if outcome.parameters else ""
            rows.append((name, "parameters", ours, f"{published.parameters}M{change}", ""))
        first = next(iter(published.scores), "")
        found = [(measure, "", seeds) for measure, seeds in published.scores.items()]
        found += [(first, kind, seeds) for kind, seeds in published.kinds.items()]
        for measure, kind, theirs in found:
            scores = outcome.system.read_scores(measure, kind) if outcome.system else []
            verdict = ""
            if scores and published.is_comparable:
                count = len(published.kinds) if kind else 1
                verdict, judges = judge_published(scores, theirs, count).describe(), True
            elif kind and outcome.system:
                verdict = "no sentence of our test set is of this kind"
            rows.append((name, kind or measure, _show_seeds(scores), _show_seeds(theirs), verdict))
    header = ("row", "of", "ours", "published", "what the seeds say")
    notes = [f"Published: {source}." for source in sources] + [PUBLISHED_NOTE] * judges
    return ReportSection("Beside published scores", [Table(header, rows)], notes)


def _show_seeds(scores: Sequence[float]) -> str:
    """Shows the mean of several seeds, with their number."""
    if not scores:
        return ""
    several = f", {len(scores)} seeds" if len(scores) > 1 else ""
    return format_score(statistics.mean(scores)) + several


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


def describe_base(runs: Sequence[SweepRun]) -> ReportSection:
    """Describes the config of base."""
    base = next((run for run in runs if run.row.name == BASE), runs[0])
    fields = [
        f"{name}={value!r}"
        for name, value in overrides(base.config).items()
        if find_role(name) not in OF_MACHINES
    ]
    title = "Base, where it differs from the defaults in t2t/config/fields.py"
    return ReportSection(title, sentences=[", ".join(fields)] * bool(fields))


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
        write_figure(draw_against(costs, measure, "training FLOPs"), plots[title])
    return plots
