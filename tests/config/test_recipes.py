"""Finding recipes from any current folder."""

from pathlib import Path

import pytest

from t2t.config import recipes
from t2t.config.recipes import find_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_recipe_of_the_current_folder_wins(folder: Path) -> None:
    (folder / "configs").mkdir()
    (folder / "configs" / "base.py").touch()
    assert find_recipe("configs/base.py") == "configs/base.py"
    assert find_recipe("configs/big.py") == str(ROOT / "configs" / "big.py")


def test_argument_of_a_recipe_stays() -> None:
    expected = f"{ROOT}/configs/multi30k.py:en-de"
    assert find_recipe("configs/multi30k.py:en-de") == expected
    assert find_recipe("configs/sweeps/table3.py") == str(ROOT / "configs/sweeps/table3.py")


@pytest.mark.parametrize(
    "path", ["configs/nothing.py", "mine.py", "setup.py", "/a/configs/base.py"]
)
def test_other_paths_stay_as_they_are(path: str) -> None:
    assert find_recipe(path) == path


def test_installed_package_has_its_recipes_inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "t2t" / "configs").mkdir(parents=True)
    (folder / "t2t" / "configs" / "base.py").touch()
    monkeypatch.setattr(recipes, "RECIPES", folder / "t2t" / "configs")
    assert find_recipe("configs/base.py") == str(folder / "t2t" / "configs" / "base.py")
