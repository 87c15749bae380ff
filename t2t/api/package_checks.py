"""The checks of `t2t.doctor` of packages: their versions, and whether they can be imported.

Only the check of imports imports any of them.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import platform
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from t2t.config.recipes import PACKAGE
from t2t.runtime.error_messages import explain
from t2t.runtime.jax_settings import explain_jax_error

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")
CONSTRAINTS = PACKAGE.parent / "scripts" / "constraints"  # tested package versions
_INSTALL = "pip install -e ."


class Finding(NamedTuple):
    """The result of one check."""

    value: str
    problem: str = ""  # with its remedy; empty: none


def attempt(check: Callable[..., Finding], *arguments: Any) -> Finding:
    """Runs a check; an error of a package is a finding.

    Raises:
        Exception: an error of the user's or the system's, as any program reports it.
    """
    try:
        return check(*arguments)
    except Exception as error:
        if explain(error) is not None:
            raise
        return Finding("unknown", describe(error))


def describe(error: Exception) -> str:
    """Describes an error of a package in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def examine_packages() -> Iterator[tuple[str, Finding]]:
    """Runs the checks of packages one by one; yields name and finding."""
    yield "versions", attempt(find_versions)
    yield "requirements", attempt(find_unfit_versions)
    yield "untested versions", attempt(find_untested_versions)
    yield "imports", attempt(find_broken_packages)


def find_versions() -> Finding:
    """Names the versions of Python and of the packages that compute."""
    found = [f"{name} {_find_version(name) or '(not installed)'}" for name in PACKAGES]
    return Finding(f"Python {platform.python_version()}, {', '.join(found)}")


def _find_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def list_requirements() -> list[str]:
    """Lists the packages that t2t requires, each with its range, such as "jax>=0.10.2,<0.12"."""
    file = PACKAGE.parent / "requirements.txt"
    if not file.is_file():  # installed without the checkout
        return _list_required("t2t")
    return [line for line in file.read_text("utf-8").splitlines() if re.match(r"\w", line)]


def _list_required(name: str) -> list[str]:
    """Lists the packages that an installed one requires without its extras, with their ranges."""
    required = importlib.metadata.requires(name) or []
    return [each for each in required if not re.search(r";.*\bextra\b", each)]


def find_unfit_versions() -> Finding:
    """Finds packages that are missing, or whose version is outside of the required range."""
    problems = []
    for line in list_requirements():
        requirement = line.partition("#")[0].strip()
        name = _find_name(requirement)
        found, bounds = _find_version(name), re.findall(r"([<>]=?)([\d.]+)", requirement)
        if not found:
            problems.append(f"{name} is not installed")
        elif not all(_fits(found, sign, bound) for sign, bound in bounds):
            problems.append(f"{name} {found} is none of {requirement}")
    problem = f"{', '.join(problems)}: {_INSTALL}" if problems else ""
    return Finding("packages and ranges of requirements.txt", problem)


def _fits(version: str, sign: str, bound: str) -> bool:
    """Returns whether a version is on the right side of a bound of its range."""
    numbers = [*map(int, re.findall(r"\d+", re.split("[a-z+]", version)[0]))]
    limit = [*map(int, bound.split("."))]
    own, other = zip(*itertools.zip_longest(numbers, limit, fillvalue=0), strict=True)
    return {"<": own < other, "<=": own <= other, ">": own > other, ">=": own >= other}[sign]


def find_broken_packages() -> Finding:
    """Imports the modules of the packages that t2t requires, one by one."""
    modules, problems = _list_modules(), []
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # such as an AttributeError beside another version of JAX
            if explain_jax_error(error) is not None:  # a variable of the user's
                raise
            problems.append(f"{module} cannot be imported ({describe(error)})")
    problem = f"{', '.join(problems)}: {_INSTALL}" if problems else ""
    return Finding(f"{len(modules)} modules of these packages", problem)


def _list_modules() -> list[str]:
    """Lists the modules of the installed packages that t2t requires, such as orbax.checkpoint."""
    required = {_normalize(line) for line in list_requirements()}
    found = set[str]()
    for module, packages in importlib.metadata.packages_distributions().items():
        names = required & {*map(_normalize, packages)}
        if names and module.isidentifier() and not module.startswith("_"):
            parts = {name.replace("-", ".") for name in names if name.startswith(f"{module}-")}
            found |= {module} | {part for part in parts if _exists(part)}
    return sorted(found)


def _exists(module: str) -> bool:
    with contextlib.suppress(Exception):  # if its package cannot be imported
        return importlib.util.find_spec(module) is not None
    return False


def _find_name(requirement: str) -> str:
    """Returns the name of a package, without the extras, range and comment behind it."""
    return re.split(r"[^\w.-]", requirement)[0]


def _normalize(requirement: str) -> str:
    """Returns the name of a package in one spelling."""
    return re.sub(r"[-_.]+", "-", _find_name(requirement)).lower()


def find_untested_versions() -> Finding:
    """Lists packages of t2t that the tests did not run with; requirements.txt allows them."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not CONSTRAINTS.is_dir():
        return Finding("unknown: scripts/constraints/ exists only in the checkout")
    text = "\n".join(path.read_text("utf-8") for path in CONSTRAINTS.glob(f"{python}*.txt"))
    tested: dict[str, set[str]] = {}
    for name, version in re.findall(r"^(\S+)==(\S+)", text, re.MULTILINE):
        tested.setdefault(name, set()).add(version)
    if not tested:
        return Finding(f"all: scripts/constraints/ has no file for {python}")
    untested = []
    for name, installed in sorted(find_packages().items()):
        versions = tested.get(name, {installed})
        if installed not in versions:
            untested.append(f"{name} {installed} instead of {' or '.join(sorted(versions))}")
    remedy = f"pip install -e . -c scripts/constraints/{python}.txt"
    value = f"{', '.join(untested)}; to install tested ones: {remedy}" if untested else "none"
    return Finding(value)


def find_packages() -> dict[str, str]:
    """Finds the installed packages that t2t requires, and what these require, with their versions.

    Others in the environment, such as setuptools, are not t2t's, and the command of the README does
    not change them.
    """
    found: dict[str, str] = {}
    left = list_requirements()
    while left:
        name = _normalize(left.pop())
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if name not in found:
                found[name] = importlib.metadata.version(name)
                left += _list_required(name)
    return found
