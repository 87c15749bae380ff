"""The rules of the layout: which room may import which, who owns a library, names and sizes."""

import ast
import re
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The rooms of t2t in the order in which a sentence pair passes through them: a room imports only
# rooms above it. A new file has to be given its place here.
ROOMS = """
config files config_rules config_json batch precision sharding hosts compilation_cache
data/phrasebook/text data/phrasebook/lexicon data/phrasebook/entries data/phrasebook/numbers
data/phrasebook/nouns data/phrasebook/noun_phrases data/phrasebook/verbs data/phrasebook/clauses
data/phrasebook/splits data/phrasebook/sampler_clauses data/phrasebook/sampler_sentences
data/phrasebook/generation data/phrasebook
data/corpus data/sources data/tokenizer data/cache
data/plan data/packing data/pipeline
model/masks model/position model/dropout model/products model/layers
model/fused_attention model/attention model/blocks
model/encoder_decoder model/transformer model/heads model/recurrence model/rnn model/kinds
model/flops
training/schedule training/loss training/state training/step
training/run_directory training/disk_room training/interruption training/checkpoint training/report
training/early_stop training/loop
training/ledger training/validation
decoding/search decoding/sampling decoding/grouping decoding/cutting decoding/batch_search
decoding/translator
decoding/ctranslate2_format decoding/ctranslate2_translator decoding/backend
evaluation/exact_match evaluation/bleu evaluation/significance evaluation/verdict
evaluation/by_length evaluation/records evaluation/arms evaluation/curves
evaluation/head_roles evaluation/attention_page
evaluator watching scans
inspection/head_measures
planning/chips planning/network planning/hlo planning/hlo_collectives planning/hlo_cost
planning/topology planning/workload planning/compiled planning/estimate planning/planner
planning/report
cli
experiments/rows experiments/sweep_directory experiments/progress experiments/scheduler
experiments/plots experiments/pages experiments/report
""".split()

# Programs: they put rooms together, and nothing imports them.
BINARIES = """
train evaluate translate compare show attention sweep plan prepare inspect_data doctor export
""".split()

# What a room does not import although it lies above: (room or folder) -> (rooms or folders).
STRANGERS = {
    "model": ("data",),
    "training/schedule": ("data", "model"),
    "training/loss": ("data", "model"),
    "decoding": ("training", "data"),
    "decoding/search": ("model",),
    "decoding/sampling": ("model",),
    "evaluation": ("data", "model", "training", "decoding", "sharding", "hosts"),
    "planning": ("decoding", "evaluation", "hosts"),
    "experiments": ("decoding", "sharding", "hosts", "planning", "cli"),
    **{
        f"planning/{room}": ("data", "model", "training", "sharding")
        for room in "chips network hlo hlo_collectives hlo_cost topology estimate".split()
    },
    "cli": ("data", "model", "training", "decoding", "evaluation", "sharding", "hosts", "planning"),
}
EXCEPTIONS = {  # sentences become ids and return
    (f"decoding/{room}", "data/tokenizer")
    for room in ("translator", "ctranslate2_translator", "backend")
}

# A library that only these rooms or folders know, so that it can be replaced there.
OWNERS = {
    "optax": ("training",),
    "orbax": ("training/checkpoint",),
    "grain": ("data/pipeline",),
    "sentencepiece": ("data/tokenizer",),
    "tensorflow_datasets": ("data/sources", "prepare"),
    "tensorflow": (),
    "sacrebleu": ("evaluation/exact_match", "evaluation/bleu", "evaluation/significance"),
    "scipy": ("evaluation/significance",),
    "matplotlib": ("evaluation/by_length", "evaluation/curves", "experiments/plots"),
    "jinja2": ("evaluation/attention_page",),
    "sacremoses": ("evaluation/bleu",),
    "ml_collections": ("cli",),
    "ctranslate2": ("decoding/ctranslate2_format", "decoding/ctranslate2_translator"),
}

# Requirements that no file imports, with the one that does.
INDIRECT_REQUIREMENTS = {
    "array-record": "tensorflow_datasets",
    "importlib-resources": "tensorflow_datasets",
}

# What one program needs that not everybody runs; it says how to install it, or does without.
OPTIONAL_REQUIREMENTS = {"ctranslate2"}  # another engine

FILES = sorted((ROOT / "t2t").rglob("*.py"))
SOURCES = [path for path in FILES if path.name != "__init__.py"]
ALL_FILES = [
    path
    for folder in ("t2t", "configs", "launch", "benchmarks", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "t2t").with_suffix("").as_posix()


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names of all that the file imports, anywhere; `a.b` for `from a import b`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_rooms(path: Path) -> Iterator[str]:
    """`t2t.data.plan.make_plan` is the room data/plan; a package alone is none."""
    for name in imported_modules(path):
        if name.split(".")[0] in ("t2t", "configs"):
            parts = name.split(".")[1:]
            known = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
            yield next((room for room in known if room in ROOMS + BINARIES), name)


def lies_in(room: str, places: tuple[str, ...]) -> bool:
    return any(room == place or room.startswith(f"{place}/") for place in places)


@pytest.mark.parametrize("path", SOURCES, ids=room_of)
def test_room_has_a_place_in_the_order(path: Path) -> None:
    assert room_of(path) in ROOMS + BINARIES, "give the new room its place in tests/test_layout.py"


@pytest.mark.parametrize("path", SOURCES, ids=room_of)
def test_room_imports_only_rooms_above_it(path: Path) -> None:
    room = room_of(path)
    above = ROOMS if room in BINARIES else ROOMS[: ROOMS.index(room)]
    assert [name for name in imported_rooms(path) if name not in above] == []


@pytest.mark.parametrize("path", SOURCES, ids=room_of)
def test_room_does_not_know_strangers(path: Path) -> None:
    room = room_of(path)
    strangers = tuple(s for place, ss in STRANGERS.items() if lies_in(room, (place,)) for s in ss)
    known = [name for name in imported_rooms(path) if (room, name) not in EXCEPTIONS]
    assert [name for name in known if lies_in(name, strangers)] == []


@pytest.mark.parametrize("path", SOURCES, ids=room_of)
def test_library_stays_with_its_owner(path: Path) -> None:
    libraries = {name.split(".")[0] for name in imported_modules(path)}
    strays = [
        library
        for library in libraries & OWNERS.keys()
        if not lies_in(room_of(path), OWNERS[library])
    ]
    assert strays == []


@pytest.mark.parametrize("path", SOURCES, ids=room_of)
def test_modules_of_flax_stay_in_the_model(path: Path) -> None:
    if not lies_in(room_of(path), ("model",)):
        flax = {name for name in imported_modules(path) if name.split(".")[0] == "flax"}
        used = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "nnx"
        }
        assert flax <= {"flax.nnx"}
        assert used <= {"GraphDef"}, "parameters are a plain tree, and the structure is opaque"


def test_packages_hold_nothing_but_what_they_offer_of_their_rooms() -> None:
    inits = [path for path in FILES if path.name == "__init__.py"]
    bodies = {path: ast.parse(path.read_text("utf-8")).body for path in inits}
    assert [path for path, body in bodies.items() if any(map(is_code, body))] == []


def is_code(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) != "__all__"
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not (docstring or isinstance(node, ast.ImportFrom))


def test_recipes_import_only_the_config() -> None:
    recipes, sweeps = ((ROOT / "configs").glob(pattern) for pattern in ("*.py", "sweeps/*.py"))
    assert {room for path in recipes for room in imported_rooms(path)} <= {"config"}
    known = {room for path in sweeps for room in imported_rooms(path)}
    assert known <= {"config", "experiments/rows"}


@pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_reads_well(path: Path) -> None:
    text = path.read_text("utf-8")
    length = text.count("\n")
    assert not re.search(r"utils?|helpers?|common|misc", path.stem), "name what lives there"
    assert length <= 350
    assert re.findall(r"# *(?:TODO|FIXME|XXX)\b", text) == []
    long = [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno > 70
    ]
    assert long == []


def test_requirements_are_what_is_imported() -> None:
    owners = packages_distributions()
    folders = ("t2t", "configs", "launch", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    imported = {name.split(".")[0] for path in files for name in imported_modules(path)}
    needed = {normalise(dist) for name in imported for dist in owners.get(name, [])}
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    named = {normalise(re.split(r"[<>=\[ ]", line)[0]) for line in lines if line[:1].isalpha()}
    assert needed - named == OPTIONAL_REQUIREMENTS, "imported, but not required"
    assert named - needed - INDIRECT_REQUIREMENTS.keys() == set(), "required, but not imported"


def normalise(distribution: str) -> str:
    """PyPI's rule: ml_collections is ml-collections."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
