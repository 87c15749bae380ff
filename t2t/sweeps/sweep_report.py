"""The report of a sweep: a table of each row's cost, score and verdict, with plots."""

import base64
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2t.config.field_types import Role
from t2t.config.files import differences, overrides
from t2t.config.measures import PREDICTION_MEASURES
from t2t.config.variants import find_role
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.forest import ForestRow, format_forest, list_rows
from t2t.evaluation.measure import format_interval, format_score
from t2t.evaluation.plots import draw_by_cost, draw_by_step, draw_forest, write_figure
from t2t.evaluation.significance import Judgement, judge
from t2t.evaluation.systems import STEP, System, check_comparable, read_statistics, read_system
from t2t.evaluation.verdict import (
    describe_all,
    describe_losses,
    judge_log_probs,
    list_useless,
    warn_of_losses,
)
from t2t.ops.flops import count_parameters, count_sequential_operations
from t2t.runtime.html_templates import render_page
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import write_file
from t2t.sweeps.sweep_rows import BASE, EVALUATION, Paper, SweepRun
from t2t.training.provenance import read_ledger
from t2t.training.run_directory import read_curve, read_metrics
from t2t.training.stop_request import read_stop_request
from t2t.training.total_flops import LENGTH, count_flops
from t2t.workshop.inputs import OF_MACHINES

PAPER_BASE_SIZE = 65  # million parameters of the paper's base model
PAPER_NOTE = (
    "Paper: perplexity and BLEU on newstest2013 as the paper measures them, and the difference in "
    "parameters from base. Compare differences from base, not values."
)
VERDICT_NOTE = (
    "Verdicts compare each row with base, with Holm's correction for several comparisons. Brackets "
    "are 95% intervals over sentences. Perplexity: {perplexity}."
)
MEAN_NATS = "exp of the mean over seeds of the nats per sub-word"
MEAN_PERPLEXITY = "the mean over seeds"  # where rows are compared by it, as by any measure
NOTES = (
    "FLOPs: of the whole training, or up to a requested stop, by formula, with batches of "
    f"data.batch_tokens filled with sentences of {LENGTH} sub-words.",
    f"Sequential: operations of the forward pass that cannot run in parallel, for {LENGTH} "
    "sub-words on either side (table 1 of the paper).",
    "Tokens/s: target sub-words per second, median over the training, beside any other programs on "
    "the machine.",
)
_TEMPLATE = Path(__file__).with_suffix(".html")


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


def write_report(workdir: Path, runs: Sequence[SweepRun], measure: str) -> str:
    """Writes report.md, report.html and the plots; returns the table and the report's paths.

    Raises:
        EvaluationError: evaluations are damaged or not comparable.
    """
    names = sorted(dict.fromkeys(run.row.name for run in runs), key=lambda name: name != BASE)
    outcomes = {name: read_outcome([run for run in runs if run.row.name == name]) for name in names}
    systems = {
        name: dataclasses.replace(outcome.system, name=name)
        for name, outcome in outcomes.items()
        if outcome.system
    }
    losses = describe_losses([*systems.values()]) if BASE in systems else {}
    by_measure, by_loss, sentences, forest = judge_rows(systems, measure)
    useless = list_useless(by_measure, measure)
    cells = []
    for name, outcome in outcomes.items():
        verdict = describe_verdict(by_measure, name)
        if verdict and name in useless:
            verdict.append("neither row translates yet")
        by_log_prob = describe_verdict(by_loss, name)
        if name in losses:
            # On text alone the measure is of log-probabilities itself.
            judged = verdict if measure in PREDICTION_MEASURES else by_log_prob
            judged += ["no neutral judge: other loss"] * bool(judged)
        cells.append(
            {"row": name}
            | make_cost_cells(outcome, outcomes.get(BASE))
            | {
                measure: _format_score(by_measure, name),
                "paper": _format_paper(outcome.runs[0].row.paper),
                "verdict": "; ".join([*verdict, *find_states(outcome.runs)]),
                "by log-probability": "; ".join(by_log_prob),
            }
        )
    is_in_paper = any(run.row.paper for run in runs)
    left_out = {"by log-probability"} if measure in PREDICTION_MEASURES else set()
    left_out |= set() if is_in_paper else {"paper"}
    header = [name for name in cells[0] if name not in left_out]
    rows = [[row[name] for name in header] for row in cells]
    mean = MEAN_PERPLEXITY if measure == "perplexity" else MEAN_NATS
    notes = [
        *describe_scoring(systems, measure),
        VERDICT_NOTE.format(perplexity=mean),
        *NOTES,
        *([PAPER_NOTE] if is_in_paper else []),
        *describe_vocabularies(outcomes),
        *describe_provenance(runs),
    ]
    plots = draw(workdir, runs, outcomes, by_measure, measure)
    if forest:
        title = f"Differences from {BASE} by each measure"
        plots[title] = workdir / "forest.svg"
        for path in (plots[title], workdir / "forest.png"):
            write_figure(draw_forest(forest, BASE), path)
    title, table = f"Sweep {workdir.resolve().name}", format_table(rows, header, markdown=True)
    parts = [
        f"# {title}",
        table,
        *("\n".join(f"- {line}" for line in lines) for lines in (sentences, notes) if lines),
        *(f"![{name}]({path.name})" for name, path in plots.items()),
    ]
    images = {name: base64.b64encode(path.read_bytes()).decode() for name, path in plots.items()}
    page = render_page(
        _TEMPLATE, title=title, header=header, rows=rows, lists=[sentences, notes], images=images
    )
    paths = workdir / "report.md", workdir / "report.html"
    write_file(paths[0], "\n\n".join(parts) + "\n")
    write_file(paths[1], page)
    text = [table, "", format_forest(forest, BASE), ""] if forest else [table, ""]
    return "\n".join([*text, *map(str, paths)])


def read_outcome(runs: Sequence[SweepRun]) -> RowOutcome:
    """Reads the results of a row from the directories of its runs."""
    finished = [run for run in runs if run.score.exists()]
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


def find_states(runs: Sequence[SweepRun]) -> list[str]:
    """Describes the different states of the runs that have no evaluation yet."""
    states = []
    for run in runs:
        if run.score.exists():
            continue
        if run.failure.exists():
            states.append(run.failure.read_text("utf-8").strip())
        elif metrics := read_metrics(run.workdir):
            steps = run.config.training.steps
            states.append(f"stopped after step {metrics[-1]['step']} of {steps}")
        else:
            states.append("not started")
    return [*dict.fromkeys(states)]


def judge_rows(
    systems: Mapping[str, System], measure_name: str
) -> tuple[Judgement, Judgement, list[str], list[ForestRow]]:
    """Compares the rows with base, which comes first; without base there are no verdicts.

    Returns the judgement by the measure, the one by the references' log-probability, sentences that
    describe both, and the differences by each measure that all rows have.
    """
    nothing = Judgement({}, {})
    if not systems:
        return nothing, nothing, [], []
    named = [*systems.values()]
    measure = named[0].evaluations[0].open_measure(measure_name)
    test_set = check_comparable(named)
    by_measure = judge(read_statistics(named, measure, test_set), measure, test_set)
    if BASE not in systems:
        no_verdicts = ["No verdicts: base has no evaluation."]
        return Judgement(by_measure.scores, {}), nothing, no_verdicts, []
    sentences = describe_all(by_measure, measure_name)
    by_loss = None
    if named[0].passport.objective:  # the measure is that of the same nats
        sentences += warn_of_losses(named)
    else:
        by_loss, described = judge_log_probs(named, test_set)
        sentences += described
    forest, left_out = list_rows(named, test_set, measure, by_measure, by_loss)
    return by_measure, by_loss or nothing, [*sentences, *left_out], forest


def make_cost_cells(outcome: RowOutcome, base: RowOutcome | None) -> dict[str, str]:
    """Returns the cells of a row that need no comparison of translations."""
    config = outcome.runs[0].config
    count, before = outcome.parameters, base.parameters if base else None
    changes = differences(base.runs[0].config, config) if base else []
    parameters = "" if count is None else f"{count / 1e6:.2f}M"
    if count is not None and before is not None and count != before:
        parameters += f" ({(count - before) / 1e6:+.2f}M)"
    speeds = [
        speed
        for run in outcome.runs
        for _, speed in read_curve(run.workdir, "train/tokens_per_second")
    ]
    return {
        "changes": ", ".join(
            str(change).removeprefix("model.")
            for change in changes
            if find_role(change.name) is not Role.SEED
        ),
        "parameters": parameters,
        "FLOPs": f"{outcome.flops:.2e}" if outcome.flops else "",
        "sequential": str(count_sequential_operations(config.model, LENGTH, LENGTH)),
        "tokens/s": f"{statistics.median(speeds):.0f}" if speeds else "",
        "perplexity": _format_perplexity(outcome.system),
    }


def _format_perplexity(system: System | None) -> str:
    """Formats exp of the mean nats per sub-word over the runs."""
    if system is None:
        return ""
    measures = [each.result["measures"] for each in system.evaluations]
    if not all("perplexity" in each for each in measures):
        return "not finite"
    return f"{statistics.geometric_mean(each['perplexity']['value'] for each in measures):.2f}"


def _format_score(judgement: Judgement, name: str) -> str:
    if name not in judgement.scores:
        return ""
    score = judgement.scores[name]
    seeds = f", {len(score.seeds)} seeds" if len(score.seeds) > 1 else ""
    return f"{format_score(score.value)} {format_interval(score.over_sentences)}{seeds}"


def _format_paper(paper: Paper | None) -> str:
    if paper is None:
        return ""
    change = f", {paper.parameters - PAPER_BASE_SIZE:+d}M" if paper.parameters else ""
    return f"{paper.perplexity:.2f}, {paper.bleu:.1f}{change}"


def describe_verdict(judgement: Judgement, name: str) -> list[str]:
    """Returns the verdict on a row in a list, which is empty if there is none."""
    if name not in judgement.comparisons:
        return []
    comparison = judgement.comparisons[name]
    if math.isnan(comparison.p_value):
        return ["no verdict"]
    word = "better" if comparison.better else "worse"
    return [word if comparison.distinguishable else "not distinguishable"]


def describe_scoring(systems: Mapping[str, System], measure: str) -> list[str]:
    """Describes how all systems were scored; empty without systems."""
    if not systems:
        return []
    system = next(iter(systems.values()))
    first = system.evaluations[0]
    definition = system.evaluations[0].open_measure(measure).definition
    names: dict[str, list[str]] = {}  # of the rows with a seed that was scored at a checkpoint
    for name, system in systems.items():
        for checkpoint in dict.fromkeys(each.passport.checkpoint for each in system.evaluations):
            names.setdefault(checkpoint, []).append(name)
    checkpoint, *others = names
    own = "".join(f" ({other}: {', '.join(names[other])})" for other in others)
    evaluations = [each for system in systems.values() for each in system.evaluations]
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
    judgement: Judgement,
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
        name: (flops, score)
        for name, score in judgement.scores.items()
        if (flops := outcomes[name].flops)
    }
    if costs:
        title = f"{measure} against training FLOPs"
        plots[title] = workdir / "cost.svg"
        write_figure(draw_by_cost(costs, measure), plots[title])
    return plots
