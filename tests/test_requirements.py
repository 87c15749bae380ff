"""Requirements, extras of the package and tested versions (launch/constraints/) agree."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "launch" / "constraints").glob("*.txt"))
NAMES = [path.stem for path in FILES]


def read_requirements(*names: str) -> list[Requirement]:
    lines = [
        re.sub(r"\s*#.*", "", line)
        for name in names or ("requirements.txt", "requirements-dev.txt")
        for line in (ROOT / name).read_text("utf-8").splitlines()
    ]
    return [Requirement(line) for line in lines if line and not line.startswith("-r")]


def read_pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\S+)==(\S+)$", path.read_text("utf-8"), re.MULTILINE))


def test_each_supported_python_has_its_tested_versions() -> None:
    assert NAMES == ["python3.11-oldest", "python3.11", "python3.12", "python3.13", "python3.14"]
    assert f"python{sys.version_info.major}.{sys.version_info.minor}" in NAMES


def test_launchers_and_pages_name_the_pythons_that_have_tested_versions() -> None:
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
    assert re.search(r"resolved on 20\d\d-\d\d-\d\d by launch/constraints\.sh$", header)
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


def test_extras_of_the_package_are_the_requirements_for_each_purpose() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    found = {name: [Requirement(line) for line in lines] for name, lines in extras.items()}
    dev = read_requirements("requirements-dev.txt")
    assert found == {
        "cuda": read_requirements("requirements-cuda.txt"),
        "tpu": read_requirements("requirements-tpu.txt"),
        "gcs": read_requirements("requirements-gcs.txt"),
        "hf": read_requirements("requirements-hf.txt"),
        "ctranslate2": [each for each in dev if each.name == "ctranslate2"],
        "dev": dev,
    }
