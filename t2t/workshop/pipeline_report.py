"""The report of a pipeline: the verdict on each system, with speed, size, cost and origin."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2t.config.field_types import INPUT
from t2t.config.fields import FIELD_TYPES
from t2t.evaluation.judge_systems import Findings, judge_systems
from t2t.evaluation.plots import draw_against, write_figure
from t2t.evaluation.report_page import ReportPage
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.evaluation.systems import System, check_comparable, open_measure
from t2t.evaluation.verdict_table import Line, VerdictTable
from t2t.runtime.text_tables import show_bytes
from t2t.workshop.costs import sum_costs
from t2t.workshop.records import StepPlan, count_output_bytes
from t2t.workshop.report import (
    average,
    describe_engine,
    describe_workshop,
    list_needed,
    list_states,
    read_seeds,
)
from t2t.workshop.steps import PLACEHOLDER, PROGRAMS, Step, Workshop, list_texts

COST_NOTE = (
    "The cost of a system is that of all steps that it needs; a step that several systems need "
    "counts for each of them."
)


def write_report(workshop: Workshop, works: Mapping[str, StepPlan]) -> str:
    """Writes report.md, report.html, report.json and quality.svg; returns what a terminal shows."""
    systems, lines, facts = dict[str, System](), dict[str, Line](), dict[str, dict[str, Any]]()
    remarks, told, may_differ = list[str](), set[str](), list_fields_of_seeds(workshop)
    for name, steps in list_systems(workshop).items():
        line, needed = Line(system=name), list_needed(works, [step.name for step in steps])
        states = list_states(workshop, works, steps)
        told |= {*needed} if states else set()
        try:
            if system := read_seeds(workshop, works, steps, may_differ):
                systems[name] = system
                sizes = (measure_model(workshop, works, step) for step in steps)
                size = next(filter(None, sizes), None)
                line, facts[name] = describe_system(system, size)
        except EvaluationError as error:  # the others are worth a report
            remarks.append(f"No scores of {name}: {error}")
        lines[name] = dataclasses.replace(
            line,
            against=next(iter(steps[0].against), ""),
            cost=sum_costs(workshop, [works[each] for each in needed]),
            remarks=states,
        )
    table, sentences = judge_pairs(workshop, systems, lines)
    waiting = [
        f"{name} ({work.reason})"
        for name, work in works.items()
        if work.action != "none" and name not in told
    ]
    remarks += [f"Not finished: {', '.join(waiting)}"] if waiting else []
    remarks += [COST_NOTE] if lines else []
    definitions = [f"{each['measure']}: {each['definition']}" for each in facts.values()]
    sections, content = describe_workshop(
        workshop, works, table, systems, sentences, [*dict.fromkeys(definitions)]
    )
    content |= {"systems": facts, "verdicts": sentences}
    figures = draw(workshop.workdir, lines, facts, table.measure)
    title = f"Pipeline {workshop.workdir.resolve().name}"
    return ReportPage(title, table, remarks, figures, sections, content).write(workshop.workdir)


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


def list_systems(workshop: Workshop) -> dict[str, list[Step]]:
    """The evaluations of each system."""
    found: dict[str, list[Step]] = {}
    for name, step in workshop.steps.items():
        if PROGRAMS[step.program].evaluates:
            found.setdefault(step.system or name, []).append(step)
    return found


def describe_system(system: System, size: int | None) -> tuple[Line, dict[str, Any]]:
    """Returns the line of a system, without a verdict, and its other facts; `size` in bytes."""
    (measure, _), test_set = open_measure([system]), check_comparable([system])
    line = judge_systems([system], measure, test_set).lines[0]
    speeds = [each.result.get("tokens_per_second") for each in system.evaluations]
    known = [speed for speed in speeds if speed]
    speed = sum(known) / len(known) if known else None
    facts = {
        "measure": measure.name,
        "definition": measure.definition,
        "measures": {
            name: average(system, name) for name in system.evaluations[0].result["measures"]
        },
        "engine": describe_engine(system),
        "tokens_per_second": speed,
        "bytes": size,
    }
    shown = {"tokens/s": f"{speed:,.0f}" if speed else "", "size": show_bytes(size, 3)}
    return dataclasses.replace(line, measure=measure.name, facts=shown), facts


def measure_model(workshop: Workshop, works: Mapping[str, StepPlan], step: Step) -> int | None:
    """The bytes of the parameters that a step evaluates: with CTranslate2 of an export."""
    run = str(step.flags.get("workdir", ""))
    if step.flags.get("backend") == "ctranslate2":
        exports = (
            name
            for name, work in works.items()
            if (work.step.program, work.action) == ("export", "none")
            and str(work.step.flags.get("workdir")) == run
        )
        sizes = [count_output_bytes(workshop.find_output(name) / "model.bin") for name in exports]
    else:
        folder = Path(workshop.resolve(step).get("workdir", "")) / "checkpoints"
        sizes = [count_output_bytes(path) for path in folder.glob("*/params")]
    return max(sizes, default=0) or None


def judge_pairs(
    workshop: Workshop, systems: Mapping[str, System], lines: Mapping[str, Line]
) -> tuple[VerdictTable, list[str]]:
    """Judges each system against each one that it is compared with.

    Returns the table, in which a system has a line for each, and all verdicts in full. `lines` are
    those of systems without a verdict.
    """
    steps, judged, sentences = workshop.steps.values(), list[Findings](), list[str]()
    shown: dict[str, list[Line]] = {name: [] for name in lines}
    for first, name in dict.fromkeys(
        (first, step.system or step.name) for step in steps for first in step.against
    ):
        if not {first, name} <= systems.keys():
            continue
        pair, own = (systems[first], systems[name]), lines[name]
        try:
            (measure, notes), test_set = open_measure(pair), check_comparable(pair)
            found = judge_systems(pair, measure, test_set)
            line = found.lines[1]
            judged.append(found)
            sentences += [*notes, *found.sentences]
        except EvaluationError as error:  # the others are worth a report
            line = dataclasses.replace(own, against=first, remarks=["not comparable"])
            sentences.append(f"No verdict on {name} against {first}: {error}")
        remarks = [*line.remarks, *own.remarks]
        shown[name].append(
            dataclasses.replace(
                line, measure=own.measure, facts=own.facts, cost=own.cost, remarks=remarks
            )
        )
    usual = next((line.measure for line in lines.values() if line.score), "")
    found_lines = [
        dataclasses.replace(line, measure=line.measure * (line.measure != usual))
        for name, own in lines.items()
        for line in shown[name] or [own]
    ]
    units = {each.by_measure.unit for each in judged} or {"sentences"}
    log_probs = {each.log_prob for each in judged} - {""}
    log_prob, unit = (" or ".join(sorted(names)) for names in (log_probs, units))
    return VerdictTable(found_lines, usual, log_prob, unit), sentences


def draw(
    workdir: Path, lines: Mapping[str, Line], facts: Mapping[str, Mapping[str, Any]], measure: str
) -> dict[str, Path]:
    """Draws scores against speed, if speeds are known; returns the path by title."""
    points = {
        name: (facts[name]["tokens_per_second"], line.score)
        for name, line in lines.items()
        if line.score and facts[name]["tokens_per_second"]
    }
    if not points:
        return {}
    path = workdir / "quality.svg"
    write_figure(draw_against(points, measure, "tokens per second", log=True), path)
    return {"Quality against speed": path}
