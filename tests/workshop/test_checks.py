"""What is refused before the first step."""

import sys
from pathlib import Path
from typing import Any

import pytest

from t2t.config.fields import ConfigError
from t2t.workshop import checks
from t2t.workshop.records import plan_steps
from t2t.workshop.steps import Pipeline, Step
from tests.workshop.short_programs import TRAIN, run


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


def test_a_changed_step_is_refused_in_a_bucket_where_nothing_can_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(use("evaluate"), tmp_path)
    monkeypatch.setattr(checks, "is_bucket", lambda _: True)
    folders = ", ".join(f"{tmp_path}/{name}" for name in ("a", "steps/a", "b", "steps/b"))
    with pytest.raises(ConfigError, match=f"^a, b changed, .*; remove {folders}, or choose"):
        check([Step("a", "train", TRAIN | {"config.seed": 1}), *use("evaluate")[1:]], tmp_path)


def test_a_full_disk_is_noticed_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [Step("a", "train", TRAIN)]
    check(steps, tmp_path)
    monkeypatch.setattr(checks, "measure_free_space", lambda _: 1e6)
    with pytest.raises(ConfigError, match="has 1 MB free, and the checkpoints of the trainings"):
        check(steps, tmp_path)
    for number in range(5):  # a training that continues
        (tmp_path / "a" / "checkpoints" / f"{number}").mkdir(parents=True)
    check(steps, tmp_path)
