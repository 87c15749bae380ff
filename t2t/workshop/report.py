"""The report on systems that steps evaluate; sweeps and pipelines add what they alone have.

It is computed from the files of the steps, any number of times.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.files import read_saved_config
from t2t.evaluation.number_format import format_score
from t2t.evaluation.report_page import ReportSection
from t2t.evaluation.systems import System, in_words, list_changes, list_circumstances, read_system
from t2t.evaluation.verdict_table import COSTS, SystemCost, VerdictTable
from t2t.runtime.text_tables import Table, show_bytes
from t2t.training.provenance import read_last_start, read_ledger
from t2t.training.run_directory import read_metrics
from t2t.workshop.costs import sum_costs
from t2t.workshop.records import StepPlan
from t2t.workshop.steps import Step, Workshop

ORIGIN = "origin.tsv"  # beside the text of t2t.write_pairs: corpus and line of each pair
START_NOTE = (
    "Start: the share of the minutes of trainings and evaluations before their first batch, with "
    "imports and compilation; empty where it is unknown."
)
PERPLEXITY_NOTE = "Perplexity: exp of the mean over seeds of the nats per token."
_DOING = {"train": "training", "evaluate": "evaluating"}


def describe_workshop(
    workshop: Workshop,
    works: Mapping[str, StepPlan],
    table: VerdictTable,
    systems: Mapping[str, System],
    verdicts: Sequence[str],
    notes: Sequence[str],
    further: Sequence[ReportSection] = (),
) -> tuple[list[ReportSection], dict[str, Any]]:
    """Returns the sections that a report has on systems and steps, and what report.json has.

    Args:
        workshop: the steps.
        works: the plan of each.
        table: the verdicts.
        systems: those that have scores.
        verdicts: the verdicts in full.
        notes: the definitions of the measures of the table, and what else concerns the scores.
        further: sections of this kind of report alone.
    """
    trainings = [name for name, work in works.items() if work.step.program == "train"]
    texts = {name: [*list_corpora(workshop, name)] for name in trainings}
    unlike = list_differences(workshop, table, systems)
    measures = make_measure_table(table, systems)
    if any(name.startswith("perplexity") for name in measures.header):
        notes = [*notes, PERPLEXITY_NOTE]
    costs = {name: sum_costs(workshop, [work]) for name, work in works.items()}
    steps = {
        name: {
            "program": work.step.program,
            "state": "finished" if work.action == "none" else work.reason,
            **costs[name]._asdict(),
            "starts": len(work.record.starts),
            "bytes": work.record.bytes,
        }
        for name, work in works.items()
    }
    total = sum_costs(workshop, works.values())
    sections = [
        ReportSection("The verdicts in full", sentences=verdicts),
        ReportSection(
            "Scores and how they were made",
            [table.make_score_table(), measures],
            [*describe_scoring(systems), *notes],
        ),
        ReportSection(
            "Scores by kind",
            [each.make_table() for each in table.by_kind],
            [*dict.fromkeys(text for each in table.by_kind for text in each.describe())],
        ),
        ReportSection(
            "What else differs",
            sentences=[f"{pair}: {in_words(each)}" for pair, each in unlike.items() if each],
        ),
        *further,
        ReportSection(
            "Cost of each step",
            [make_cost_table(steps, costs, total)],
            [START_NOTE] * (total.start is not None),
        ),
        ReportSection(
            "Origin of the trainings",
            [make_corpus_table(texts)],
            describe_starts(map(workshop.find_output, trainings)),
        ),
    ]
    kinds = [line for each in table.by_kind for line in each.record()]
    content = {"steps": steps, "training_text": texts, "differences": unlike, "kinds": kinds}
    return sections, content


def read_seeds(
    workshop: Workshop,
    works: Mapping[str, StepPlan],
    evaluations: Sequence[Step],
    may_differ: Sequence[str],
) -> System | None:
    """Reads the evaluations of a system, as far as they are finished; None if none is.

    Raises:
        EvaluationError: as `read_system`.
    """
    finished = [each.name for each in evaluations if works[each.name].action == "none"]
    outputs = ",".join(str(workshop.find_output(name)) for name in finished)
    name = evaluations[0].system or evaluations[0].name
    return read_system(outputs, "", "", may_differ, name=name) if finished else None


def list_needed(works: Mapping[str, StepPlan], names: Sequence[str]) -> list[str]:
    """Returns the steps of these names, and all that they need, nearest first."""
    needed = [*names]
    for name in needed:
        needed += [each for each in works[name].step.needs if each not in needed]
    return needed


def list_states(
    workshop: Workshop, works: Mapping[str, StepPlan], evaluations: Sequence[Step]
) -> list[str]:
    """Describes the different states of the evaluations that are not finished."""
    waiting = [step for step in evaluations if works[step.name].action != "none"]
    return [*dict.fromkeys(_find_state(workshop, works, step.name) for step in waiting)]


def _find_state(workshop: Workshop, works: Mapping[str, StepPlan], name: str) -> str:
    """Says why an evaluation is not finished: because of it, or of what it needs."""
    waiting = [each for each in list_needed(works, [name]) if works[each].action != "none"]
    for work in (works[each] for each in waiting):
        if reason := work.record.failure:
            return f"{_DOING.get(work.step.program, work.step.name)} failed: {reason}"
    for work in (works[each] for each in waiting):
        if work.is_aside:
            return f"changed: {work.reason}"
        run = workshop.find_output(work.step.name)
        if work.step.program == "train" and (metrics := read_metrics(run)):
            last = read_saved_config(run / "config.json").training.steps
            return f"stopped after step {metrics[-1]['step']} of {last}"
    if works[name].record.starts:
        return workshop.shorten(works[name].reason)
    return "not started"


def average(system: System, measure: str) -> float:
    """Returns the mean of a measure over seeds; of a perplexity exp of the mean of its logarithm.

    It is NaN if a seed has no finite score by it.
    """
    values = [each.value(measure) for each in system.evaluations]
    mean = statistics.geometric_mean if measure.startswith("perplexity") else statistics.mean
    return mean(values)


def make_measure_table(table: VerdictTable, systems: Mapping[str, System]) -> Table:
    """Makes the table of the scores by all other measures, and of the engines if they differ."""
    has_one = not any(line.measure for line in table.lines)
    names = dict.fromkeys(
        name
        for system in systems.values()
        for each in system.evaluations
        for name in each.result["measures"]
        if not (has_one and name == table.measure)
    )
    engines = {name: describe_engine(system) for name, system in systems.items()}
    columns = {name: [_format_average(each, name) for each in systems.values()] for name in names}
    texts = {table.noun: [*systems]}
    if len({*engines.values()}) > 1:
        texts["engine"] = [*engines.values()]
    rows = [*zip(*texts.values(), *columns.values(), strict=True)]
    align = "l" * len(texts) + "r" * len(columns)
    return Table([*texts, *columns], rows if len(align) > 1 else [], align)


def describe_engine(system: System) -> str:
    """Names what has translated, such as "ctranslate2 int8"."""
    backend = system.passport.backend
    return " ".join(filter(None, (backend.get("name"), backend.get("compute_type"))))


def _format_average(system: System, measure: str) -> str:
    if all(measure in each.result["measures"] for each in system.evaluations):
        return format_score(average(system, measure))
    return "not finite" if measure == "perplexity" and system.passport.is_of_run else ""


def describe_scoring(systems: Mapping[str, System]) -> Iterator[str]:
    """Says on what systems were scored, when, and by how many versions of the code."""
    tests: dict[str, dict[str, dict[str, None]]] = {}  # names of systems by test set and checkpoint
    for name, system in systems.items():
        for each in system.evaluations:
            split, count = each.passport.data["split"], each.result["num_sentences"]
            test = tests.setdefault(f"the {split} split, {count} sentences", {})
            origin = "by another program"
            if each.passport.is_of_run:
                origin = f"checkpoint {each.passport.checkpoint}"
            test.setdefault(origin, {})[name] = None
    for where, origins in tests.items():
        parts = [
            origin + f" ({', '.join(names)})" * (len(origins) > 1 or len(tests) > 1)
            for origin, names in origins.items()
        ]
        yield f"Scored on {where}: {', '.join(parts)}."
    evaluations = [each for system in systems.values() for each in system.evaluations]
    if not evaluations:
        return
    dates = sorted(each.date[:10] for each in evaluations)
    codes: dict[str, set[str]] = {}  # of t2t, and of the same plugins
    for passport in (each.passport for each in evaluations):
        codes.setdefault("t2t", set()).add(str(passport.code.get("t2t")))
        codes.setdefault(str(passport.config.get("plugins")), set()).add(str(passport.code))
    count = max(map(len, codes.values()))
    versions = f" by {count} versions of the code" * (count > 1)
    yield f"Scores were saved from {dates[0]} to {dates[-1]}{versions}."


def list_differences(
    workshop: Workshop, table: VerdictTable, systems: Mapping[str, System]
) -> dict[str, dict[str, str]]:
    """Describes how the passports of compared systems differ, of all their seeds.

    Their configs are left out if the table says what systems change.
    """
    found = {}
    with_config = not any(line.changes for line in table.lines)
    for names in dict.fromkeys((line.against, line.system) for line in table.lines):
        if not {*names} <= systems.keys():
            continue
        pair = [systems[name] for name in names]
        unlike = list_circumstances(pair).items()
        changes = list_changes(*pair) if with_config else {}
        changes |= {name: " -> ".join(values) for name, values in unlike}
        found[" -> ".join(names)] = {
            name: workshop.shorten(change) for name, change in changes.items()
        }
    return found


def make_cost_table(
    steps: Mapping[str, Mapping[str, Any]], costs: Mapping[str, SystemCost], total: SystemCost
) -> Table:
    """Makes the table of the cost and state of each step, and of all together."""
    shown, together = {name: cost.format() for name, cost in costs.items()}, total.format()
    columns = [name for name in COSTS if together[name]]
    rows = [
        [
            name, step["program"], step["state"], *(shown[name][column] for column in columns),
            str(step["starts"]), show_bytes(step["bytes"], 3),
        ]
        for name, step in steps.items()
    ]  # fmt: skip
    rows.append(["all", "", "", *(together[column] for column in columns), "", ""])
    header = ("step", "program", "state", *columns, "starts", "writes")
    return Table(header, rows, "lll" + "r" * (len(columns) + 2))


def list_corpora(workshop: Workshop, training: str) -> Iterator[dict[str, Any]]:
    """Yields the corpora that a training has read: pairs, the weight in each stage, and origins."""
    start = read_last_start(workshop.find_output(training))
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


def make_corpus_table(texts: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Makes the table of the corpora that trainings have read; equal ones share their lines."""
    found: dict[tuple[str, ...], list[str]] = {}  # the trainings that have read a corpus
    for name, corpora in texts.items():
        for each in corpora:
            weights = ", ".join(f"{weight:g}" for weight in each["weights"])
            origin = "; ".join(f"{n} of {where}" for where, n in each.get("origin", {}).items())
            cells = each["corpus"], str(each["pairs"]), weights, origin
            found.setdefault(cells, []).append(name)
    begun = sum(map(bool, texts.values()))
    rows = [
        ("all" if len(names) == begun > 1 else ", ".join(names), *cells)
        for cells, names in found.items()
    ]
    return Table(("training", "corpus", "pairs", "weight", "of"), rows, "llrrl")


def describe_starts(runs: Iterable[Path]) -> list[str]:
    """Describes date, code, packages and devices of trainings; empty if none has started."""
    starts = [start for run in dict.fromkeys(runs) for start in read_ledger(run)]
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
    codes = dict.fromkeys(start["code"][:10] for start in uncommitted)
    return [
        f"Runs from {begun[:10]} on, revision {', '.join(revisions)}"
        f"{' with changes that were not committed' if changed else ''}"
        f"{', code ' * bool(codes)}{', '.join(codes)}, {', '.join(packages)}, "
        f"on {' and '.join(devices)} per run."
    ]
