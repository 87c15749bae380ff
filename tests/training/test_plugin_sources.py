"""A run keeps the source of its plugins, and a reader notices that it was edited."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from t2t.config.files import load_config, save_config
from t2t.config.variants import import_plugins
from t2t.data.corpus import ListCorpus
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.load_models import (
    RunModel,
    identify_code,
)
from t2t.evaluation.requests import ModelRequest
from t2t.training.provenance import (
    read_sources,
    record_start,
    save_plugins,
)
from tests.tiny_run import PAIRS, make_run

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


def test_source_of_modules_and_packages_is_kept_as_it_can_be_imported(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "some_package" / "removed.py").touch()
    save_plugins(tmp_path / "run", NAMES)
    (folder / "some_package" / "removed.py").unlink()
    save_plugins(tmp_path / "run", NAMES)
    names = {"some_variants.py", "some_package/__init__.py", "some_package/parts.py"}
    copies = tmp_path / "run" / "plugins"
    kept = {path.relative_to(copies).as_posix(): path.read_bytes() for path in copies.rglob("*.py")}
    assert kept == read_sources(NAMES)
    assert set(kept) == names


def test_edited_plugin_is_noticed_by_whoever_reads_the_run(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path / "run")
    config = load_config(run / "config.json")
    config.plugins = ("some_variants",)
    save_config(config, run / "config.json")
    vocabulary = Vocabulary.load(run / "vocab")
    (run / "plugins").mkdir()
    (run / "plugins" / "some_variants.py").write_text("one =\n")  # of a start that failed
    record_start(run, config, vocabulary, {"train": [ListCorpus("toy", PAIRS)]}, step=0)
    request = ModelRequest((run,))
    RunModel(request)
    before = identify_code(config.plugins, ["t2t.evaluation.load_models"], ("jax",))
    assert caplog.text == ""
    (folder / "some_variants.py").write_text("one = 3\n")
    RunModel(request)
    assert "plugins: some_variants.py is not the source that" in caplog.text
    assert "add --trust_plugins" in caplog.text
    after = identify_code(config.plugins, ["t2t.evaluation.load_models"], ("jax",))
    assert {name for name, value in after.items() if value != before[name]} == {"plugins"}
