"""The wheel contains the package and its recipes, nothing else."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_folder_of_the_package_that_holds_code_is_a_package() -> None:
    """Without `__init__.py` a folder is left out of the wheel, or becomes a namespace package."""
    folders = {path.parent for path in (ROOT / "t2t").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_kinds_of_files_in_the_package_are_those_that_are_installed() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    kept = {path for pattern in patterns for path in (ROOT / "t2t").rglob(pattern)}
    files = {
        path
        for path in (ROOT / "t2t").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert files == kept


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    [backend] = map(Requirement, PROJECT["build-system"]["requires"])
    setuptools = pytest.importorskip("setuptools")
    if not backend.specifier.contains(setuptools.__version__):
        pytest.skip(f"building needs {backend}; installed is {setuptools.__version__}")
    source = folder / "source"
    left_out = shutil.ignore_patterns(".*", "build", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=left_out)
    (source / "REVISION").write_text("1234\n")
    stale = source / "build" / "lib" / "t2t" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, f"--wheel-dir={folder}", source],
        check=True,
        cwd=folder,
    )
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_wheel_holds_the_package_and_its_recipes_alone(wheel: zipfile.ZipFile) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "t2t").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    expected |= {f"t2t/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "configs").rglob("*.py")}
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == expected | {"t2t/REVISION"}
    assert wheel.read("t2t/REVISION") == b"1234\n"


@pytest.mark.slow
def test_wheel_requires_what_requirements_txt_names(wheel: zipfile.ZipFile) -> None:
    [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(path).decode())
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    needed = {Requirement(line.partition("#")[0]) for line in lines if line[:1].isalpha()}
    required = {Requirement(line) for line in metadata.get_all("Requires-Dist", [])}
    assert {each for each in required if each.marker is None} == needed
    assert metadata.get_all("Provides-Extra") == [
        "cuda",
        "tpu",
        "gcs",
        "hf",
        "ctranslate2",
        "transformers",
        "writers",
        "notebook",
        "docs",
        "dev",
    ]
