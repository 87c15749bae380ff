"""What breaks in a run directory is said, and what was whole stays so; whose run it is."""

import contextlib
import functools
import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from t2t.config.files import save_config
from t2t.training.checkpoint import restore_params
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.resume import keep_source, open_run
from t2t.training.run_directory import RunError, list_steps, lock_run
from tests import tiny_training
from tests.full_disk import full_disk
from tests.training.toy_run import (
    CONFIG,
    assert_same,
    make_state,
    plain,
    restore_state,
    write_run,
)

change = functools.partial(tiny_training.change, CONFIG)

# Where its files break, Orbax leaves unfinished work behind, which complains when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module", autouse=True)
def _collect() -> Iterator[None]:
    """No complaint is left for the tests of other modules."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("checkpoints") / "run"
    return write_run(folder, {10: {"loss": 3.0}, 20: {"loss": 1.0}, 30: {"loss": 2.0}})


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.parametrize(
    "names",
    [{"manifest.ocdbt", "metrics"}, pytest.param(None, marks=pytest.mark.slow)],
    ids=["a few", "all"],
)
def test_each_file_cut_short_is_noticed_or_does_no_harm(run: Path, names: set[str] | None) -> None:
    folder = run / "checkpoints" / "30"
    noticed = {}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for file in [path for path in files if names is None or path.name in names]:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        try:
            assert_same(plain(restore_state(run)), plain(make_state(30)))
        except RunError as error:
            noticed[file.relative_to(folder).parts[0]] = str(error)
        file.write_bytes(content)
    assert set(noticed) == {"params", "training", "metrics"}
    for message in noticed.values():
        assert message.startswith(f"checkpoint 30 of {run} cannot be read (")
        assert message.endswith(f"move {folder} elsewhere to go on with the one before it, 20")


def test_damage_of_the_only_checkpoint_is_an_error(tmp_path: Path) -> None:
    workdir = write_run(tmp_path / "run", {5: None})
    shutil.rmtree(workdir / "checkpoints" / "5" / "params")
    with pytest.raises(RunError, match=r"checkpoint 5 .* there is none before it"):
        restore_params(workdir, "last")


def test_half_written_checkpoint_is_ignored_and_removed(run: Path) -> None:
    half = run / "checkpoints" / "40.orbax-checkpoint-tmp"
    shutil.copytree(run / "checkpoints" / "30", half)
    shutil.rmtree(half / "training")
    assert restore_params(run, "last")[1] == "30"
    assert int(plain(restore_state(run)).step) == 30
    assert not half.exists()


def test_full_disk_is_an_error_that_leaves_the_last_checkpoint(run: Path) -> None:
    checkpoints = Checkpoints(run, CONFIG)
    with full_disk():
        checkpoints.save(make_state(40))
        with pytest.raises(RunError, match=r"written .* space .* continues from checkpoint 30"):
            checkpoints.close()
    assert_same(plain(restore_state(run)), plain(make_state(30)))
    write_run(run, {40: None})
    assert_same(plain(restore_state(run)), plain(make_state(40)))


def test_space_is_checked_before_anything_is_written(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(run)._replace(free=1000)
    with contextlib.closing(Checkpoints(run, CONFIG)) as checkpoints:
        checkpoints.save(make_state(40))
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path: usage)
            with pytest.raises(RunError, match=r"MB are needed, .* continues from checkpoint 40"):
                checkpoints.save(make_state(50))
        checkpoints.save(make_state(60))
    assert list_steps(run) == [10, 20, 30, 40, 60]


def test_failure_in_the_background_is_noticed_by_the_next_save(run: Path) -> None:
    checkpoints = Checkpoints(run, CONFIG)
    with full_disk():
        checkpoints.save(make_state(40))
        with pytest.raises(RunError, match=r"cannot be written .* continues from checkpoint 30"):
            checkpoints.save(make_state(50))
    checkpoints.close()
    assert list_steps(run) == [10, 20, 30]


def test_run_of_another_config_is_refused_with_the_fields(run: Path) -> None:
    other = change(model={"d_model": 256}, data={"batch_tokens": 30_000}, mesh={"tensor": 2})
    before = (run / "config.json").read_bytes()
    with pytest.raises(RunError) as caught:
        open_run(run, other)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{run} was written with another config:"
    assert [line.strip() for line in lines[1:-1]] == [
        "model.d_model: 512 -> 256",
        "data.batch_tokens: 25000 -> 30000",
    ]
    assert "choose another --workdir" in lines[-1]
    assert (run / "config.json").read_bytes() == before


def test_source_of_fine_tuning_is_kept_and_no_other_is_taken(run: Path) -> None:
    config = change(training={"init_from": "old:best"})
    save_config(config, run / "config.json")
    assert keep_source(run, CONFIG) == config
    open_run(run, keep_source(run, CONFIG))
    with pytest.raises(RunError, match=r"training\.init_from: 'old:best' -> 'other'"):
        open_run(run, keep_source(run, change(training={"init_from": "other"})))
    assert keep_source(run / "new", CONFIG) is CONFIG


def test_vocabulary_alone_binds_what_made_it(tmp_path: Path) -> None:
    open_run(tmp_path, CONFIG)
    (tmp_path / "vocab").mkdir()
    open_run(tmp_path, change(model={"d_model": 256}, data={"max_length": 100}))
    for field, value in {
        "tokenizer.vocab_size": 500, "tokenizer.path": "a.model", "data.train_weights": (1.0, 9.0),
        "data.temperature": 5.0, "data.direction_tags": "both", "data.filters": ("script",),
    }.items():  # fmt: skip
        section, _, name = field.partition(".")
        with pytest.raises(RunError, match=rf"another config:\n  {field}: .* -> .*\nchoose"):
            open_run(tmp_path, change(**{section: {name: value}}))


TEXT = {"source": "text", "train_src": ("a",), "train_tgt": ("b",)}
GERMAN = {"source": "multi30k", "src_language": "en", "tgt_language": "de"}
ANYTHING = {
    "training": {"steps": 7, "log_every": 3, "bleu_every": 2000},
    "data": {"cache_directory": "elsewhere"},
    "checkpoints": {"keep_last": 9},
    "decoding": {"beam_size": 1},
    "mesh": {"fsdp": 2},
}


@pytest.mark.parametrize(
    ("before", "after", "has_bleu", "refused"),
    [
        ({}, ANYTHING, False, ""),
        ({}, {"decoding": {"batch_size": 7}}, True, ""),
        ({}, {"decoding": {"beam_size": 9}}, True, r"decoding\.beam_size: 4 -> 9"),
        ({"data": TEXT}, {"data": TEXT | {"train_src": ("moved/a",)}}, False, ""),
        # Files of text are read alike whatever their languages, which measures ask for.
        ({"data": TEXT}, {"data": TEXT | {"tgt_language": "zho_Hans"}}, False, ""),
        (
            {"data": TEXT | {"tgt_language": "zho_Hans"}},
            {"data": TEXT},
            True,
            r"data\.tgt_language: 'zho_Hans' -> ''",
        ),
        # A source that knows its languages needs no names of them.
        ({"data": GERMAN}, {"data": {"source": "multi30k"}}, False, ""),
        (
            {"data": GERMAN},
            {"data": GERMAN | {"tgt_language": "fr"}},
            False,
            r"data\.tgt_language: 'de' -> 'fr'",
        ),
        *(
            ({}, {"training": {field: value}}, False, f"training.{field}: .*")
            for field, value in {
                "ema_decay": 0.9,
                "frozen": ("a",),
                "rate_factors": ("a=1",),
            }.items()
        ),
        *(
            ({"training": end}, {"training": {**end, "steps": 5000}}, False, "training.steps: .*")
            for end in ({"schedule": "cosine"}, {"cooldown_steps": 10})
        ),
    ],
    ids=str,
)
def test_only_what_changes_no_parameter_and_no_score_may_change(
    run: Path, before: Any, after: Any, has_bleu: bool, refused: str
) -> None:
    if has_bleu:
        write_run(run, {40: {"loss": 3.0, "bleu": 20.0}})
    save_config(change(**before), run / "config.json")
    message = rf"another config:\n  {refused}\nchoose"
    with pytest.raises(RunError, match=message) if refused else contextlib.nullcontext():
        open_run(run, change(**after))


@pytest.mark.parametrize("workdir", ["file", "file/run"])
def test_run_directory_that_cannot_be_made_is_an_error(tmp_path: Path, workdir: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match=f"{workdir} cannot be written"):
        open_run(tmp_path / workdir, CONFIG)
    with (
        pytest.raises(RunError, match=f"{workdir} cannot be written"),
        lock_run(tmp_path / workdir),
    ):
        pass


def test_checkpoints_without_their_config_are_not_continued(run: Path) -> None:
    (run / "config.json").unlink()
    with pytest.raises(RunError, match=r"config\.json is missing, without which checkpoint 30"):
        open_run(run, CONFIG)
