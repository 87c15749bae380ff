"""The import contracts in pyproject.toml, and rules that import-linter cannot express."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("t2t", "configs", "launch", "benchmarks", "tests", "tools", "examples")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]

# Requirements that t2t does not import -> the package that does.
INDIRECT_REQUIREMENTS = {
    "array-record": "tensorflow_datasets",
    "importlib-resources": "tensorflow_datasets",
}

# Imported packages that are no requirement; their users say how to install them, or work without.
OPTIONAL_REQUIREMENTS = {"ctranslate2", "aiohttp", "datasets", "zstandard", "huggingface-hub"}
LARGE_REQUIREMENTS = {"torch", "transformers"}  # likewise; the tests run without them, too


def find_files(*folders: str) -> list[Path]:
    return [path for path in FILES if path.relative_to(ROOT).parts[0] in folders]


def parse(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text("utf-8")))]


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names of all modules that the file imports, at any level."""
    for node in parse(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def test_contracts_between_the_parts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_recipes_import_only_the_config() -> None:
    imported = {name for path in find_files("configs") for name in imported_modules(path)}
    ours = {name for name in imported if name.startswith("t2t")}
    assert {name for name in ours if not name.startswith("t2t.config")} <= {
        "t2t.evaluation.published",
        "t2t.sweeps.sweep_rows",
        "t2t.sweeps.family_rows",
        "t2t.scaling.rungs",
        "t2t.workshop.steps",
        "t2t.interop.hugging_face_folder",  # of one whose teacher is a model of others
        # of a recipe that fits itself to its text, and to the machine
        "t2t.data.counted_vocabulary",
        "t2t.data.objectives",
        "t2t.data.text_facts",
        "t2t.ops.flops",
        "t2t.runtime.machine_speed",
    }


def test_modules_of_flax_stay_in_the_model() -> None:
    """Other folders see parameters as a plain tree, and the structure as an opaque GraphDef."""
    used = {
        (path.name, node.attr)
        for path in find_files("t2t")
        if path.parent.name not in ("model", "ops")
        for node in parse(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "nnx"
    }
    assert {name for _, name in used} <= {"GraphDef"}, used


def test_class_has_a_name_of_its_own() -> None:
    """One name means one thing in the whole library."""
    names = [
        node.name
        for path in find_files("t2t")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_packages_contain_only_docstrings_and_imports() -> None:
    bodies = {p: ast.parse(p.read_text("utf-8")).body for p in FILES if p.name == "__init__.py"}
    assert [path for path, body in bodies.items() if any(map(is_code, body))] == []


def is_code(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) != "__all__"
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not (docstring or isinstance(node, ast.ImportFrom))


def test_formulas_are_plain() -> None:
    """Formulas contain no speed-ups, which are in t2t/ops, and do not depend on the platform."""
    tricks = re.compile(
        r"custom_vjp|custom_jvp|optimization_barrier|pallas|platform\(|checkpoint\("
    )
    formulas = (ROOT / "t2t" / "model").glob("*.py")
    assert [path.name for path in formulas if tricks.search(path.read_text("utf-8"))] == []


def test_files_of_text_are_utf8_in_every_locale() -> None:
    """Python's default is the encoding of the locale."""
    default = re.compile(r"""read_text\(\)|write_text\([^,()]*(\([^()]*\))?\)|open\("[wax]\+?"\)""")
    found = [path.name for path in find_files("t2t") if default.search(path.read_text("utf-8"))]
    assert found == []


def test_every_file_directly_in_t2t_is_a_program() -> None:
    files = [path for path in (ROOT / "t2t").glob("*.py") if path.stem != "__init__"]
    assert [path.name for path in files if "__main__" not in path.read_text("utf-8")] == []


def test_requirements_are_what_is_imported() -> None:
    owners = packages_distributions()
    files = find_files("t2t", "configs", "launch", "benchmarks")
    imported = {name.split(".")[0] for path in files for name in imported_modules(path)}
    needed = {normalise(dist) for name in imported for dist in owners.get(name, [])}
    needed -= {"t2t"}  # which `pip install -e .` installs
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    named = {normalise(re.split(r"[<>=\[ ]", line)[0]) for line in lines if line[:1].isalpha()}
    assert needed - named - LARGE_REQUIREMENTS == OPTIONAL_REQUIREMENTS, "not required"
    assert named - needed - INDIRECT_REQUIREMENTS.keys() == set(), "required, but not imported"


def normalise(distribution: str) -> str:
    """Normalises a name by PyPI's rule: ml_collections -> ml-collections."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
