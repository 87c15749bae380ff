"""The wheel holds the package and its recipes alone; requirements and tested versions agree."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


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
    assert metadata.get_all("Provides-Extra") == [*EXTRAS]


FILES = sorted((ROOT / "scripts" / "constraints").glob("*.txt"))
NAMES = [path.stem for path in FILES]
EXTRAS = PROJECT["project"]["optional-dependencies"]


def read_requirements() -> list[Requirement]:
    """Reads the requirements of the package and of the extra `dev`, which includes other extras."""
    text = (ROOT / "requirements.txt").read_text("utf-8")
    lines = [line.partition("#")[0] for line in text.splitlines() if line[:1].isalpha()]
    extras: set[str] = set()
    found = []
    for requirement in map(Requirement, [*lines, *EXTRAS["dev"]]):
        if requirement.name == "t2t":
            extras |= requirement.extras
        else:
            found.append(requirement)
    return found + [Requirement(line) for extra in extras for line in EXTRAS[extra]]


def read_pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\S+)==(\S+)$", path.read_text("utf-8"), re.MULTILINE))


def test_launchers_and_pages_name_the_pythons_that_have_tested_versions() -> None:
    assert NAMES == ["python3.11-oldest", "python3.11", "python3.12", "python3.13", "python3.14"]
    supported = [name for name in NAMES if not name.endswith("-oldest")]
    launchers = (ROOT / "launch" / "environment.sh").read_text("utf-8")
    [candidates] = re.findall(r"candidates=\((python3[^)]*)\)", launchers)
    assert {*candidates.split()} == {*supported, "python3", "python"}
    first, last = (name.removeprefix("python") for name in (supported[0], supported[-1]))
    for page in ("README.md", "docs/tutorial.md"):
        assert f"Python {first} to {last}" in (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_every_requirement_is_pinned_within_its_range(path: Path) -> None:
    header = path.read_text("utf-8").splitlines()[0]
    assert re.search(r"resolved on 20\d\d-\d\d-\d\d by scripts/constraints\.sh$", header)
    pins = read_pins(path)
    for requirement in read_requirements():
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), (
            requirement
        )


def test_ranges_begin_with_the_oldest_versions_that_were_tested() -> None:
    pins = read_pins(FILES[NAMES.index("python3.11-oldest")])
    for requirement in read_requirements():
        [lower] = [bound.version for bound in requirement.specifier if bound.operator == ">="]
        assert re.fullmatch(rf"{lower}(\.0)*", pins[canonicalize_name(requirement.name)]), (
            requirement
        )


def test_launchers_install_the_requirements_of_an_extra() -> None:
    script = f"source launch/environment.sh; python='{sys.executable}'; list_requirements dev"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    lines = [line.partition("#")[0] for line in done.stdout.splitlines() if line[:1].isalpha()]
    assert {*map(Requirement, lines)} == {*read_requirements()}


def test_no_range_ends_by_the_calendar() -> None:
    """A package whose version is its date has no upper end."""
    every = read_requirements() + [Requirement(line) for lines in EXTRAS.values() for line in lines]
    assert [each for each in every if re.search(r"<=?20\d\d", str(each.specifier))] == []
