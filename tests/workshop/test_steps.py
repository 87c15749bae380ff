"""Steps, and their commands."""

from pathlib import Path

import pytest

from t2t.config.fields import ConfigError
from t2t.decoding.bulk import Bulk
from t2t.workshop import checks
from t2t.workshop.records import plan_steps
from t2t.workshop.steps import Pipeline, Step
from tests.workshop.short_programs import TRAIN


def test_a_folder_with_braces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has braces, which stand for steps; choose another"):
        Pipeline([Step("a", "train")], tmp_path / "{a}t")


@pytest.mark.parametrize("name", ["a,b", 'a,"b"', "a b", "{", "a=b", "a:b"])
def test_the_name_of_a_file_is_one_value(tmp_path: Path, name: str) -> None:
    (text := tmp_path / name).touch()
    flags = {"workdir": "{a}", "input": str(text), "checkpoint": "last"}
    pipeline = Pipeline([Step("a", "train", TRAIN), Step("b", "translate", flags)], tmp_path / "w")
    request = checks.check_flags(pipeline, pipeline.steps["b"])
    assert isinstance(request, Bulk)
    assert request.input == (str(text),)
    checks.check(pipeline, plan_steps(pipeline))
