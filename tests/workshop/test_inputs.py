"""Which inputs decide whether a step runs again."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from t2t.config import variants
from t2t.workshop.records import plan_steps
from t2t.workshop.steps import Step, Workshop
from tests.workshop.short_programs import TRAIN, ShortPrograms, run

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
        ({"config.data.directory": "TMP"}, "work/steps/a/output.log", False),
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
    workshop = Workshop([Step("a", "train", TRAIN), step], tmp_path / "work")
    (tmp_path / "work").mkdir(exist_ok=True)
    keys = list[str]()
    content = (tmp_path / file).read_text()
    for number, text in enumerate((content, content, f"{content}\n# another text")):
        (tmp_path / file).write_text(text)
        os.utime(tmp_path / file, (number, number))  # another time, however fast the machine is
        keys.append(plan_steps(workshop)["b"].record.key)
    assert keys[0] == keys[1]
    assert (keys[1] != keys[2]) == decides


def test_files_that_a_recipe_reads_from_a_run_count_once_the_run_is_there(tmp_path: Path) -> None:
    (text := tmp_path / "text").write_text("a\n")
    (recipe := tmp_path / "recipe.py").write_text(
        "from pathlib import Path\nfrom t2t.config import *\n"
        "def get_config(run):\n"
        "    assert Path(run, 'flags').read_text()\n"
        f"    return Config(data=DataConfig(train_src=('{text}', run)))\n"
    )
    steps = [Step("a", "train", TRAIN), Step("b", "train", {"config": f"{recipe}:{{a}}"})]
    work = tmp_path / "work"
    assert run(steps, work)[0] == "a b "
    assert run(steps, work)[0] == ""
    shutil.rmtree(work / "a")
    assert run(steps, work)[0] == "a "
    text.write_text("b\n")
    [a, b] = plan_steps(ShortPrograms(steps, work)).values()
    assert (a.reason, b.reason) == ("finished", f"config.data.train_src={text} changed")
