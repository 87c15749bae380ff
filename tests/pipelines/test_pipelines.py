"""What runs when, with programs that take no time, and what is refused before any runs."""

import json
import logging
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from t2t.api import run_pipeline
from t2t.config import variants
from t2t.config.fields import ConfigError
from t2t.decoding.bulk import Bulk
from t2t.interop.hugging_face_folder import SourceError
from t2t.pipeline import PipelineRequest, main
from t2t.pipelines import checks
from t2t.pipelines.pipeline_report import write_report
from t2t.pipelines.records import RECORD, Record, StepPlan, plan_steps
from t2t.pipelines.runner import Runner
from t2t.pipelines.steps import Pipeline, Step, read_steps
from t2t.runtime.child_programs import find_reason
from t2t.storage import locks
from t2t.storage.locks import lock
from tests.evaluation.saved_evaluations import (
    REFERENCES,
    pair,
    save,
    score_corpus,
    spoil,
)
from tests.full_disk import full_disk
from tests.interop.foreign_folders import write_model
from tests.programs import write_program

CONFIG = "configs/quickstart.py"
TRAIN = {"config": CONFIG}


class ShortPrograms(Pipeline):
    """Each writes its flags to its output; "fail" fails, "wait" waits until it is stopped."""

    def make_command(self, step: Step) -> list[str]:
        output, log = self.find_output(step.name), self.workdir / "ran"
        script = f"open({str(log)!r}, 'a').write({step.name + ' '!r})\n"
        script += "print('no space'); raise SystemExit(2)\n" if "fail" in step.flags else ""
        script += "import time; time.sleep(600)\n" if "wait" in step.flags else ""
        script += f"open({str(output)!r}, 'w').write({str(self.resolve(step))!r})"
        return [sys.executable, "-S", "-c", script]


def run(steps: list[Step], workdir: Path, workers: int = 1) -> tuple[str, dict[str, str]]:
    """Returns the steps that ran, in order, and why steps failed."""
    pipeline = ShortPrograms(steps, workdir)
    log = workdir / "ran"
    log.unlink(missing_ok=True)
    runner = Runner(pipeline, plan_steps(pipeline), workers)
    runner.work([*pipeline.steps])
    return log.read_text() if log.exists() else "", runner.failures


def make_steps(text: Path, beam: int = 4, steps: int = 5) -> list[Step]:
    """Two chains: a translation needs a teacher, an export needs another run."""
    return [
        Step("student", "export", {"workdir": "{translated}"}),
        Step("translated", "translate", {"workdir": "{teacher}", "input": str(text), "beam": beam}),
        Step("teacher", "train", TRAIN | {"config.training.steps": steps}),
        Step("other", "train", TRAIN | {"config.seed": 1}),
    ]


def test_a_changed_step_runs_again_with_what_depends_on_it(tmp_path: Path) -> None:
    (text := tmp_path / "text").write_text("a\n")
    work = tmp_path / "work"
    assert run(make_steps(text), work) == ("teacher other translated student ", {})
    assert run(make_steps(text), work) == ("", {})
    assert run(make_steps(text, beam=1), work) == ("translated student ", {})
    (old,) = (work / "old" / "translated.1").glob("text")
    assert "'beam': 4" in old.read_text()  # put aside, not deleted
    text.write_text("b\n")
    planned = plan_steps(ShortPrograms(make_steps(text, beam=1), work))
    reasons = [planned[name].reason for name in ("teacher", "translated", "student")]
    assert reasons == ["finished", f"input={text} changed", "step translated changed"]
    assert run(make_steps(text, beam=1), work) == ("translated student ", {})
    (tmp_path / "text.en").touch()
    pattern = {"workdir": "{teacher}", "input": f"{text}*"}
    steps = [Step("teacher", "train", TRAIN), Step("translated", "translate", pattern)]
    run(steps, tmp_path / "pattern")
    (tmp_path / "text.en").unlink()
    planned = plan_steps(ShortPrograms(steps, tmp_path / "pattern"))
    assert planned["translated"].reason == f"input={text}.en is no longer read"
    (work / "student" / "model").unlink()
    planned = plan_steps(ShortPrograms(make_steps(text, beam=1, steps=6), work))
    assert planned["teacher"].reason == "--config.training.steps: 5 -> 6"
    assert run(make_steps(text, beam=1, steps=6), work) == ("teacher translated student ", {})


def test_a_failed_step_keeps_only_its_dependants_from_running(tmp_path: Path) -> None:
    (text := tmp_path / "text").write_text("a\n")
    steps = make_steps(text)
    steps[1] = Step("translated", "translate", {"workdir": "{teacher}", "fail": True})
    ran, failures = run(steps, tmp_path, workers=2)
    assert {*ran.split()} == {"other", "teacher", "translated"}
    assert failures == {"translated": "no space"}
    report = run_pipeline.report(ShortPrograms(steps, tmp_path))
    assert "- Not finished: translated (failed: no space), student (not begun)\n" in report
    page = (tmp_path / "report.md").read_text()
    assert re.search(r"\| translated \| translate +\| failed: no space +\|", page)
    assert re.search(r"\| student +\| export +\| not begun +\|", page)
    record = json.loads((tmp_path / "translated" / RECORD).read_text())
    assert (record["finished"], record["starts"][0]["status"]) == ("", 2)
    assert run(make_steps(text), tmp_path)[0] == "translated student "
    record = json.loads((tmp_path / "other" / RECORD).read_text())
    assert record["bytes"] > 0
    assert record["starts"][0]["core_seconds"] > 0


@pytest.mark.parametrize(
    ("program", "updated", "is_kept"),
    [
        ("evaluate", False, False),
        ("translate", False, True),
        ("translate", True, False),
        ("train", True, True),
    ],
)
def test_what_was_cut_off_continues_if_its_program_can(
    tmp_path: Path, program: str, updated: bool, is_kept: bool
) -> None:
    """A training decides itself if it continues after an update of t2t."""
    steps, folder = [Step("a", program, {"fail": True})], tmp_path / "a"
    run(steps, tmp_path)
    (folder / "part").write_text("")
    if updated:
        record = json.loads((folder / RECORD).read_text())
        (folder / RECORD).write_text(json.dumps(record | {"code": {"code": "older"}}))
    assert run(steps, tmp_path)[0] == "a "
    assert (folder / "part").exists() == is_kept
    assert (tmp_path / "old" / "a.1" / "part").exists() == (updated and not is_kept)


def test_the_reason_of_a_failure_stands_below_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pipeline = ShortPrograms([Step("a", "train", TRAIN | {"fail": True})], tmp_path)
    monkeypatch.setattr(run_pipeline, "open_pipeline", lambda *_: pipeline)
    monkeypatch.setattr(run_pipeline, "check", lambda *_: None)
    assert main(PipelineRequest(recipe="recipe.py", workdir=tmp_path)) == 1
    assert caplog.messages[-1] == "step a failed: no space"


@pytest.mark.parametrize(("signal", "name"), [(9, "SIGKILL"), (40, "signal 40")])
def test_a_signal_that_killed_a_step_is_named(signal: int, name: str) -> None:
    assert find_reason(-signal, b"") == f"killed by {name}"


def test_a_stopped_step_keeps_its_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = time.sleep

    def stop(seconds: float) -> None:
        monkeypatch.undo()
        sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(time, "sleep", stop)  # while the step works
    with pytest.raises(KeyboardInterrupt):
        run([Step("a", "train", {"wait": True})], tmp_path)
    [start] = json.loads((tmp_path / "a" / RECORD).read_text())["starts"]
    assert start["status"] == -signal.SIGTERM
    assert start["seconds"] > 0


def test_a_step_is_run_by_one_pipeline_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT", 0.0)
    pipeline = ShortPrograms([Step("a", "train", TRAIN)], tmp_path)
    second = Runner(pipeline, plan_steps(pipeline), 1)
    step = lock(tmp_path / ".locks" / "a" / "lock")
    with step, pytest.raises(ConfigError, match="is at work on step a in "):
        second.work(["a"])
    with lock(tmp_path / "lock"), pytest.raises(ConfigError, match="pipeline is at work in "):
        run_pipeline.run_pipeline(pipeline, [], 1)
    run_pipeline.run_pipeline(pipeline, ["a", "a"], 1)
    second.work(["a"])
    assert (tmp_path / "ran").read_text() == "a "


RECIPE_OF_ITS_OWN = """
from t2t.config import *
import helper
def get_config(run=''):
    return Config()
"""
OPEN_RECIPE = """
from t2t.config.fitted_config import FittedConfig
class Own(FittedConfig):
    def fit(self, choices):
        choices.choose("training.steps", {})
def get_config():
    config = Own()
    del config.training.steps
    return config
"""
OPTIONS = """
import dataclasses
from t2t.config import *
from t2t.config.field_types import WrittenFolder
from t2t.config.variants import register
import helper
@register("plugin", "mine")
@dataclasses.dataclass
class Options(PluginOptions):
    teacher: str = option("TMP/default", "")
    texts: tuple[str, ...] = option((), "")
    cache: WrittenFolder = option("cache", "")
"""
PLUGIN = {"config.plugins": "options"}


@pytest.mark.parametrize(
    ("flags", "file", "decides"),
    [
        ({"config": "TMP/recipe.py:{a}"}, "recipe.py", True),
        ({"config": "TMP/recipe.py:{a}"}, "helper.py", True),
        ({"config": "TMP/recipe.py"}, "helper.py", True),
        ({"config": "TMP/open.py"}, "open.py", True),
        ({"workdir": "{a},TMP/run"}, "run/config.json", True),
        ({"workdir": "TMP/run"}, "run/evaluations/test.json", False),
        ({"measure_model": "metricx=TMP/run"}, "run/checkpoints/1/params", True),
        ({"src": Path("TMP/file")}, "file", True),
        ({"input": "TMP/fi*"}, "file", True),
        ({"scores": ("{a}", "TMP/file")}, "file", True),
        ({"save_params": "TMP/run"}, "run/config.json", False),
        ({"config.data.hf_files": "train=TMP/file"}, "file", True),
        ({"config.data.hf_name": "TMP/corpus"}, "corpus/text", True),
        ({"config.data.directory": "TMP/corpus"}, "linked/text", True),
        ({"config.data.directory": "TMP/corpus"}, "corpus/evaluations/text", True),
        ({"config.data.directory": "TMP/corpus"}, "corpus/__pycache__/text", False),
        ({"config.data.directory": "TMP"}, "work/a/output.log", False),
        ({"config.data.train_src": ("TMP/train.{src}",), "config.data.directions": ("en-de",)},
         "train.en", True),
        ({"config.data.cache_directory": "TMP/corpus"}, "corpus/text", False),
        ({"config.plugins": "helper"}, "helper.py", True),
        (PLUGIN, "helper.py", True),
        (PLUGIN, "default", True),
        (PLUGIN | {"config.plugin.mine.teacher": "TMP/run:ema"}, "run/config.json", True),
        (PLUGIN | {"config.plugin.mine.texts": ("{a}/x", "TMP/file")}, "file", True),
        (PLUGIN | {"config.plugin.mine.cache": "TMP/corpus"}, "corpus/text", False),
    ],
)  # fmt: skip
def test_a_step_depends_on_the_content_of_its_inputs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, Any],
    file: str,
    decides: bool,
) -> None:
    texts = {
        file: "", "recipe.py": RECIPE_OF_ITS_OWN, "open.py": OPEN_RECIPE, "options.py": OPTIONS,
        "helper.py": "X = 1", "run/config.json": "{}", "run/checkpoints/1/params": "",
        "linked/text": "", "corpus/text": "", "default": "", "file": "", "train.en": "",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("TMP", str(tmp_path)) or "X = 2\n")
    (tmp_path / "corpus" / "part").symlink_to(tmp_path / "linked")
    (tmp_path / "linked" / "again").symlink_to(tmp_path / "corpus")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(variants, "_registered", {})

    def place(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(place, value))
        return type(value)(str(value).replace("TMP", str(tmp_path)))

    step = Step("b", "evaluate", {name: place(value) for name, value in flags.items()})
    pipeline = Pipeline([Step("a", "train", TRAIN), step], tmp_path / "work")
    (tmp_path / "work").mkdir(exist_ok=True)
    keys = list[str]()
    content = (tmp_path / file).read_text()
    for number, text in enumerate((content, content, f"{content}\n# another text")):
        (tmp_path / file).write_text(text)
        os.utime(tmp_path / file, (number, number))  # another time, however fast the machine is
        keys.append(plan_steps(pipeline)["b"].record.key)
    assert keys[0] == keys[1]
    assert (keys[1] != keys[2]) == decides


def test_files_that_a_recipe_reads_from_a_run_count_once_the_run_is_there(tmp_path: Path) -> None:
    (text := tmp_path / "text").write_text("a\n")
    (recipe := tmp_path / "recipe.py").write_text(
        "from pathlib import Path\nfrom t2t.config import *\n"
        "def get_config(run):\n"
        f"    return Config(data=DataConfig(train_src=('{text}', Path(run).read_text() and run)))\n"
    )
    steps = [Step("a", "train", TRAIN), Step("b", "train", {"config": f"{recipe}:{{a}}"})]
    work = tmp_path / "work"
    assert run(steps, work)[0] == "a b "
    assert run(steps, work)[0] == ""
    (work / "a" / "run").unlink()
    assert run(steps, work)[0] == "a "
    text.write_text("b\n")
    [a, b] = plan_steps(ShortPrograms(steps, work)).values()
    assert (a.reason, b.reason) == ("finished", f"config.data.train_src={text} changed")


def test_what_is_finished_stays_so_when_the_config_gets_another_field(tmp_path: Path) -> None:
    steps = [Step("a", "train", TRAIN), Step("b", "export", {"workdir": "{a}"})]
    run(steps, tmp_path)
    record = json.loads((path := tmp_path / "a" / RECORD).read_text())
    default = record["facts"]["recipe"].pop("data.noise_density")
    path.write_text(json.dumps(record))
    assert run(steps, tmp_path) == ("", {})
    record["facts"]["recipe"]["data.noise_density"] = 0.3  # the default of an earlier version
    path.write_text(json.dumps(record))
    planned = plan_steps(Pipeline(steps, tmp_path))
    assert planned["a"].reason == f"data.noise_density: 0.3 -> {default}"


@pytest.mark.parametrize(
    ("program", "flag"), [("evaluate", "workdir"), ("evaluate_output", "hypotheses")]
)
def test_a_report_needs_no_undamaged_files(tmp_path: Path, program: str, flag: str) -> None:
    steps = [Step("a", "train", TRAIN), Step("b", program, {flag: "{a}"})]
    run(steps, tmp_path)
    (ledger := tmp_path / "a" / "run").unlink()
    ledger.mkdir()
    corpora = {"train": [{"name": "my corpus", "pairs": 3}]}
    stages = [{"corpora": [{"name": "my corpus", "weight": weight}]} for weight in (2.0, 0.5)]
    start = json.dumps({"corpora": corpora, "stages": stages})
    (ledger / "ledger.jsonl").write_text(f"{start}\n{{")
    report = run_pipeline.report(ShortPrograms(steps, tmp_path))
    assert f"- No scores of b: {tmp_path}/b/scores.json" in report
    assert re.search(r"\| my corpus \| +3 \| +2, 0\.5 \|", (tmp_path / "report.md").read_text())


def test_a_report_shows_scores_of_lower_cased_text_by_measures_of_it(tmp_path: Path) -> None:
    steps = [Step("a", "train", TRAIN), Step("b", "evaluate", {"workdir": "{a}"})]
    run(steps, tmp_path)
    names = "bleu_lowercase", "chrf_lowercase"
    scores = score_corpus(spoil(7), pair(REFERENCES), "de", names)
    config = {"tokenizer.lowercase": True}
    saved = save(tmp_path / "run", spoil(7), name="scores", scores=scores, config=config)
    for path in saved.path.parent.iterdir():
        path.replace(tmp_path / "b" / path.name)
    report = run_pipeline.report(ShortPrograms(steps, tmp_path))
    bleu, chrf = (f"{score.value:.2f}" for score in scores.values())
    assert report.startswith(f"b has {bleu} bleu_lowercase [")
    assert f"bleu_lowercase {bleu}, chrf_lowercase {chrf} |" in (tmp_path / "report.md").read_text()


def test_seeds_of_a_system_may_differ_in_what_they_read_of_other_steps(tmp_path: Path) -> None:
    steps = [Step("t", "train", TRAIN)]
    for seed in (0, 1):
        own = {"config.plugin.mine.teacher": "{t}"}
        steps.append(Step(f"a{seed}", "train", TRAIN | own))
        steps.append(Step(f"b{seed}", "evaluate", {"workdir": f"{{a{seed}}}"}, system="mine"))
    pipeline = ShortPrograms(steps, tmp_path)
    works = {step.name: StepPlan(step, "none", "", Record("", {})) for step in steps}
    for field, found in (("plugin.mine.teacher", "mine has "), ("model.d_ff", "No scores of mine")):
        for seed in (0, 1):
            config = {"seed": seed, field: seed}
            saved = save(tmp_path / f"a{seed}", spoil(7 + seed), name="scores", config=config)
            (tmp_path / f"b{seed}").mkdir(exist_ok=True)
            for path in saved.path.parent.iterdir():
                path.replace(tmp_path / f"b{seed}" / path.name)
        assert found in write_report(pipeline, works)


def check(steps: list[Step], workdir: Path, *only: str) -> None:
    pipeline = Pipeline(steps, workdir)
    checks.check(pipeline, plan_steps(pipeline), only)


def use(program: str, **flags: Any) -> list[Step]:
    """A training, and a program that uses its run."""
    return [Step("a", "train", TRAIN), Step("b", program, {"workdir": "{a}"} | flags)]


TAUGHT = TRAIN | {"config.plugins": "examples.distillation", "config.training.loss": "distillation"}
WRONG: dict[str, tuple[list[Step], str]] = {
    "itself": ([Step("a", "train", {"init_from": "{a}"})], "in a circle: a -> a; let one"),
    "types": ([Step("a", "evaluate", {}, against="b")], "a: against='b' is not of type"),  # type: ignore[arg-type]
    "step": ([Step("a", "train", {"init_from": "{b}"})], r"a needs \{b\}, which is no step; the"),
    "name": ([Step("a/b", "train")], "'a/b' cannot name a folder"),
    "program": ([Step("a", "fly")], "a: program 'fly' is unknown; use prepare, train, "),
    "twice": ([Step("a", "train"), Step("a", "train")], "two steps write the folder a"),
    "lock": ([Step("lock", "train")], "'lock' cannot name a folder"),
    "missing": ([Step("a", "export")], "a: --workdir is missing; add it"),
    "no_run": ([Step("a", "evaluate", {"backend": "ctranslate2"})], "a: --workdir is missing"),
    "plugins": (
        [Step("a", "export", {"workdir": "{b}", "plugins": "no_such"}), Step("b", "train", TRAIN)],
        "a: plugins: the module no_such cannot be imported",
    ),
    "output": ([Step("a", "train", {"workdir": "x"})], "a: leave out --workdir, which"),
    "against": ([Step("a", "evaluate", {}, against=("b",))], "compared with 'b', which no step"),
    "input": (
        [Step("a", "translate", {"workdir": "missing/run", "input": "x"})],
        "a: --workdir=missing/run does not exist",
    ),
    "file": (
        [Step("a", "train", TRAIN | {"config.data.train_src": ("no.en",)})],
        "a: --config.data.train_src=no.en does not exist",
    ),
    "flag": ([Step("a", "train", TRAIN | {"stepz": 1})], "a: --stepz: no such field"),
    "value": (
        [Step("a", "train", TRAIN), Step("b", "evaluate", {"workdir": "{a}", "beam_size": "x"})],
        "b: .*beam_size",
    ),
    "unused": (
        [Step("a", "train", TRAIN | {"config.model.feed_forward": "none", "config.model.d_ff": 9})],
        "a: model.d_ff=9 has no effect with model.feed_forward",
    ),
    "engine": (
        [Step("a", "train", TRAIN | {"config.model.position": "alibi"}),
         Step("b", "export", {"workdir": "{a}"})],
        "b: .*position='alibi'",
    ),
    "config": ([Step("a", "train", {"config": "no.py"})], "config=no.py is no file"),
    "no_config": ([Step("a", "train", {"config": ""})], "config= is no file; name a recipe"),
    "text_none": (use("export", quantization=None), "b: flag --quantization=None: value should"),
    "checkpoint": (use("export", checkpoint="emaa"), "b: checkpoint 'emaa' is unknown; use last"),
    "no_checkpoint": (use("score", tgt="{a}/x", checkpoint=""), "b: checkpoint '' is unknown"),
    "ema": (use("evaluate", checkpoint="last,ema"), "b: checkpoint 'ema' needs training.ema"),
    "average": (use("evaluate", checkpoint="avg:9"), "b: checkpoint 'avg:9' needs as many .* 3: "),
    "unwritten": (use("evaluate", checkpoint="333"), "b: checkpoint '333' is of a step without"),
    "deleted": (use("evaluate", checkpoint="250"), "b: checkpoint '250' is deleted .* step 500 an"),
    "deleted_ema": (
        [Step("a", "train", TRAIN | {"config.training.ema_decay": 0.9}),
         Step("b", "export", {"workdir": "{a}", "checkpoint": "ema:250"})],
        "b: checkpoint 'ema:250' is deleted .*=3 are of step 500",
    ),
    "imported": (
        [Step("a", "import_model", {"source": "hf:x/y"}), Step("b", "export", {"workdir": "{a}"})],
        "b: checkpoint 'best': the imported model a has only last",
    ),
    "teacher": (
        [Step("a", "train", TRAIN), Step("b", "train", TAUGHT | {
            "config.plugin.distillation.teacher": "{a}:emaa"})],
        "b: checkpoint 'emaa' is unknown",
    ),
    "no_teacher": ([Step("b", "train", TAUGHT)], "b: plugin.distillation.teacher is empty"),
    "initial": (
        [Step("a", "train", TRAIN), Step("b", "train", TRAIN | {"init_from": "{a}:ema"})],
        "b: checkpoint 'ema' needs",
    ),
    "beam": (use("translate", input="{a}/x", beam_size=0), "b: decoding.beam_size=0 must be pos"),
    "search_without_effect": (
        use("evaluate", strategy="sampling", beam_size=4),
        "b: decoding.beam_size=4 is not used by decoding.strategy='sampling'; leave it out",
    ),
    "search_of_import": (
        [Step("a", "import_model", {"source": "hf:x/y"}),
         Step("b", "translate", {"workdir": "{a}", "input": "{a}/x", "checkpoint": "last",
                             "num_samples": -3})],
        "b: decoding.num_samples=-3 must be positive",
    ),
    "share": (use("score", tgt="{a}/x", share=2.0), "b: --share=2.0 must lie in"),
    "weights": (use("translate", input="{a}/x", weights=(1.0, 2.0)), "b: 2 weights for 1 models"),
    "precision": (use("evaluate", compute_type="int8"), "b: --compute_type=int8 is for --backend"),
    "direction": (use("evaluate", direction="en-fr"), "b: --direction=en-fr: this run translates"),
    "measure": (use("evaluate", measures="blue"), "b: measure blue is unknown"),
    "split": (
        [Step("a", "train", TRAIN | {
            "config.data.source": "text", "config.data.train_src": ("{c}/train.src",),
            "config.data.train_tgt": ("{c}/train.tgt",)}),
         Step("b", "evaluate", {"workdir": "{a}", "split": "test"}),
         Step("c", "write_pairs", TRAIN)],
        "b: --split=test: its run names no files of this split; it has train",
    ),
    "corpus": ([Step("a", "train", TRAIN | {"config.data.tgt_language": "xx"})], "between two of"),
    "open": (
        [Step("a", "train", {"config": "configs/text.py", "config.training.learning_rate": -1.0})],
        "a: training.learning_rate=-1.0 must be positive",
    ),
    "unread": (
        [Step("a", "train", TRAIN), Step("b", "train", {
            "config": "configs/fine_tune.py:{a}", "config.model.d_mod": 1})],
        "b: model.d_mod=.*: no such field",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_pipeline_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # Another test may have imported it, and removed what it registered.
    monkeypatch.delitem(sys.modules, "examples.distillation", raising=False)
    steps, message = WRONG[name]
    with pytest.raises(ConfigError, match=message) as error:
        check(steps, tmp_path)
    assert "\n" not in str(error.value)
    assert [*tmp_path.iterdir()] == []
    if name == "engine":  # only steps that will run are checked
        check(steps, tmp_path, "a")
        run(steps, tmp_path)
        check(steps, tmp_path)


@pytest.mark.parametrize("which", ["100", "ema:100"])
def test_a_step_of_a_recipe_without_numbers_may_have_a_checkpoint(
    tmp_path: Path, which: str
) -> None:
    (tmp_path / "text").write_text("a b\n")
    sides = {f"config.data.train_{side}": (str(tmp_path / "text"),) for side in ("src", "tgt")}
    recipe = {"config": "configs/text.py", "config.training.ema_decay": 0.9}
    steps = [Step("a", "train", recipe | sides)]
    check([*steps, Step("b", "export", {"workdir": "{a}", "checkpoint": which})], tmp_path / "work")


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("", ["seeds=x"], "--set=seeds=x: the value must be of type"),
        ("", ["seeds="], "--set=seeds=: the value must name one seed or more"),
        ("", ["samples=0"], "--set=samples=0: the value must be positive"),
        ("", ["alpha=nan"], "--set=alpha=nan: the value must not be negative"),
        ("", ["languages=ende"], "--set=languages=ende: the value must be SOURCE-TARGET"),
        ("", ["seed=1"], "--set=seed=1: write NAME=VALUE; the recipe's names are text, languages"),
        (
            "configs/pipelines/opus_student.py",
            ["teacher=hf:x/y", "text=x", "width=7"],
            "--set=width=7 is odd",
        ),
        ("no.py", [], "--recipe=no.py is no file; name one such as"),
        ("def get_steps(x: int): return 1", [], "the recipe asks for x; add --set=x=VALUE"),
        ("x = 1", [], "there is no function get_steps()"),
        ("def get_steps(x: bool = True): return x", ["x=False"], "a list of Step, not False"),
        ("def get_steps(x: int | None): return x", ["x=None"], "a list of Step, not None"),
        ("def get_steps(x): return x", ["x=1"], "annotate it with str, int, float, bool, one of"),
        ("def get_steps(x: list[int]): return x", ["x=1"], "--set=x=1: the recipe gives this"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_line(
    tmp_path: Path, recipe: str, settings: list[str], message: str
) -> None:
    path = recipe or "configs/pipelines/distil.py"
    if " " in recipe:
        (tmp_path / "recipe.py").write_text(recipe)
        path = str(tmp_path / "recipe.py")
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_steps(path, settings)


def test_a_folder_with_braces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has braces, which stand for steps; choose another"):
        run_pipeline.open_pipeline("configs/pipelines/distil.py", [], tmp_path / "{a}t")


@pytest.mark.parametrize("name", ["a,b", 'a,"b"', "a b", "{", "a=b", "a:b"])
def test_the_name_of_a_file_is_one_value(tmp_path: Path, name: str) -> None:
    (text := tmp_path / name).touch()
    flags = {"workdir": "{a}", "input": str(text), "checkpoint": "last"}
    pipeline = Pipeline([Step("a", "train", TRAIN), Step("b", "translate", flags)], tmp_path / "w")
    request = checks.check_flags(pipeline, pipeline.steps["b"])
    assert isinstance(request, Bulk)
    assert request.input == (str(text),)
    checks.check(pipeline, plan_steps(pipeline))


def test_a_full_disk_is_noticed_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [Step("a", "train", TRAIN)]
    check(steps, tmp_path)
    monkeypatch.setattr(checks, "measure_free_space", lambda _: 1e6)
    with pytest.raises(ConfigError, match="has 1 MB free, and the checkpoints of the trainings"):
        check(steps, tmp_path)
    for number in range(5):  # a training that continues
        (tmp_path / "a" / "run" / "checkpoints" / f"{number}").mkdir(parents=True)
    check(steps, tmp_path)


def test_a_disk_that_fills_up_is_named_and_what_is_finished_stays(tmp_path: Path) -> None:
    steps = [Step("a", "train", {}), Step("b", "export", {"workdir": "{a}", "long": "x" * 9000})]
    written = f"{re.escape(str(tmp_path))} cannot be written: .*; the same command continues"
    with full_disk(9000), pytest.raises(ConfigError, match=written):
        run(steps, tmp_path)
    assert run(steps, tmp_path)[0] == "b "


@pytest.fixture
def opus(tmp_path: Path) -> list[str]:
    """Settings of a recipe: an English-German model that exists, and text."""
    (folder := tmp_path / "opus").mkdir()
    write_model(folder)
    for name in ("train", "validation", "test"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("a\n")
    return [f"teacher={folder}", f"text={tmp_path}"]


@pytest.mark.parametrize("recipe", ["distil", "multi30k", "opus_student"])
def test_recipes_pass_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opus: list[str], recipe: str
) -> None:
    # Another test may have imported it, and removed what it registered.
    monkeypatch.delitem(sys.modules, "examples.distillation", raising=False)
    path = f"configs/pipelines/{recipe}.py"
    settings = {"distil": ["samples=4"], "opus_student": [*opus, "samples=4"]}.get(recipe, [])
    pipeline = run_pipeline.open_pipeline(path, settings, tmp_path / "work")
    table = run_pipeline.describe_plan(pipeline)
    assert len(table.splitlines()) == len(pipeline.steps) + 2
    assert not (tmp_path / "work").exists()
    if recipe == "opus_student":
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(SourceError, match=r"config.json is not JSON"):
            read_steps(path, [f"teacher={tmp_path}", "text=x"])


def test_each_step_may_be_a_job_that_waits_for_those_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "jobs"
    write_program(tmp_path / "sbatch", f'#!/bin/sh\necho "$@" >>{log}\nwc -l <{log}\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    steps = [Step("a", "train", TRAIN), Step("b", "export", {"workdir": "{a}"})]
    pipeline = Pipeline(steps, tmp_path / "work")
    run_pipeline.submit(pipeline, "sbatch --gpus=1 launch/slurm.sh", ["--recipe=x"])
    assert log.read_text().splitlines() == [
        "--parsable --job-name=a --gpus=1 launch/slurm.sh t2t.pipeline --recipe=x --only=a",
        "--parsable --job-name=b --dependency=afterok:1 --kill-on-invalid-dep=yes --gpus=1 "
        "launch/slurm.sh t2t.pipeline --recipe=x --only=b",
    ]
    for command, message in (
        ('sbatch "', "is no command; write one such as"),
        ("no_sbatch", "failed (No such file or directory)"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            run_pipeline.submit(pipeline, command, [])
    for printed in ("", "Submitted batch job", "7 8"):
        (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho '{printed}'\n")
        with pytest.raises(ConfigError, match=re.escape(f"printed {printed!r} and no job id")):
            run_pipeline.submit(pipeline, "sbatch", [])
    (tmp_path / "sbatch").write_text("#!/bin/sh\n[ $2 = --job-name=a ] && echo '7;cluster'\n")
    with pytest.raises(ConfigError, match=r"failed \(see above\); cancel .* submitted: 7 \(a\)"):
        run_pipeline.submit(pipeline, "sbatch", [])
