"""What is refused before the first step."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from t2t.config.fields import ConfigError
from t2t.decoding.bulk import Bulk
from t2t.workshop import checks
from t2t.workshop.records import plan_steps
from t2t.workshop.steps import Step, Workshop
from tests.workshop.short_programs import TRAIN, run


def check(steps: list[Step], workdir: Path, *only: str) -> None:
    workshop = Workshop(steps, workdir)
    checks.check(workshop, plan_steps(workshop), only)


def use(program: str, train: Mapping[str, Any] = {}, **flags: Any) -> list[Step]:
    """A training, and a program that uses its run."""
    return [Step("a", "train", TRAIN | {**train}), Step("b", program, {"workdir": "{a}"} | flags)]


def train_two(flags: dict[str, Any]) -> list[Step]:
    """Two trainings, of which the second has these flags."""
    return [Step("a", "train", TRAIN), Step("b", "train", TRAIN | flags)]


TAUGHT = {"config.plugins": "examples.distillation", "config.training.loss": "distillation"}
IMPORTED = Step("a", "import_model", {"source": "hf:x/y"})
OF_ANOTHER = {
    "config.data.source": "text", "config.data.train_src": ("{c}/train.src",),
    "config.data.train_tgt": ("{c}/train.tgt",),
}  # fmt: skip
WRONG: dict[str, tuple[list[Step], str]] = {
    "itself": ([Step("a", "train", {"init_from": "{a}"})], "in a circle: a -> a; let one"),
    "types": ([Step("a", "evaluate", {}, against="b")], "a: against='b' is not of type"),  # type: ignore[arg-type]
    "step": ([Step("a", "train", {"init_from": "{b}"})], r"a needs \{b\}, which is no step; the"),
    "name": ([Step("a/b", "train")], "'a/b' cannot name a folder"),
    "program": ([Step("a", "fly")], "a: program 'fly' is unknown; use prepare, train, "),
    "twice": ([Step("a", "train"), Step("a", "train")], "two steps write the folder a"),
    "lock": ([Step("lock", "train")], "'lock' cannot name a folder"),
    "missing": ([Step("a", "evaluate", {"backend": "ctranslate2"})], "a: --workdir is missing; ad"),
    "plugins": (use("export", plugins="no_such"), "b: plugins: the module no_such cannot be imp"),
    "output": ([Step("a", "train", {"workdir": "x"})], "a: leave out --workdir, which"),
    "against": ([Step("a", "evaluate", {}, against=("b",))], "compared with 'b', which no step"),
    "input": (use("translate", input="no/text"), "b: --input=no/text does not exist"),
    "file": (train_two({"config.data.train_src": ("no.en",)}), "b: .*train_src=no.en does not ex"),
    "flag": (train_two({"stepz": 1}), "b: --stepz: no such field"),
    "value": (use("evaluate", beam_size="x"), "b: .*beam_size"),
    "unused": (
        train_two({"config.model.feed_forward": "none", "config.model.d_ff": 9}),
        "b: model.d_ff=9 has no effect with model.feed_forward",
    ),
    "engine": (use("export", {"config.model.position": "alibi"}), "b: .*position='alibi'"),
    "config": ([Step("a", "train", {"config": ""})], "config= is no file; name a recipe"),
    "text_none": (use("export", quantization=None), "b: flag --quantization=None: value should"),
    "checkpoint": (use("export", checkpoint="emaa"), "b: checkpoint 'emaa' is unknown; use last"),
    "no_checkpoint": (use("score", tgt="{a}/x", checkpoint=""), "b: checkpoint '' is unknown"),
    "ema": (use("evaluate", checkpoint="last,ema"), "b: checkpoint 'ema' needs training.ema"),
    "average": (use("evaluate", checkpoint="avg:9"), "b: checkpoint 'avg:9' needs as many .* 3: "),
    "unwritten": (use("evaluate", checkpoint="333"), "b: checkpoint '333' is of a step without"),
    "deleted": (use("evaluate", checkpoint="250"), "b: checkpoint '250' is deleted .* step 500 an"),
    "deleted_ema": (
        use("export", {"config.training.ema_decay": 0.9}, checkpoint="ema:250"),
        "b: checkpoint 'ema:250' is deleted .*=3 are of step 500",
    ),
    "imported": ([IMPORTED, *use("export")[1:]], "b: checkpoint 'best': the imported model a has"),
    "teacher": (
        train_two(TAUGHT | {"config.plugin.distillation.teacher": "{a}:emaa"}),
        "b: checkpoint 'emaa' is unknown",
    ),
    "no_teacher": (train_two(TAUGHT), "b: plugin.distillation.teacher is empty"),
    "initial": (train_two({"init_from": "{a}:ema"}), "b: checkpoint 'ema' needs"),
    "beam": (use("translate", input="{a}/x", beam_size=0), "b: decoding.beam_size=0 must be pos"),
    "search_without_effect": (
        use("evaluate", strategy="sampling", beam_size=4),
        "b: decoding.beam_size=4 is not used by decoding.strategy='sampling'; leave it out",
    ),
    "search_of_import": (
        [IMPORTED, *use("translate", input="{a}/x", checkpoint="last", num_samples=-3)[1:]],
        "b: decoding.num_samples=-3 must be positive",
    ),
    "share": (use("score", tgt="{a}/x", share=2.0), "b: --share=2.0 must lie in"),
    "weights": (use("translate", input="{a}/x", weights=(1.0, 2.0)), "b: 2 weights for 1 models"),
    "precision": (use("evaluate", compute_type="int8"), "b: --compute_type=int8 is for --backend"),
    "direction": (use("evaluate", task="en-fr"), "b: --task=en-fr: this run has one"),
    "measure": (use("evaluate", measures="blue"), "b: measure blue is unknown"),
    "split": (
        [*use("evaluate", OF_ANOTHER, split="test"), Step("c", "write_pairs", TRAIN)],
        "b: --split=test: its run names no files of this split; it has train",
    ),
    "corpus": (train_two({"config.data.tgt_language": "xx"}), "between two of"),
    "open": (
        train_two({"config": "configs/text.py", "config.training.learning_rate": -1.0}),
        "b: training.learning_rate=-1.0 must be positive",
    ),
    "unread": (
        train_two({"config": "configs/fine_tune.py:{a}", "config.model.d_mod": 1}),
        "b: model.d_mod=.*: no such field",
    ),
}


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
    (text := tmp_path / "text").write_text("a b\n")
    recipe = {"config": "configs/text.py", "config.training.ema_decay": 0.9}
    recipe |= {f"config.data.train_{side}": (str(text),) for side in ("src", "tgt")}
    check(use("export", recipe, checkpoint=which), tmp_path / "work")


@pytest.mark.parametrize("name", ["a,b", 'a,"b"', "a b", "{", "a=b", "a:b"])
def test_the_name_of_a_file_is_one_value(tmp_path: Path, name: str) -> None:
    (text := tmp_path / name).touch()
    steps = use("translate", input=str(text), checkpoint="last")
    request = checks.check_flags(Workshop(steps, tmp_path), steps[1])
    assert isinstance(request, Bulk)
    assert request.input == (str(text),)
    check(steps, tmp_path / "work")


def test_a_folder_with_braces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has braces, which stand for steps; choose another"):
        Workshop([Step("a", "train")], tmp_path / "{a}t")


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
