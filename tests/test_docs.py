"""The documentation: links, commands, flags and raw files exist, and the tutorial runs."""

import ast
import contextlib
import importlib.util
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import t2t
from docs.list_results import list_results
from docs.make_config_page import PAGE, make_page
from t2t.__main__ import list_programs
from t2t.api import notebook
from t2t.api.run import Run
from t2t.config.fields import Config, flatten
from t2t.config.requests import find_request, list_help
from tests.programs import ROOT, write_program

READ = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*READ, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md"))]
PAGES += [ROOT / folder / "README.md" for folder in ("benchmarks", "tests")]

# Flags of programs that are not ours: SLURM, SkyPilot, docker, kubectl, gcloud, pip, pytest, absl,
# sacreBLEU.
OTHER_FLAGS = set(
    "nodes gpus-per-node ntasks-per-node array gpus cpus-per-task gpu-bind gpus-per-task "
    "hypothesis-profile help wrap file build-arg tag server-side role member location env infra "
    "uniform-bucket-level-access xla_gpu_enable_scatter_determinism_expander "
    "clear-soft-delete list echo".split()
)
# The tutorial's commands with a model and a training that take seconds.
STEPS = "--config.training.steps=4"
TINY = f"""
    --config.model.num_layers=1 --config.model.d_model=32 --config.model.d_ff=32
    --config.tokenizer.vocab_size=500 {STEPS}
    --config.training.warmup_steps=2 --config.training.log_every=2
    --config.training.validate_every=2 --config.checkpoints.every=2
    --config.decoding.beam_size=2 --config.decoding.max_extra_length=2
""".split()


def of_page(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read_code(page: Path) -> list[str]:
    """Lines of the fenced blocks, continued lines joined, and the code spans of the prose."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`]+)`", prose)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [*lines, *(" ".join(span.split()) for span in spans)]


def find_links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in links if not link.startswith("https://")]


def list_anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_links_lead_somewhere(page: Path) -> None:
    for link in find_links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in list_anchors(target), link


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / link.split("#")[0]).resolve() for link in find_links(ROOT / "README.md")}
    assert [page.name for page in READ[1:] if page not in linked] == []


def test_config_page_is_what_the_dataclasses_say() -> None:
    assert PAGE.read_text("utf-8") == make_page(), "run python -m docs.make_config_page"


def test_config_page_explains_every_field() -> None:
    rows = re.findall(r"^\| `(\w+)`.*\| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(flatten(Config()) | {"plugin": {}})  # which is empty
    assert [name for name, meaning in rows if not meaning.strip()] == []


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_files_that_are_named_exist(page: Path) -> None:
    """Among them the raw file of each figure, and modules such as `t2t.train`."""
    folders = "t2t|tests|launch|scripts|experiments|configs|benchmarks|docs"
    code = "\n".join(read_code(page))
    paths = re.findall(rf"(?<![\w./])((?:{folders})/[\w./-]+)", code)
    modules = {*re.findall(r"(?<![\w/.-])t2t\.([a-z]\w*)", code)} - {"load"}
    missing = [path for path in paths if not (ROOT / path.rstrip(".")).exists()]
    missing += [name for name in modules if not importlib.util.find_spec(f"t2t.{name}")]
    assert missing == []


def test_results_are_those_of_their_raw_files() -> None:
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    missing = [result for result in list_results() if f"| {result} |" not in page]
    assert missing == [], "python -m docs.list_results prints them"


def list_flags(program: str) -> dict[str, str]:
    """Name and help of the flags of a program of t2t."""
    request = find_request(importlib.import_module(program).main)
    return list_help(request) if request else {}


@pytest.mark.parametrize("program", list_programs())
def test_every_flag_has_help(program: str) -> None:
    flags = list_flags(f"t2t.{program}")
    missing = [name for name, text in flags.items() if not text[:-1] and name != "config"]
    assert flags
    assert not missing
    conditions = re.findall(r"with --(\w+)=", "\n".join(flags.values()), re.IGNORECASE)
    assert {*conditions} <= flags.keys(), "a flag depends on one that the program has not"


@pytest.fixture(scope="module")
def flags_of() -> dict[str, set[str]]:
    """The flags of each program, by the name that `python -m` takes."""
    found = {f"t2t.{name}": {*list_flags(f"t2t.{name}")} for name in list_programs()}
    assert {"config", "workdir", "distributed"} <= found["t2t.train"]
    others = {f"benchmarks.{path.stem}": path for path in (ROOT / "benchmarks").glob("*.py")}
    others["launch/local.py"] = ROOT / "launch" / "local.py"
    options = re.compile(r"add_argument\(\s*\"--([\w-]+)")  # of argparse
    return found | {n: {*options.findall(path.read_text("utf-8"))} for n, path in others.items()}


def split_commands(code: str) -> Iterator[tuple[str, list[str]]]:
    """(program or nothing, flags behind it) of a line."""
    called = (
        r"-m ((?:t2t|benchmarks)\.\w+)|(?:\.sh|--) (t2t\.\w+)|^(t2t) (\w+)|"
        r"(launch/local.py)"
    )
    name, start = "", 0
    for match in re.finditer(called, code):
        yield name, find_flags(code[start : match.start()])
        name = next(filter(None, (match[1], match[2], match[5])), f"t2t.{match[4]}")
        start = match.end()
    yield name, find_flags(code[start:])


def find_flags(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--([A-Za-z][\w.-]*)", text.partition(" | ")[0])


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_programs_and_flags_exist(page: Path, flags_of: dict[str, set[str]]) -> None:
    known = set.union(*flags_of.values()) | OTHER_FLAGS
    fields = flatten(Config())
    for code in read_code(page):
        for program, flags in split_commands(code):
            assert not program or program in flags_of, code
            for flag in flags:
                if flag.startswith("config."):  # capitals stand for any field
                    is_known = flag[7:] in fields or flag.startswith("config.plugin.")
                    assert is_known or flag[7:].isupper(), code
                else:
                    assert flag in (flags_of[program] if program else known), code


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_python_in_the_pages_is_python(page: Path) -> None:
    """Its imports of t2t lead somewhere, too."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("t2t"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), node.module


def read_commands(page: str) -> str:
    """The commands of a page, in order, as one script."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 1
    return "set -euxo pipefail\n" + "\n".join(blocks)


def run_commands(page: str, folder: Path, tiny: Sequence[str]) -> str:
    """Runs the commands of a page as they stand, but for a `python` that makes models tiny.

    Returns what they print. `tiny` are flags of training and sweeps. Packages are not installed.
    """
    bin_folder, home = folder / "bin", folder / "home"
    home.mkdir()
    real = shlex.quote(sys.executable)
    write_program(
        bin_folder / "python",
        "#!/usr/bin/env bash\n"
        'case "${2:-}" in\n'
        # In place of the page's number of steps: two different ones would be refused.
        f't2t.train | t2t.sweep) exec {real} "${{@/#*.steps=*/{STEPS}}}" {" ".join(tiny)} ;;\n'
        f't2t.inspect_heads) exec {real} "$@" --importance=4 ;;\n'
        f'*) exec {real} "$@" ;;\n'
        "esac\n",
    )
    write_program(bin_folder / "pip", "#!/usr/bin/env bash\n")
    environment = os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{folder / 'site'}",
        "HOME": str(home),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    shell = subprocess.Popen(
        ["bash", "-c", read_commands(page)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = shell.communicate(timeout=2400)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
    assert shell.returncode == 0, errors[-5000:]
    return output


@pytest.mark.slow
def test_commands_of_the_tutorial_run(tmp_path: Path) -> None:
    output = run_commands("tutorial.md", tmp_path, TINY)
    assert re.search(
        r"one_head.* is (better|worse|not distinguishable)|No verdict on .*one_head", output
    ), output
    for name in ("first/heads.html", "ablations/report.md", "ablations/report.html"):
        assert (tmp_path / "runs" / name).is_file()


@pytest.mark.slow
def test_commands_for_other_sequences_run(tmp_path: Path) -> None:
    """With noise in place of scikit-learn's images."""
    package = tmp_path / "site" / "sklearn"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "datasets.py").write_text(
        "import types, numpy as np\n"
        "draw = np.random.default_rng(0).integers\n"
        "def load_digits():\n"
        "    images, target = draw(0, 17, (1797, 8, 8)), draw(0, 10, 1797)\n"
        "    return types.SimpleNamespace(images=images.astype(float), target=target)\n"
    )
    page = read_commands("other-sequences.md")  # whose models are small
    tiny = [flag for flag in TINY if flag == STEPS or flag.split("=")[0] not in page]
    output = run_commands("other-sequences.md", tmp_path, tiny)
    assert re.search(r"^exact_match +\d", output, re.MULTILINE), output
    assert not re.search(r"^(bleu|chrf)", output, re.MULTILINE), "they count words"
    assert "entropy of the grammar: 0.5430 nats per event" in output
    assert len(re.findall(r"^perplexity +\d", output, re.MULTILINE)) == 3, output


def test_signatures_on_the_page_of_the_python_interface_are_those_of_the_code() -> None:
    block = (ROOT / "docs" / "api.md").read_text("utf-8").split("```text")[1].split("```")[0]
    shown = re.findall(r"^(t2t|run)\.(\w+)\((.*?)\) ->", block, re.MULTILINE)
    assert {name for owner, name, _ in shown if owner == "t2t"} == {*t2t.__all__}
    for owner, name, arguments in shown:
        signature = inspect.signature(getattr(notebook if owner == "t2t" else Run, name))
        parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        own = [parameter for parameter in parameters if parameter.name != "self"]
        plain = str(signature.replace(parameters=own, return_annotation=signature.empty))
        assert f"({arguments})".replace('"', "'") == plain, name
