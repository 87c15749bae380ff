"""The report of made-up evaluations."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from t2t.config.fields import Config, DataConfig, ModelConfig, TokenizerConfig, TrainingConfig
from t2t.config.files import overrides, save_config
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import train_vocabulary
from t2t.evaluation.measure import Score
from t2t.evaluation.published import Published
from t2t.ops.flops import train_flops
from t2t.sweeps import sweep_report
from t2t.sweeps.sweep_report import read_outcome, write_report
from t2t.sweeps.sweep_rows import Row, SweepRun, make_runs
from t2t.sweeps.sweep_steps import EvaluationProtocol, SweepPlan
from t2t.sweeps.tuning import list_trials
from t2t.training.stop_request import record_stop, request_stop
from t2t.training.total_flops import count_flops
from t2t.workshop.records import Record, StepPlan, plan_steps
from t2t.workshop.report import average
from t2t.workshop.steps import Workshop
from tests.data.small_corpus import PAIRS
from tests.evaluation.saved_evaluations import REFERENCES, save, save_predictions, spoil
from tests.workshop.short_programs import STARTED, ShortPrograms
from tests.workshop.short_programs import run as run_steps


def publish(perplexity: float, bleu: float, parameters: int | None = None) -> Published:
    scores = {"perplexity": (perplexity,), "bleu": (bleu,)}
    return Published("a paper", scores, parameters=parameters, is_comparable=False)


ROWS = [
    Row("base", published=publish(4.92, 25.8, 65), seeds=(0, 1)),
    Row("one_head", {"model.num_heads": 1}, publish(5.29, 24.9)),
    Row("near", {"model.d_k": 32, "training.label_smoothing": 0.0}, publish(5.01, 25.4, 60)),
    Row("broken", {"model.residual": False}),
    Row("later", {"model.d_ff": 8}),
]


@pytest.fixture
def runs(tmp_path: Path) -> list[SweepRun]:
    return make_runs(Config(tokenizer=TokenizerConfig(vocab_size=400)), ROWS, tmp_path)[0]


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report without its plots, which take seconds."""

    monkeypatch.setattr(sweep_report, "draw_forest", lambda *_: None)
    monkeypatch.setattr(sweep_report, "write_figure", lambda _, path: path.write_bytes(b""))
    monkeypatch.setattr(sweep_report, "draw", lambda *_: {})


def write(workdir: Path, runs: list[SweepRun]) -> None:
    """Scores of the first rows, a failure, curves, one vocabulary."""
    hypotheses = {"base-seed0": spoil(8), "base-seed1": spoil(9), "one_head-seed0": spoil(2)}
    hypotheses["near-seed0"] = spoil(9, REFERENCES)
    for run in runs:
        if run.name in hypotheses:
            config = overrides(run.config)
            nats = 3.0 if run.row.name == "one_head" else 0.7 + run.config.seed / 100
            folder, lines = workdir / run.name, hypotheses[run.name]
            save(folder, lines, name="sweep", config=config, nats=nats)
            metrics = [
                {"step": step, "train/tokens_per_second": 1000.0 * step} for step in (1, 2, 9)
            ] + [{"step": 9, "validation/loss": 2.5}, {"step": 10, "validation/loss": None}]
            text = "".join(json.dumps(line) + "\n" for line in metrics)
            (workdir / run.name / "metrics.jsonl").write_text(text)
    vocabulary = [ListCorpus("small", PAIRS)], TokenizerConfig(vocab_size=400)
    for name in ("base-seed0", "near-seed0"):
        train_vocabulary(*vocabulary, workdir / name / "vocab")


def read_table(text: str, number: int = 0) -> dict[str, list[str]]:
    """The cells of a table by their row's name, and the header; without those for p-values."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in tables[number].splitlines()]
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in cells}


PLAN = SweepPlan("recipe.py", {}, EvaluationProtocol("test", "last"))


def plan(runs: list[SweepRun]) -> dict[str, StepPlan]:
    """Each training took 30 seconds on two cores; what has a score is finished, one has failed."""
    works = {}
    for run, job in zip(runs, PLAN.list_jobs(runs).values(), strict=True):
        for step in job.steps:
            start = {"begun": "2026-01-01T00:00:00.000Z", "seconds": 30.0, "core_seconds": 60.0,
                     "gpus": 0, "status": 0}  # fmt: skip
            record = Record("", {}, starts=[start] * (step.program == "train"))
            record.failure = "a | <b>" if step.name == "broken-seed0" else ""
            action = "none" if run.score.exists() else "run"
            works[step.name] = StepPlan(step, action, "not begun", record)
    return works


def open_workshop(runs: list[SweepRun]) -> Workshop:
    steps = [step for job in PLAN.list_jobs(runs).values() for step in job.steps]
    return Workshop(steps, runs[0].sweep)


@pytest.mark.usefixtures("no_plots")
def test_rows_are_judged_by_each_further_task_in_a_section_of_its_own(tmp_path: Path) -> None:
    """The verdict by the main task is another one; one run has no scores of the further task."""
    rows = [Row("base"), Row("one_head", {"model.num_heads": 1}), Row("later", {"model.d_ff": 8})]
    data = DataConfig(directions=("en-de", "de-en"))
    config = Config(tokenizer=TokenizerConfig(vocab_size=400), data=data)
    runs = make_runs(config, rows, tmp_path)[0]
    protocol = EvaluationProtocol("test", "last", task="en-de", others={"de-en": "bleu"})
    own = SweepPlan("recipe.py", {}, protocol)
    steps = [step for job in own.list_jobs(runs).values() for step in job.steps]
    for run in runs:
        save(tmp_path / run.name, spoil(8), name="sweep", config=overrides(run.config))
    for run, lines in zip(runs, (spoil(8), spoil(2)), strict=False):
        save(tmp_path / run.name, lines, name="sweep-de-en", config=overrides(run.config))
    missing = "later-seed0-de-en-scores"
    works = {
        each.name: StepPlan(
            each, "run" if each.name == missing else "none", "no scores", Record("", {})
        )
        for each in steps
    }
    assert works[missing].step.flags["task"] == "de-en"
    shown = write_report(Workshop(steps, tmp_path), runs, "bleu", own, works)
    assert "\n\nTask de-en: one_head is worse than base" in shown
    text = (tmp_path / "report.md").read_text()
    assert "- All scores are of the task en-de, except in sections on de-en." in text
    section = text.partition("## Task de-en\n")[2].partition("\n## ")[0]
    further = read_table(section)
    assert further["one_head"][1].startswith("worse: -")
    assert "not started" in further["later"]
    assert "one_head is worse than base" in section
    assert not read_table(text)["one_head"][2].startswith("worse")
    content = json.loads((tmp_path / "report.json").read_text())
    assert [line["name"] for line in content["tasks"]["de-en"]] == ["base", "one_head", "later"]


@pytest.mark.parametrize("file", ["sweep.json", "sweep.txt"])
@pytest.mark.usefixtures("no_plots")
def test_a_damaged_evaluation_is_named_by_the_report_and_made_again(
    tmp_path: Path, file: str
) -> None:
    rows = [Row("base"), Row("one_head", {"model.num_heads": 1})]
    runs = make_runs(Config(tokenizer=TokenizerConfig(vocab_size=400)), rows, tmp_path)[0]
    own = SweepPlan("configs/quickstart.py", {}, PLAN.protocol)
    steps = [step for job in own.list_jobs(runs).values() for step in job.steps]
    run_steps(steps, tmp_path)
    for each in runs:
        save(each.workdir, spoil(8), name="sweep", config=overrides(each.config))
    assert run_steps(steps, tmp_path) == ("", {})
    damaged = tmp_path / "one_head-seed0" / "evaluations" / file
    damaged.write_bytes(damaged.read_bytes()[:100])
    workshop = ShortPrograms(steps, tmp_path)
    write_report(workshop, runs, "bleu", own, plan_steps(workshop))
    cells = read_table((tmp_path / "report.md").read_text())
    assert cells["base"][1]
    assert re.search(r"\{one_head-seed0-scores\}.* evaluate again", " ".join(cells["one_head"]))
    assert run_steps(steps, tmp_path) == ("one_head-seed0-scores ", {})
    assert run_steps(steps, tmp_path) == ("", {})


def report(runs: list[SweepRun], measure: str = "bleu") -> str:
    return write_report(open_workshop(runs), runs, measure, PLAN, plan(runs))


def test_report_begins_with_what_was_found_and_one_table(
    tmp_path: Path, runs: list[SweepRun]
) -> None:
    write(tmp_path, runs)
    output = report(runs)
    text = (tmp_path / "report.md").read_text()
    opening = text.splitlines()[2]
    assert opening.startswith("Of 2 comparisons by bleu, none is better than base, 1 is worse (one")
    assert "the choice of the sentences and of the seeds (1 to 2 each), and p-values and" in opening
    assert opening.endswith(" 2 of 5 rows have no score yet.")
    table = read_table(text)
    assert table["row"] == [
        "what changes", "bleu", "difference from base, 95% interval, corrected", "p, corrected",
        "by log-probability, nats per sub-word (less is better)", "p, corrected", "minutes",
        "core-minutes",
    ]  # fmt: skip
    assert table["base"][1].endswith(", 2 seeds")
    assert table["base"][2:] == ["", "", "", "", "1.0", "2.0"]
    one_head, near = table["one_head"], table["near"]
    assert one_head[0] == "num_heads: 8 -> 1"
    assert re.fullmatch(r"worse: (-\d\d\.\d\d) \[-\d\d\.\d\d, -\d\d\.\d\d\]", one_head[2])
    assert one_head[4].startswith("worse: +2.30 [+2.")
    assert near[2].startswith("not distinguishable: ")
    assert near[4].startswith("not distinguishable: ")
    assert near[4].endswith("]; no neutral judge: other loss")
    assert table["broken"][2] == r"training failed: a \| <b>"
    assert table["later"][2] == "not started"
    assert output.startswith("Of 2 comparisons by bleu")
    lines = [line for line in output.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 100
    assert str(tmp_path / "report.html") in output


def test_what_the_verdicts_rest_on_is_folded(tmp_path: Path, runs: list[SweepRun]) -> None:
    write(tmp_path, runs)
    near = tmp_path / "near-seed0" / "evaluations" / "sweep.json"
    scores = json.loads(near.read_text())
    scores["passport"]["decoding"]["alpha"] = 0.7
    near.write_text(json.dumps(scores))
    report(runs)
    text = (tmp_path / "report.md").read_text()
    assert "## What else differs\n\n- base -> near: decoding.alpha 0.6 -> 0.7" in text
    measures, sizes, steps = (read_table(text, number) for number in (2, 4, 5))
    assert (measures["row"], measures["one_head"][1]) == (
        ["bleu_lowercase", "exact_match"],
        "50.00",
    )
    assert steps["broken-seed0"][:4] == ["train", "not begun", "0.5", "1.0"]
    assert steps["all"][2:4] == ["3.0", "6.0"]
    assert sizes["base"][2:4] == ["30", "2000"]
    assert re.search(r"^\| base +\| bleu +\| \d\d\.\d\d, 2 seeds +\| 25.80 +\| +\|$", text, re.M)
    assert "(-4.72M)" in sizes["near"][0]
    assert re.search(r"^\| near +\| parameters \| \d+\.\d+M +\| 60M \(-5M\)", text, re.M)
    assert "differs from that of base (near: training.label_smoothing 0.1 -> 0.0)" in text
    assert "- one_head is worse than base: " in text
    assert text.count("These 2 comparisons are judged together") == 2
    assert "3.01 nats per sub-word against 0.7161, +2.30 (" in text
    assert "- Scored on the test split, 48 sentences: checkpoint 100.\n" in text
    assert "- bleu: nrefs:1" in text
    assert "Scores were saved from 2026-01-01 to 2026-01-01." in text
    assert text.count(".svg)") == 3
    assert (tmp_path / "forest.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()  # which needs no other file
    assert "training failed: a | &lt;b&gt;" in page
    assert (page.count('src="data:image/svg+xml;base64,'), "http" in page) == (3, False)
    shown, folded = page.split("<details>", 1)
    assert shown.count("<tr>") == 1 + len(ROWS)
    assert ("standard error" in shown, "standard error" in folded) == (False, True)
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["opening"] in shown
    row = content["table"][1]
    assert (row["name"], row["by_measure"]["verdict"], row["against"]) == (
        "one_head",
        "worse",
        "base",
    )
    cost = {"minutes": 0.5, "core_minutes": 1.0, "device_minutes": 0.0, "start": None}
    assert row["cost"] == cost


@pytest.mark.usefixtures("no_plots")
def test_rows_on_text_alone_are_compared_by_perplexity(tmp_path: Path) -> None:
    data = DataConfig(objective="lm", batch_tokens=2500)
    base = Config(model=ModelConfig(kind="decoder_only"), data=data)
    change = {"model.d_model": 256, "training.label_smoothing": 0.2}
    runs, _ = make_runs(base, [Row("base", seeds=(0, 1)), Row("small", change)], tmp_path)
    for run in runs:
        nats = 3.0 if run.row.name == "small" else 2.0 + run.config.seed / 100
        config = overrides(run.config)
        save_predictions(tmp_path / run.name, nats, name="sweep", config=config)
    assert "accuracy" in report(runs, "perplexity")
    text = (tmp_path / "report.md").read_text()
    assert "log-probability" not in text.split("\n## ")[0]
    small = read_table(text)["small"]
    assert small[1].startswith("20.31")
    assert small[2].startswith("worse: +12.8")
    assert small[2].endswith("]; no neutral judge: other loss")
    assert "small: training.label_smoothing 0.1 -> 0.2" in text
    assert "small is worse than base: 20.31 perplexity against 7.5" in text
    assert "perplexity" not in read_table(text, 2)["row"], "one perplexity, the mean over seeds"
    # 100 texts of 25 sub-words, each after a lone EOS.
    flops = train_flops(base.model, 400, np.full(100, 1), np.full(100, 25))
    assert count_flops(runs[0].config, 400) == 100_000 * flops


def test_flops_of_a_row_are_of_what_its_runs_have_read(tmp_path: Path) -> None:
    """Tasks by their sub-words in the ledger, and steps up to the stop that was asked for."""
    fill = "fill: objective=span_corruption prefix=<fill>"
    config = Config(
        data=DataConfig(mixture=("translate: prefix=<2de>", fill), batch_tokens=2500),
        tokenizer=TokenizerConfig(vocab_size=400),
        training=TrainingConfig(steps=100, warmup_steps=10),
    )
    runs = make_runs(config, [Row("base", seeds=(0, 1))], tmp_path)[0]
    shares = {"translate": 0.75, "fill": 0.25}
    corpora = [{"task": name, "subwords": share} for name, share in shares.items()]
    ledger = {"stages": [{"steps": [1, 40], "corpora": [{"task": "fill", "subwords": 1.0}]},
                         {"steps": [41, None], "corpora": corpora}]}  # fmt: skip
    for run in runs:
        train_vocabulary([ListCorpus("small", PAIRS)], config.tokenizer, run.workdir / "vocab")
        (run.workdir / "ledger.jsonl").write_text(json.dumps(ledger) + "\n")
    request_stop(runs[1].workdir, "too slow")
    record_stop(runs[1].workdir, 60)
    translate, fill_in = (
        train_flops(config.model, 400, np.full(rows, src), np.full(rows, tgt))
        for rows, src, tgt in ((100, 25, 25), (113, 22, 6))
    )
    batches = np.array([0.75 / (100 * 50), 0.25 / (113 * 28)])
    mean = batches @ [translate, fill_in] / batches.sum()
    outcome = read_outcome(open_workshop(runs), runs, plan(runs))
    assert outcome.flops == pytest.approx(40 * fill_in + (60 + 20) / 2 * mean)


@pytest.mark.usefixtures("no_plots")
def test_verdict_on_rows_that_translate_nothing_says_so(tmp_path: Path) -> None:
    rows = [Row("base"), Row("one_head", {"model.num_heads": 1})]
    runs = make_runs(Config(tokenizer=TokenizerConfig(vocab_size=400)), rows, tmp_path)[0]
    for run in runs:
        config, lines = overrides(run.config), ["nothing of it"] * len(spoil(1))
        save(tmp_path / run.name, lines, name="sweep", config=config)
    output = report(runs)
    assert output.startswith("Nothing is found: base and one_head have less than 1 BLEU, so they ")
    text = (tmp_path / "report.md").read_text()
    assert read_table(text)["one_head"][2].endswith("; neither row translates yet")
    assert "base and one_head have less than 1 BLEU, so they translate nothing yet" in text


def test_figures_in_other_units_are_left_out_of_the_plots_and_named(tmp_path: Path) -> None:
    runs = make_runs(
        Config(tokenizer=TokenizerConfig(lowercase=True)),
        [Row("base"), Row("cased", {"tokenizer.lowercase": False})],
        tmp_path,
    )[0]
    for run in runs:
        config = TokenizerConfig(vocab_size=400, lowercase=run.row.name == "base")
        train_vocabulary([ListCorpus("small", PAIRS)], config, tmp_path / run.name / "vocab")
        save_config(run.config, tmp_path / run.name / "config.json")
        line = {"step": 9, "validation/loss": 2.5, "validation/bleu": 1.0}
        (tmp_path / run.name / "metrics.jsonl").write_text(json.dumps(line))
    report(runs, "bleu_lowercase")
    text = (tmp_path / "report.md").read_text()
    assert "perplexities of cased are per sub-word of another" in text
    assert read_table(text)["base"][1] == "stopped after step 9 of 100000"
    for plot in ("loss.svg", "bleu.svg"):
        drawn = (tmp_path / plot).read_text()
        assert "base-seed0" in drawn
        assert "cased-seed0" not in drawn


def test_perplexity_of_a_row_is_that_of_the_mean_nats(tmp_path: Path, runs: list[SweepRun]) -> None:
    write(tmp_path, runs)
    for name, perplexity in (("base-seed0", 4.0), ("base-seed1", 9.0)):
        path = tmp_path / name / "evaluations" / "sweep.json"
        result = json.loads(path.read_text())
        result["measures"]["perplexity"] = vars(Score(perplexity, "", ""))
        path.write_text(json.dumps(result))
    own = [run for run in runs if run.row.name == "base"]
    system = read_outcome(open_workshop(own), own, plan(own)).system
    assert system
    assert average(system, "perplexity") == pytest.approx(6.0)


@pytest.mark.usefixtures("no_plots")
def test_report_says_what_made_it(tmp_path: Path, runs: list[SweepRun]) -> None:
    write(tmp_path, runs)
    for changed, expected in (
        ([], ", revision one, two, python 3.2.1, jax 3.2.1"),
        (["M t2t/train.py"], " with changes that were not committed, code c-one, c-two, python"),
    ):
        for revision, run in zip(("one", "two"), runs, strict=False):
            row = STARTED | {"revision": revision, "changed": changed, "code": f"c-{revision}"}
            (tmp_path / run.name / "ledger.jsonl").write_text(json.dumps(row) + "\n")
        report(runs)
        text = (tmp_path / "report.md").read_text()
        assert "from 2017-06-12 on, " in text
        assert expected in text
        assert "on 8 x P100 per run" in text


def test_flops_count_up_to_a_requested_stop(tmp_path: Path, runs: list[SweepRun]) -> None:
    write(tmp_path, runs)
    base = [run for run in runs if run.row.name == "base"]
    flops = [read_outcome(open_workshop(base), base, plan(base)).flops or 0]
    for run in base:
        request = {"reason": "enough", "obeyed_at": run.config.training.steps // 4}
        (tmp_path / run.name / "stop.json").write_text(json.dumps(request))
        flops.append(read_outcome(open_workshop(base), base, plan(base)).flops or 0)
    assert [value / flops[0] for value in flops] == pytest.approx([1, 5 / 8, 1 / 4], rel=0.01)


@pytest.mark.usefixtures("no_plots")
def test_a_row_may_be_judged_against_another_one_or_the_best_of_its_group(tmp_path: Path) -> None:
    """Among three rows any could have been the best, so p-values count three comparisons."""
    rows = [Row("base"), Row("a", {"model.d_ff": 8}), Row("b", {"model.d_ff": 16}, against="a")]
    rows += [
        Row(f"rate-{n}", {"training.learning_rate": n / 10}, against="best") for n in (1, 2, 3)
    ]
    runs = make_runs(Config(), rows, tmp_path)[0]
    for run, wrong in zip(runs, (3, 5, 2, 4, 20, 5), strict=True):
        save(run.workdir, spoil(wrong), name="sweep", config=overrides(run.config), nats=1.0)
    report(runs)
    table = json.loads((tmp_path / "report.json").read_text())["table"]
    assert {line["name"]: line["against"] for line in table} == {
        "base": "", "a": "base", "b": "a", "rate-1": "rate-2", "rate-2": "", "rate-3": "rate-2",
    }  # fmt: skip
    verdicts = {line["name"]: line["by_measure"] for line in table}
    for name, factor in (("a", 1), ("b", 1), ("rate-1", 3)):
        assert verdicts[name]["p_corrected"] == pytest.approx(factor * verdicts[name]["p"])
    text = (tmp_path / "report.md").read_text()
    assert "These 2 comparisons are judged together as part of 3 that could have been made" in text


@pytest.mark.usefixtures("no_plots")
def test_a_row_shows_the_value_that_another_rows_trials_chose_for_it(tmp_path: Path) -> None:
    tune = {"training.learning_rate": (0.5, 1)}
    small = Row("small", {"model.d_ff": 8}, tune=tune, seeds=(1,))
    rows = [Row("base"), small, Row("large", {"model.d_ff": 16}, tuned_by="small")]
    runs = make_runs(Config(), rows, tmp_path)[0]
    trials = {"small": list_trials(Config(), runs[1].row, runs[1].config, tmp_path, 1.0)}
    plan = dataclasses.replace(PLAN, trials=trials)
    workshop = Workshop(
        [step for job in plan.list_jobs(runs).values() for step in job.steps], tmp_path
    )
    works = {
        name: StepPlan(step, "run", "not begun", Record("", {}))
        for name, step in workshop.steps.items()
    }
    (tmp_path / "small-choice").mkdir()
    choice = {"setting": "training.learning_rate", "measure": "bleu", "value": 0.5,
              "curve": {"0.5": 9.0}, "edge": ""}  # fmt: skip
    (tmp_path / "small-choice" / "choice.json").write_text(json.dumps(choice))
    write_report(workshop, runs, "bleu", plan, works)
    table = json.loads((tmp_path / "report.json").read_text())["table"]
    assert {line["name"]: line["changes"] for line in table} == {
        "base": "",
        "small": "d_ff: 2048 -> 8, tuned learning_rate 0.5",
        "large": "d_ff: 2048 -> 16, tuned learning_rate 0.5",
    }


@pytest.mark.usefixtures("no_plots")
def test_without_base_there_is_no_verdict(tmp_path: Path, runs: list[SweepRun]) -> None:
    assert report(runs).startswith("No row has a score yet.")
    assert "not started" in (tmp_path / "report.md").read_text()
    save(tmp_path / "one_head-seed0", spoil(2), name="sweep")
    report(runs)
    assert "\nNo verdicts: base has no score yet." in (tmp_path / "report.md").read_text()


def test_kinds_and_published_scores_stand_beside_each_other(tmp_path: Path) -> None:
    published = Published(
        "somebody, table 2",
        {"bleu": (60.0, 62.0, 61.0)},
        {"odd": (0.0,), "even": (70.0, 71.0), "old": (1.0,)},
    )
    rows = [Row("base", seeds=(0, 1, 2), published=published), Row("x", {"model.num_heads": 1})]
    made = make_runs(Config(), rows, tmp_path)[0]
    texts = [f"Der Hund {number} läuft am Strand ." for number in range(80)]
    kinds = ["odd" if number % 2 else "even" for number in range(80)]
    for run in made:
        lines = spoil(2 if run.row.name == "x" else 5 + run.seed, texts)
        save(
            run.workdir, lines, name="sweep", sources=texts, references=texts, kinds=kinds,
            config=overrides(run.config),
        )  # fmt: skip
    report(made)
    text = (tmp_path / "report.md").read_text()
    section = text.partition("## Scores by kind")[2].partition("\n## ")[0]
    table = read_table(section)
    assert {"even", "odd", "mean of kinds"} <= {*table}
    assert table["even"][0] == "40"
    assert "worse" in table["even"][2]  # where all wrong sentences of x are
    assert "corrected for 2 comparisons (Holm)" in section
    content = json.loads((tmp_path / "report.json").read_text())
    assert {line["kind"] for line in content["kinds"]} == {"even", "odd", "mean of kinds"}
    section = text.partition("## Beside published scores")[2].partition("\n## ")[0]
    assert re.search(r"bleu +\| \d\d\.\d\d, 3 seeds \| 61.00, 3 seeds +\| differs: \+", section)
    assert re.search(r"odd .*\| 0.00 +\| no test: the published seed is outside of", section)
    assert re.search(r"old .*\| 1.00 +\| no sentence of our test set is of this kind", section)
    assert "- Published: somebody, table 2." in section
    assert "from the seeds of both sides alone" in section
