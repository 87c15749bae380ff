"""The report of a pipeline: quality, speed, size, cost, origin of the text, and what differs.

It is computed from the files of the steps, any number of times.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t2t.config.field_types import INPUT
from t2t.config.fields import FIELD_TYPES
from t2t.evaluation.measure import format_interval, format_score
from t2t.evaluation.plots import draw_by_speed, write_figure
from t2t.evaluation.saved_evaluations import EvaluationError
from t2t.evaluation.significance import judge
from t2t.evaluation.systems import (
    System,
    check_comparable,
    list_changes,
    list_unlike,
    open_measure,
    read_statistics,
    read_system,
)
from t2t.evaluation.verdict import describe_all, list_same
from t2t.runtime.text_tables import format_table, show_bytes
from t2t.storage.atomic_files import write_file
from t2t.training.provenance import read_last_start
from t2t.workshop.records import StepPlan, count_output_bytes
from t2t.workshop.steps import PLACEHOLDER, PROGRAMS, Pipeline, Step, list_texts

ORIGIN = "origin.tsv"  # beside the text of t2t.write_pairs: corpus and line of each pair


def write_report(pipeline: Pipeline, works: Mapping[str, StepPlan]) -> str:
    """Writes report.md, report.json and quality.svg; returns the text of report.md."""
    finished = {name: work for name, work in works.items() if work.action == "none"}
    systems, scores, faults = dict[str, System](), dict[str, dict[str, Any]](), list[str]()
    may_differ = list_fields_of_seeds(pipeline)
    for name, steps in list_systems(finished).items():
        try:
            outputs = ",".join(str(pipeline.find_output(each.name)) for each in steps)
            system = read_system(outputs, "", "", may_differ)
            system = System(name, system.evaluations)
            scores[name] = record_system(pipeline, finished, system, steps[0])
            systems[name] = system
        except EvaluationError as error:  # the others are worth a report
            faults.append(f"No scores of {name}: {error}")
    verdicts = [*faults, *judge_systems(pipeline, systems)]
    costs = {name: sum_costs(work) for name, work in works.items()}
    origins = {
        name: [*list_origins(pipeline, work.step)]
        for name, work in finished.items()
        if work.step.program == "train"
    }
    differences = list_differences(pipeline, systems)
    content = {
        "systems": scores, "verdicts": verdicts, "steps": costs, "training_text": origins,
        "differences": differences,
    }  # fmt: skip
    write_file(pipeline.workdir / "report.json", json.dumps(content, indent=1) + "\n")
    parts = ["# Report", *_format(content)]
    points = {
        name: (each["tokens_per_second"], each["value"], each["interval"])
        for name, each in scores.items()
        if each["tokens_per_second"]
    }
    if points:
        measure = next(iter(scores.values()))["measure"]
        write_figure(draw_by_speed(points, measure), pipeline.workdir / "quality.svg")
        parts.append("![Quality against speed](quality.svg)")
    text = "\n\n".join(parts)
    write_file(pipeline.workdir / "report.md", text + "\n")
    return text


def list_fields_of_seeds(pipeline: Pipeline) -> list[str]:
    """The fields of the config in which seeds may differ: those that take the output of a step.

    Each seed learns from its own teacher.
    """
    names = set[str]()
    for step in pipeline.steps.values():
        for name, text in list_texts(step.flags):
            if not pipeline.steps.keys() & {*PLACEHOLDER.findall(text)}:
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


def record_system(
    pipeline: Pipeline, finished: Mapping[str, StepPlan], system: System, step: Step
) -> dict[str, Any]:
    """Score, speed and size of a system; the size of one step."""
    (measure, _), test_set = open_measure([system]), check_comparable([system])
    score = judge(read_statistics([system], measure, test_set), measure, test_set)
    own, backend = score.scores[system.name], system.passport.backend
    speeds = [each.result.get("tokens_per_second") for each in system.evaluations]
    known = [speed for speed in speeds if speed]
    return {
        "measure": measure.name,
        "definition": measure.definition,
        "value": own.value,
        "interval": own.over_sentences,
        "over_seeds": own.over_seeds,
        "seeds": list(own.seeds),
        "measures": {
            name: float(np.mean([each.value(name) for each in system.evaluations]))
            for name in system.evaluations[0].result["measures"]
        },
        "engine": " ".join(filter(None, (backend.get("name"), backend.get("compute_type")))),
        "tokens_per_second": sum(known) / len(known) if known else None,
        "bytes": measure_model(pipeline, finished, step),
    }


def measure_model(pipeline: Pipeline, finished: Mapping[str, StepPlan], step: Step) -> int | None:
    """The bytes of the parameters that a step evaluates: with CTranslate2 of an export."""
    run = str(step.flags.get("workdir", ""))
    if step.flags.get("backend") == "ctranslate2":
        exports = (
            name
            for name, work in finished.items()
            if work.step.program == "export" and str(work.step.flags.get("workdir")) == run
        )
        sizes = [count_output_bytes(pipeline.find_output(name) / "model.bin") for name in exports]
    else:
        folder = Path(pipeline.resolve(step).get("workdir", "")) / "checkpoints"
        sizes = [count_output_bytes(path) for path in folder.glob("*/params")]
    return max(sizes, default=0) or None


def judge_systems(pipeline: Pipeline, systems: Mapping[str, System]) -> list[str]:
    """The verdict on each system against each one that it is compared with, in words."""
    lines = []
    for pair in list_pairs(pipeline, systems):
        try:
            (measure, notes), test_set = open_measure(pair), check_comparable(pair)
            judgement = judge(read_statistics(pair, measure, test_set), measure, test_set)
            lines += notes
            lines += describe_all(judgement, measure.name, list_same(pair))
        except EvaluationError as error:  # the others are worth a report
            lines.append(f"No verdict on {pair[1].name} against {pair[0].name}: {error}")
    return lines


def list_pairs(pipeline: Pipeline, systems: Mapping[str, System]) -> list[tuple[System, System]]:
    """The systems that are compared, as far as they are evaluated: each other with its first."""
    names = dict.fromkeys(
        (first, step.system or step.name)
        for step in pipeline.steps.values()
        for first in step.against
    )
    return [(systems[a], systems[b]) for a, b in names if {a, b} <= systems.keys()]


def list_differences(
    pipeline: Pipeline, systems: Mapping[str, System]
) -> dict[str, dict[str, str]]:
    """Describes how the passports of compared systems differ, of all their seeds."""
    sections, found = ("decoding", "backend", "code", "versions"), {}
    for pair in list_pairs(pipeline, systems):
        unlike = list_unlike(pair, *sections).items()
        changes = list_changes(*pair) | {name: " -> ".join(values) for name, values in unlike}
        found[" -> ".join(each.name for each in pair)] = {
            name: pipeline.shorten(change) for name, change in changes.items()
        }
    return found


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


def list_origins(pipeline: Pipeline, step: Step) -> Iterator[dict[str, Any]]:
    """Yields the corpora that a training has read: pairs, the weight in each stage, and origins."""
    start = read_last_start(pipeline.find_output(step.name))
    # Without stages all weights are 1.
    parts = [part for stage in start.get("stages", ()) for part in stage["corpora"]]
    for corpus in start["corpora"]["train"] if start else ():
        name = pipeline.shorten(corpus["name"])
        weights = [part["weight"] for part in parts if part["name"] == corpus["name"]]
        found = {"corpus": name, "pairs": corpus["pairs"], "weights": weights or [1.0]}
        for maker in pipeline.steps:
            ledger = pipeline.find_output(maker) / ORIGIN
            if f"{{{maker}}}" in name and ledger.exists():
                lines = ledger.read_text("utf-8").splitlines()
                counts = Counter(pipeline.shorten(line.split("\t")[0]) for line in lines)
                found["origin"] = dict(counts.most_common())
        yield found


def _format(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the sections of the report."""
    rows: list[tuple[object, ...]]
    header: tuple[str, ...]
    scores = content["systems"]
    if scores:
        measure = next(iter(scores.values()))["measure"]
        rows = [
            (
                name, format_score(each["value"]), format_interval(each["interval"]),
                format_score(each["measures"].get(_name_chrf(each["measure"]), math.nan)),
                len(each["seeds"]), each["engine"],
                each["tokens_per_second"] and round(each["tokens_per_second"]),
                show_bytes(each["bytes"], 3),
            )
            for name, each in scores.items()
        ]  # fmt: skip
        header = ("system", measure, "95%", "chrF", "seeds", "engine", "tokens/s", "size")
        yield "## Quality, speed and size"
        yield format_table(rows, header, "lrlrrlrr", markdown=True)
        definitions = dict.fromkeys(each["definition"] for each in scores.values())
        yield f"{measure}: {'; '.join(definitions)}. Intervals are over sentences."
    if content["verdicts"]:
        yield "## Verdicts"
        yield "\n".join(f"- {line}" for line in content["verdicts"])
    yield "## Cost"
    rows = [
        (
            name, each["program"], each["state"], f"{each['minutes']:.1f}",
            f"{each['core_minutes']:.1f}", each["starts"], show_bytes(each["bytes"], 3),
        )
        for name, each in content["steps"].items()
    ]  # fmt: skip
    total = sum(each["core_minutes"] for each in content["steps"].values())
    rows.append(("all", "", "", "", f"{total:.1f}", "", ""))
    header = ("step", "program", "state", "minutes", "core-minutes", "starts", "writes")
    yield format_table(rows, header, "lllrrrr", markdown=True)
    if content["training_text"]:
        yield "## Origin of the training text"
        rows = [
            (
                name, each["corpus"], each["pairs"],
                ", ".join(f"{weight:g}" for weight in each["weights"]),
                "; ".join(f"{n} of {origin}" for origin, n in each.get("origin", {}).items()),
            )
            for name, corpora in content["training_text"].items()
            for each in corpora
        ]  # fmt: skip
        header = ("training", "corpus", "pairs", "weight", "of")
        yield format_table(rows, header, "llrr", markdown=True)
    if content["differences"]:
        yield "## What else differs"
        yield "\n".join(
            f"- {pair}: {', '.join(f'{k} {v}' for k, v in each.items()) or 'nothing'}"
            for pair, each in content["differences"].items()
        )


def _name_chrf(measure: str) -> str:
    """The chrF of the text that a measure is of: lower-cased, or as it is."""
    return "chrf_lowercase" if measure.endswith("_lowercase") else "chrf"
