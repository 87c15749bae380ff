"""The ledger records at each start the environment, text, code and plugins of a run."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from t2t.config.fields import Config
from t2t.config.files import load_config, save_config
from t2t.config.variants import import_plugins
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.evaluation.load_models import RunModel
from t2t.evaluation.requests import ModelRequest
from t2t.training import provenance
from t2t.training.provenance import (
    find_revision,
    hash_code,
    identify_code,
    read_ledger,
    record_start,
    summarize_ledger,
)
from t2t.training.resume import check_run, check_vocabulary
from t2t.training.run_directory import RunError
from tests.tiny_run import PAIRS, make_run

CORPUS = ListCorpus("toy", PAIRS)


@pytest.fixture(scope="module")
def vocabulary(run: Path) -> Vocabulary:
    return Vocabulary.load(run / "vocab")


def record(workdir: Path, vocabulary: Vocabulary, step: int = 0, **corpora: ListCorpus) -> None:
    split = {name: [corpus] for name, corpus in ({"train": CORPUS} | corpora).items()}
    record_start(workdir, Config(seed=3), vocabulary, split, step)


def add_checkpoint(workdir: Path) -> None:
    (workdir / "checkpoints" / "5").mkdir(parents=True)
    save_config(Config(), workdir / "config.json")


def test_start_is_recorded_with_what_made_it(
    tmp_path: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_something")
    monkeypatch.setenv("SECRET_TOKEN", "not to be seen")
    monkeypatch.setattr(provenance, "PACKAGES", ("jax", "one-that-is-not-installed"))
    record(tmp_path, vocabulary)
    [entry] = read_ledger(tmp_path)
    wanted = {
        "config": {"seed": 3},
        "seed": 3,
        "step": 0,
        "vocabulary": vocabulary.fingerprint(),
        "compute": {"activations": "float32", "products": "float32 operands at full precision"},
        "device": "cpu",
        "devices": 8,
        "processes": 1,
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
    }
    assert {name: entry[name] for name in wanted} == wanted
    assert entry["corpora"]["train"] == [
        {"name": "toy", "pairs": len(PAIRS), "sha256": CORPUS.fingerprint()}
    ]
    assert entry["environment"]["XLA_FLAGS"] == "--xla_something"
    assert sys.orig_argv[0] in entry["command"]
    assert "not to be seen" not in (tmp_path / "ledger.jsonl").read_text()


def test_origin_of_the_parameters_is_in_every_later_start(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    corpora, origin = {"train": [CORPUS]}, {"run": "old", "checkpoint": "best-3", "sha256": "ab"}
    record_start(tmp_path, Config(), vocabulary, corpora, 0, initial=origin)
    record(tmp_path, vocabulary, step=40)
    record(tmp_path, vocabulary, step=50)
    assert [entry["initial"] for entry in read_ledger(tmp_path)] == [origin] * 3
    record(tmp_path, vocabulary)  # from the start, without an origin
    assert "initial" not in read_ledger(tmp_path)[-1]


def test_damaged_line_is_left_out(
    tmp_path: Path, vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b'{"date": "\xff\n')
    record(tmp_path, vocabulary, step=40)
    assert [entry["step"] for entry in read_ledger(tmp_path)] == [40]
    assert "ledger.jsonl, line 1: left out, since it is damaged" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"), [("JAX_DEFAULT_PRNG_IMPL", "rbg"), ("JAX_THREEFRY_PARTITIONABLE", "0")]
)
def test_run_is_not_continued_with_another_random_generator(
    name: str, value: str, tmp_path: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    record(tmp_path, vocabulary)
    monkeypatch.setenv(name, value)
    check_run(tmp_path, Config(), {})  # without checkpoints any will do
    add_checkpoint(tmp_path)
    with pytest.raises(RunError, match=f"{name}={value}: .*set it to that"):
        check_run(tmp_path, Config(), {})
    record(tmp_path, vocabulary)
    check_run(tmp_path, Config(), {})


def test_score_names_the_run_from_its_first_start(tmp_path: Path, vocabulary: Vocabulary) -> None:
    assert summarize_ledger(tmp_path) is None
    for step in (0, 40):
        record(tmp_path, vocabulary, step)
    first, last = read_ledger(tmp_path)
    traced = summarize_ledger(tmp_path)
    assert traced == {"started": first["date"], "starts": 2} | {
        name: last[name] for name in ("revision", "changed", "code", "seed", "command")
    }


def test_run_without_a_ledger_is_continued_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_run(tmp_path, Config(), {"train": [CORPUS]})
    assert caplog.text == ""
    add_checkpoint(tmp_path)
    check_run(tmp_path, Config(), {"train": [CORPUS]})
    assert "has no ledger, so changes of its text cannot be detected" in caplog.text


def test_vocabulary_that_was_replaced_is_refused(tmp_path: Path, vocabulary: Vocabulary) -> None:
    other = Vocabulary(vocabulary.src, Tokenizer(vocabulary.src.model, "of its own"))
    record(tmp_path, vocabulary)
    check_vocabulary(tmp_path, other)  # no checkpoint depends on it
    add_checkpoint(tmp_path)
    check_vocabulary(tmp_path, vocabulary)
    with pytest.raises(RunError, match="vocab is not the vocabulary of this run's checkpoints"):
        check_vocabulary(tmp_path, other)


def test_ledger_that_cannot_be_written_is_an_error(tmp_path: Path, vocabulary: Vocabulary) -> None:
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(RunError, match=r"ledger\.jsonl cannot be written"):
        record(tmp_path, vocabulary)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one committed program."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    (tmp_path / "t2t").mkdir()
    (tmp_path / "t2t" / "train.py").write_text("pass\n")
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init"], ["add", "."], [*identity, "commit", "--message=First"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True, capture_output=True)
    monkeypatch.setattr(provenance, "SOURCE_ROOT", tmp_path)
    return tmp_path


def test_revision_says_what_differs_from_it_and_tells_two_changes_apart(checkout: Path) -> None:
    clean = find_revision()
    assert len(clean["revision"]) == 40
    assert clean["changed"] == []
    codes = [clean["code"]]
    for name, text in (("train.py", "1\n"), ("train.py", "2\n"), ("new.py", ""), ("new.py", "x")):
        (checkout / "t2t" / name).write_text(text)
        codes.append(find_revision()["code"])
    assert len(set(codes)) == len(codes)
    (checkout / "runs").mkdir()
    (checkout / "runs" / "result").touch()  # made by the code, no part of it
    changed = {"changed": ["M t2t/train.py", "?? t2t/new.py"], "code": codes[-1]}
    assert find_revision() == clean | changed
    (checkout / "t2t" / "new.py").unlink()
    (checkout / "t2t" / "train.py").write_text("pass\n")
    (checkout / "t2t" / "__pycache__").mkdir()
    (checkout / "t2t" / "__pycache__" / "train.pyc").touch()
    assert find_revision()["code"] == clean["code"]


@pytest.mark.parametrize("reason", ["part of another checkout", "no git"])
def test_without_a_checkout_of_its_own_there_is_no_revision(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    expected: dict[str, Any] = {"revision": None, "changed": None}
    (checkout / "REVISION").write_text("$Format:%H$\n")  # as in a clone
    if reason == "no git":
        monkeypatch.setenv("PATH", "")
    else:
        monkeypatch.setattr(provenance, "SOURCE_ROOT", checkout / "t2t")
    found = find_revision()
    assert len(found.pop("code")) == 64
    assert found == expected


def test_installed_package_knows_its_revision_and_code(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "configs" / "sweeps").mkdir(parents=True)
    (checkout / "configs" / "base.py").write_text("a recipe\n")
    (checkout / "configs" / "sweeps" / "rows.py").write_text("rows\n")
    code = find_revision()["code"]
    installed = tmp_path / "site-packages"
    shutil.copytree(checkout / "t2t", installed / "t2t")
    shutil.copytree(checkout / "configs", installed / "t2t" / "configs")
    (installed / "t2t" / "REVISION").write_text("1234-dirty\n")
    (installed / "configs").mkdir()
    (installed / "configs" / "other.py").touch()  # of another package
    monkeypatch.setattr(provenance, "SOURCE_ROOT", installed)
    assert find_revision() == {"revision": "1234-dirty", "changed": None, "code": code}


NAMES = "some_variants", "some_package", "some_package.parts"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of Python with a module and a package, which are imported."""
    place = tmp_path / "code"
    (place / "some_package").mkdir(parents=True)
    (place / "some_variants.py").write_text("one = 1\n")
    (place / "some_package" / "__init__.py").touch()
    (place / "some_package" / "parts.py").write_text("two = 2\n")
    monkeypatch.syspath_prepend(place)
    import_plugins(NAMES)
    yield place
    for name in NAMES:
        sys.modules.pop(name, None)


def test_source_of_plugins_is_kept_and_whoever_reads_the_run_notices_an_edit(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path / "run")
    config = load_config(run / "config.json")
    config.plugins = NAMES
    save_config(config, run / "config.json")
    vocabulary = Vocabulary.load(run / "vocab")
    copies = run / "plugins"
    (copies / "some_package").mkdir(parents=True)
    (copies / "some_variants.py").write_text("one =\n")  # of a start that failed
    (copies / "some_package" / "removed.py").touch()
    record_start(run, config, vocabulary, {"train": [ListCorpus("toy", PAIRS)]}, step=0)
    kept = {path.relative_to(copies).as_posix(): path.read_bytes() for path in copies.rglob("*.py")}
    assert kept == {
        "some_variants.py": b"one = 1\n",
        "some_package/__init__.py": b"",
        "some_package/parts.py": b"two = 2\n",
    }
    request = ModelRequest((run,))
    RunModel(request)
    code = hash_code(NAMES)
    before = identify_code(NAMES, ["t2t.evaluation.load_models"])
    assert caplog.text == ""
    (folder / "some_variants.py").write_text("one = 3\n")
    RunModel(request)
    assert "plugins: some_variants.py is not the source that" in caplog.text
    assert "add --trust_plugins" in caplog.text
    assert hash_code(NAMES) != code
    after = identify_code(NAMES, ["t2t.evaluation.load_models"])
    assert after["versions"] == before["versions"]
    assert after["code"]["t2t"] == before["code"]["t2t"]
    assert after["code"]["plugins"] != before["code"]["plugins"]


@pytest.mark.parametrize(
    ("plugin", "source", "helper"),
    [
        ("plugin", "import one", "one.py"),
        ("plugin", "import parts.one as x", "parts/one.py"),  # without an __init__.py
        ("plugin", "def later():\n    from parts.deep.one import x", "parts/deep/one.py"),
        ("plugin", "from parts import *", "parts/one.py"),
        ("plugin", "import importlib\nimportlib.import_module('one')", "one.py"),
        ("own.plugin", "import importlib as i\ni.import_module('.one', __package__)", "own/one.py"),
        ("plugin", "import second", "one.py"),  # which the second one imports
        ("own.plugin", "from . import one", "own/one.py"),
        ("own.inner.plugin", "from ..one import x", "own/one.py"),
        ("own.plugin", "", "own/__init__.py"),
        ("own", "", "own/any/one.py"),
    ],
)
def test_the_code_of_a_plugin_includes_the_users_modules_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: str, source: str, helper: str
) -> None:
    path = f"{plugin.replace('.', '/')}{'/__init__' * (plugin == 'own')}.py"
    files = {path: f"{source}\n", "second.py": "import one\n", helper: "x = 1\n"}
    site, other = "site-packages/installed.py", "no_import.py"
    files[path] += "import json, installed, t2t.config.fields\n"
    for name, text in (files | {site: "", other: ""}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "modules", dict(sys.modules))
        import_plugins([plugin])
        code = hash_code([plugin])
        for name in (site, other):
            (tmp_path / name).write_text("y = 2\n")
        assert hash_code([plugin]) == code
        (tmp_path / helper).write_text("x = 2\n")
        assert hash_code([plugin]) != code
