"""Recipes of pipelines, and their settings."""

import itertools
import re
import sys
from pathlib import Path

import pytest

from t2t.api.run_workshop import describe_plan
from t2t.config.fields import ConfigError
from t2t.interop.hugging_face_folder import SourceError
from t2t.workshop.recipe_steps import open_workshop, read_steps
from tests.interop.foreign_folders import write_model

OPUS = "configs/pipelines/opus_student.py"


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("", ["seeds=x"], "--set=seeds=x: the value must be of type"),
        ("", ["seeds="], "--set=seeds=: the value must name one seed or more"),
        ("", ["samples=0"], "--set=samples=0: the value must be positive"),
        ("", ["alpha=nan"], "--set=alpha=nan: the value must not be negative"),
        ("", ["languages=ende"], "--set=languages=ende: the value must be SOURCE-TARGET"),
        ("", ["seed=1"], "--set=seed=1: write NAME=VALUE; the recipe's names are text, languages"),
        (OPUS, ["teacher=hf:x/y", "text=x", "width=7"], "--set=width=7 is odd"),
        (
            "no.py",
            [],
            "--recipe=no.py is no file; name a recipe, such as configs/pipe",
        ),
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


@pytest.mark.parametrize("recipe", ["distil", "multi30k", "opus_student"])
def test_recipes_pass_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    # Another test may have imported it, and removed what it registered.
    monkeypatch.delitem(sys.modules, "examples.distillation", raising=False)
    path, settings = f"configs/pipelines/{recipe}.py", list[str]()
    if recipe != "multi30k":
        settings.append("samples=4")
    if recipe == "opus_student":  # an English-German model that exists, and text
        (tmp_path / "opus").mkdir()
        write_model(tmp_path / "opus")
        for name in itertools.product(("train", "validation", "test"), ("en", "de")):
            (tmp_path / ".".join(name)).write_text("a\n")
        settings += [f"teacher={tmp_path}/opus", f"text={tmp_path}"]
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(SourceError, match=r"config.json is not JSON"):
            read_steps(path, [f"teacher={tmp_path}", "text=x"])
    workshop = open_workshop(path, settings, tmp_path / "work")
    assert len(describe_plan(workshop).splitlines()) == len(workshop.steps) + 2
    assert not (tmp_path / "work").exists()
