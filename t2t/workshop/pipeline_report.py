"""The report of a pipeline: the verdict on each system, with speed, size, cost and origin.

It is computed from the files of the steps, any number of times.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2t.config.field_types import INPUT
from t2t.config.fields import FIELD_TYPES
from t2t.evaluation.judge_systems import Findings, judge_systems
from t2t.evaluation.number_format import format_score
from t2t.evaluation.plots import draw_by_speed, write_figure
from t2t.evaluation.report_page import ReportPage, ReportSection
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.evaluation.systems import (
    System,
    check_comparable,
    list_changes,
    list_unlike,
    open_measure,
    read_system,
)
from t2t.evaluation.verdict_table import Line, SystemCost, VerdictTable
from t2t.runtime.text_tables import Table, show_bytes
from t2t.training.provenance import read_last_start
from t2t.workshop.records import StepPlan, count_output_bytes
from t2t.workshop.steps import PLACEHOLDER, PROGRAMS, Step, Workshop, list_texts

ORIGIN = "origin.tsv"  # beside the text of t2t.write_pairs: corpus and line of each pair
COST_NOTE = (
    "The cost of a system is that of all steps that it needs; a step that several systems need "
    "counts for each of them."
)


Judged = dict[tuple[str, str], Findings]  # by a system, and the one that it is judged against


def write_report(workshop: Workshop, works: Mapping[str, StepPlan]) -> str:
    """Writes report.md, report.html, report.json and quality.svg; returns what a terminal shows."""
    finished = {name: work for name, work in works.items() if work.action == "none"}
    systems, lines, facts = dict[str, System](), dict[str, Line](), dict[str, dict[str, Any]]()
    remarks, may_differ = list[str](), list_fields_of_seeds(workshop)
    for name, steps in list_systems(finished).items():
        try:
            outputs = ",".join(str(workshop.find_output(each.name)) for each in steps)
            system = dataclasses.replace(read_system(outputs, "", "", may_differ), name=name)
            size = measure_model(workshop, finished, steps[0])
            line, facts[name] = describe_system(system, size)
            lines[name] = dataclasses.replace(line, cost=sum_system_cost(works, steps))
            systems[name] = system
        except EvaluationError as error:  # the others are worth a report
            remarks.append(f"No scores of {name}: {error}")
    judged, sentences = judge_pairs(workshop, systems)
    table = make_table(lines, facts, judged)
    waiting = [f"{name} ({work.reason})" for name, work in works.items() if name not in finished]
    remarks += [f"Not finished: {', '.join(waiting)}"] if waiting else []
    remarks += [COST_NOTE] if lines else []
    figures = draw(workshop.workdir, lines, facts, table.measure)
    costs = {name: sum_costs(work) for name, work in works.items()}
    origins = {
        name: [*list_origins(workshop, work.step)]
        for name, work in finished.items()
        if work.step.program == "train"
    }
    unlike = list_differences(workshop, systems)
    sections = [
        ReportSection("The verdicts in full", sentences=sentences),
        describe_scores(table, facts),
        ReportSection("Cost of each step", [make_cost_table(costs)]),
        ReportSection("Origin of the training text", [make_origin_table(origins)]),
        ReportSection("What else differs", sentences=describe_differences(unlike)),
    ]
    content = {
        "systems": facts, "verdicts": sentences, "steps": costs, "training_text": origins,
        "differences": unlike,
    }  # fmt: skip
    title = f"Pipeline {workshop.workdir.resolve().name}"
    report = ReportPage(title, table, remarks, figures, sections, content)
    return report.write(workshop.workdir)


def list_fields_of_seeds(workshop: Workshop) -> list[str]:
    """The fields of the config in which seeds may differ: those that take the output of a step.

    Each seed learns from its own teacher.
    """
    names = set[str]()
    for step in workshop.steps.values():
        for name, text in list_texts(step.flags):
            if not workshop.steps.keys() & {*PLACEHOLDER.findall(text)}:
                continue
            if name == "config":  # whose recipe may set any of them
                names |= {field for field, kind in FIELD_TYPES.items() if INPUT in kind.notes}
            own = name.removeprefix("config.")  # or a flag that sets a field of its name
            names |= {own, *(field for field in FIELD_TYPES if field.endswith(f".{own}"))}
    return sorted(names)


def list_systems(finished: Mapping[str, StepPlan]) -> dict[str, list[Step]]:
    """The finished evaluations of each system."""
    found: dict[str, list[Step]] = {}
    for name, work in finished.items():
        if PROGRAMS[work.step.program].evaluates:
            found.setdefault(work.step.system or name, []).append(work.step)
    return found


def describe_system(system: System, size: int | None) -> tuple[Line, dict[str, Any]]:
    """Returns the line of a system, without a verdict, and its other facts; `size` in bytes."""
    (measure, _), test_set = open_measure([system]), check_comparable([system])
    line = judge_systems([system], measure, test_set).lines[0]
    speeds = [each.result.get("tokens_per_second") for each in system.evaluations]
    known = [speed for speed in speeds if speed]
    speed = sum(known) / len(known) if known else None
    backend = system.passport.backend
    facts = {
        "measure": measure.name,
        "definition": measure.definition,
        "measures": {
            name: float(np.mean([each.value(name) for each in system.evaluations]))
            for name in system.evaluations[0].result["measures"]
        },
        "engine": " ".join(filter(None, (backend.get("name"), backend.get("compute_type")))),
        "tokens_per_second": speed,
        "bytes": size,
    }
    shown = {"tokens/s": f"{speed:,.0f}" if speed else "", "size": show_bytes(size, 3)}
    return dataclasses.replace(line, facts=shown), facts


def measure_model(workshop: Workshop, finished: Mapping[str, StepPlan], step: Step) -> int | None:
    """The bytes of the parameters that a step evaluates: with CTranslate2 of an export."""
    run = str(step.flags.get("workdir", ""))
    if step.flags.get("backend") == "ctranslate2":
        exports = (
            name
            for name, work in finished.items()
            if work.step.program == "export" and str(work.step.flags.get("workdir")) == run
        )
        sizes = [count_output_bytes(workshop.find_output(name) / "model.bin") for name in exports]
    else:
        folder = Path(workshop.resolve(step).get("workdir", "")) / "checkpoints"
        sizes = [count_output_bytes(path) for path in folder.glob("*/params")]
    return max(sizes, default=0) or None


def judge_pairs(workshop: Workshop, systems: Mapping[str, System]) -> tuple[Judged, list[str]]:
    """Judges each system against each one that it is compared with.

    Returns the findings of (system, the other one), and all verdicts in full.
    """
    found, sentences = Judged(), list[str]()
    for pair in list_pairs(workshop, systems):
        names = pair[1].name, pair[0].name
        try:
            (measure, notes), test_set = open_measure(pair), check_comparable(pair)
            found[names] = judge_systems(pair, measure, test_set)
            sentences += [*notes, *found[names].sentences]
        except EvaluationError as error:  # the others are worth a report
            sentences.append(f"No verdict on {names[0]} against {names[1]}: {error}")
    return found, sentences


def make_table(
    lines: Mapping[str, Line], facts: Mapping[str, Mapping[str, Any]], judged: Judged
) -> VerdictTable:
    """Makes the table: a system has a line for each one that it is compared with."""
    measures = [each["measure"] for each in facts.values()]
    found = list[Line]()
    for name, own in lines.items():
        measure = facts[name]["measure"]
        pairs = [each.lines[1] for (system, _), each in judged.items() if system == name]
        found += [
            dataclasses.replace(
                line,
                measure="" if measure == measures[0] else measure,
                facts=own.facts,
                cost=own.cost,
            )
            for line in pairs or [own]
        ]
    units = {each.by_measure.unit for each in judged.values()} or {"sentences"}
    log_probs = {each.log_prob for each in judged.values()} - {""}
    log_prob, unit = (" or ".join(sorted(names)) for names in (log_probs, units))
    return VerdictTable(found, measures[0] if measures else "", log_prob, unit)


def draw(
    workdir: Path, lines: Mapping[str, Line], facts: Mapping[str, Mapping[str, Any]], measure: str
) -> dict[str, Path]:
    """Draws scores against speed, if speeds are known; returns the path by title."""
    points = {
        name: (facts[name]["tokens_per_second"], line.score.value, line.score.over_sentences)
        for name, line in lines.items()
        if line.score and facts[name]["tokens_per_second"]
    }
    if not points:
        return {}
    path = workdir / "quality.svg"
    write_figure(draw_by_speed(points, measure), path)
    return {"Quality against speed": path}


def list_pairs(workshop: Workshop, systems: Mapping[str, System]) -> list[tuple[System, System]]:
    """The systems that are compared, as far as they are evaluated: each other with its first."""
    names = dict.fromkeys(
        (first, step.system or step.name)
        for step in workshop.steps.values()
        for first in step.against
    )
    return [(systems[a], systems[b]) for a, b in names if {a, b} <= systems.keys()]


def list_differences(
    workshop: Workshop, systems: Mapping[str, System]
) -> dict[str, dict[str, str]]:
    """Describes how the passports of compared systems differ, of all their seeds."""
    sections, found = ("decoding", "backend", "code", "versions"), {}
    for pair in list_pairs(workshop, systems):
        unlike = list_unlike(pair, *sections).items()
        changes = list_changes(*pair) | {name: " -> ".join(values) for name, values in unlike}
        found[" -> ".join(each.name for each in pair)] = {
            name: workshop.shorten(change) for name, change in changes.items()
        }
    return found


def sum_system_cost(works: Mapping[str, StepPlan], steps: Sequence[Step]) -> SystemCost:
    """Sums the cost of the steps that evaluate a system, and of all that they need."""
    needed, waiting = set[str](), [step.name for step in steps]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += works[name].step.needs
    found = [sum_costs(works[name]) for name in needed]
    return SystemCost(sum(x["minutes"] for x in found), sum(x["core_minutes"] for x in found))


def sum_costs(work: StepPlan) -> dict[str, Any]:
    """The cost of a step, summed over its starts."""
    record = work.record
    return {
        "program": work.step.program,
        "state": "finished" if work.action == "none" else work.reason,
        "minutes": record.sum_up("seconds") / 60,
        "core_minutes": record.sum_up("core_seconds") / 60,
        "starts": len(record.starts),
        "bytes": record.bytes,
    }


def list_origins(workshop: Workshop, step: Step) -> Iterator[dict[str, Any]]:
    """Yields the corpora that a training has read: pairs, the weight in each stage, and origins."""
    start = read_last_start(workshop.find_output(step.name))
    # Without stages all weights are 1.
    parts = [part for stage in start.get("stages", ()) for part in stage["corpora"]]
    for corpus in start["corpora"]["train"] if start else ():
        name = workshop.shorten(corpus["name"])
        weights = [part["weight"] for part in parts if part["name"] == corpus["name"]]
        found = {"corpus": name, "pairs": corpus["pairs"], "weights": weights or [1.0]}
        for maker in workshop.steps:
            ledger = workshop.find_output(maker) / ORIGIN
            if f"{{{maker}}}" in name and ledger.exists():
                lines = ledger.read_text("utf-8").splitlines()
                counts = Counter(workshop.shorten(line.split("\t")[0]) for line in lines)
                found["origin"] = dict(counts.most_common())
        yield found


def describe_scores(table: VerdictTable, facts: Mapping[str, Mapping[str, Any]]) -> ReportSection:
    """The section with intervals, engines, other measures and definitions."""
    rows = [
        [
            name, each["engine"],
            ", ".join(f"{key} {format_score(value)}" for key, value in each["measures"].items()),
        ]
        for name, each in facts.items()
    ]  # fmt: skip
    others = Table(["system", "engine", "all measures"], rows)
    definitions = dict.fromkeys(f"{x['measure']}: {x['definition']}" for x in facts.values())
    return ReportSection(
        "Scores and how they were made", [table.make_score_table(), others], [*definitions]
    )


def make_cost_table(costs: Mapping[str, Mapping[str, Any]]) -> Table:
    """The cost and state of each step."""
    rows = [
        [
            name, each["program"], each["state"], f"{each['minutes']:.1f}",
            f"{each['core_minutes']:.1f}", str(each["starts"]), show_bytes(each["bytes"], 3),
        ]
        for name, each in costs.items()
    ]  # fmt: skip
    total = sum(each["core_minutes"] for each in costs.values())
    rows.append(["all", "", "", "", f"{total:.1f}", "", ""])
    header = ("step", "program", "state", "minutes", "core-minutes", "starts", "writes")
    return Table(header, rows, "lllrrrr")


def make_origin_table(origins: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """The corpora that each training has read."""
    rows = [
        [
            name, each["corpus"], str(each["pairs"]),
            ", ".join(f"{weight:g}" for weight in each["weights"]),
            "; ".join(f"{n} of {origin}" for origin, n in each.get("origin", {}).items()),
        ]
        for name, corpora in origins.items()
        for each in corpora
    ]  # fmt: skip
    return Table(("training", "corpus", "pairs", "weight", "of"), rows, "llrrl")


def describe_differences(unlike: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Says for each pair of systems in what their evaluations differ."""
    return [
        f"{pair}: {', '.join(f'{k} {v}' for k, v in each.items()) or 'nothing'}"
        for pair, each in unlike.items()
    ]
