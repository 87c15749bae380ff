"""Training from text to checkpoint; a stopped run resumes with bitwise equal results."""

import json
import os
import random
import runpy
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import pytest

from t2t.api import notebook, train_run
from t2t.api.evaluate_run import evaluate
from t2t.api.run_summary import describe_run
from t2t.config import files, fitted_config, rules
from t2t.config.fields import Config, ConfigError, MeshConfig, ModelConfig
from t2t.config.files import load_config
from t2t.data.corpus import DataError
from t2t.data.tokenizer import VocabularyError
from t2t.evaluation.requests import EvaluationRequest
from t2t.runtime import command_line
from t2t.training import resume
from t2t.training.provenance import read_ledger
from t2t.training.resume import open_run
from t2t.training.run_directory import list_steps
from t2t.training.stop_request import STOPPED_EARLY, request_stop
from tests import programs
from tests.moments import Moment, signal_at
from tests.tiny_training import (
    STEPS,
    assert_same_training,
    change,
    make_config,
    make_small_mesh,
    read_figures,
    write_recipe,
)

pytestmark = pytest.mark.usefixtures("one_device", "shared_programs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the text files and the token cache."""
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def config(folder: Path) -> Config:
    return make_config(folder)


@pytest.fixture(scope="module")
def uninterrupted(config: Config, folder: Path) -> Path:
    """A run that was never stopped."""
    assert train_run.train(config, folder / "uninterrupted")
    return folder / "uninterrupted"


def test_config_is_read_once_and_checked_once(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By training of a recipe, and by an evaluation with another search than the run's."""
    called = Counter[str]()

    def count(module: ModuleType, name: str) -> None:
        original = getattr(module, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            called[name] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(module, name, counted)

    for module in (files, fitted_config):
        count(module, "build_config")
    count(rules, "check_fields")
    recipe = change(config, training={"steps": 5, "warmup_steps": 1})
    called.clear()
    assert train_run.train(fitted_config.check_config(recipe), tmp_path / "run")
    assert called == {"build_config": 1, "check_fields": 1}
    called.clear()
    for checkpoint in ("best", "avg:1"):
        request = EvaluationRequest(
            (tmp_path / "run",), checkpoint, split="validation", decoding={"beam_size": 1}
        )
        assert evaluate(request).passport.decoding["beam_size"] == 1
    assert called == {"build_config": 2, "check_fields": 2}


def test_run_directory_holds_the_whole_run_whose_loss_falls(
    uninterrupted: Path, config: Config
) -> None:
    names = {path.name for path in uninterrupted.iterdir()}
    kept = {"config.json", "vocab", "checkpoints", "metrics.jsonl", "tensorboard", "lock"}
    assert names == kept | {"ledger.jsonl"}
    assert load_config(uninterrupted / "config.json") == config
    assert list_steps(uninterrupted)[-2:] == [STEPS - 5, STEPS]
    for split in ("train", "validation"):
        losses = [line[f"{split}/loss"] for line in read_figures(uninterrupted, f"{split}/")]
        assert len(losses) == STEPS / 5
        assert losses[-1] < 0.8 * losses[0]
    for steps in (STEPS, STEPS - 5):  # which changes nothing
        assert train_run.train(change(config, training={"steps": steps}), uninterrupted)
    assert len(read_ledger(uninterrupted)) == 1


@pytest.mark.equality
def test_stopped_and_continued_run_is_the_same_bit_for_bit(
    uninterrupted: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also checks that a resumed run does not initialise a state before it reads its checkpoint."""
    for until in (STEPS // 2, STEPS // 4, None):  # it has passed the second one
        assert train_run.train(config, tmp_path / "run", until=until)
        monkeypatch.setattr(train_run, "init_state", None)
    assert_same_training(tmp_path / "run", uninterrupted, STEPS, "validation/")
    starts = read_ledger(tmp_path / "run")
    assert [start["step"] for start in starts] == [0, STEPS // 2]
    assert [corpus["pairs"] for corpus in starts[0]["corpora"]["train"]] == [200, 80]
    figures = [read_figures(path, "train/") for path in (tmp_path / "run", uninterrupted)]
    assert figures[0] == figures[1]


def test_run_in_stages_says_what_it_reads(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """tests/test_mixture.py stops such a run around a border."""
    data = {"train_weights": (), "stages": ("6: 1,0", "16: 0,2", "1,1")}
    staged = change(config, data=data, training={"steps": 20})
    said = list[str]()
    with caplog.at_level("INFO"):
        for steps in (5, 7, 20):
            caplog.clear()
            assert train_run.train(change(staged, training={"steps": steps}), tmp_path / "run")
            cut = f"training.steps={steps} ends before the last {1 if steps > 6 else 2} of data.sta"
            assert (cut in caplog.text) == (steps < 20)
            said += caplog.messages
    reads = dict.fromkeys(text.split(":")[0] for text in said if text.startswith("training reads"))
    assert [*reads] == [
        f"training reads in {steps}"
        for steps in ("steps 1 to 6", "steps 7 to 16", "step 17 and later")
    ]
    shown, a = " ".join(describe_run(tmp_path / "run").split()), config.data.train_src[0]
    assert (
        f"steps 7 to 16: 0.0% of pairs 0.0% of sub-words 0.0% of predicted each 0 times {a}"
        in shown
    )


@pytest.mark.parametrize("began", [True, False])
def test_run_keeps_the_precision_that_its_first_machine_chose(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, began: bool,
) -> None:  # fmt: skip
    """Where it cannot, it says so: auto is another dtype on another kind of device."""
    caplog.set_level("WARNING", resume.__name__)
    for steps, multiplies in ((5, began), (10, not began)):
        monkeypatch.setattr(resume, "multiplies_bfloat16", lambda found=multiplies: found)
        assert train_run.train(change(config, training={"steps": steps}), tmp_path)
        dtype = load_config(tmp_path / "config.json").model.dtype
        assert dtype == ("mixed" if began else "auto")
        assert "and did in" not in caplog.text
    if not began:
        starts = read_ledger(tmp_path)
        starts[-1]["compute"]["activations"] = "bfloat16"  # as on a GPU
        (tmp_path / "ledger.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in starts))
        with jax.set_mesh(make_small_mesh(MeshConfig())):
            assert resume.settle_dtype(tmp_path, config).model.dtype == "auto"
        assert "computes in float32 here, and did in bfloat16 before: the run goes" in caplog.text


@pytest.mark.slow
def test_recurrent_model_trains_and_continues(config: Config, tmp_path: Path) -> None:
    """Stops and continues training, with validation and BLEU."""
    model = ModelConfig(kind="rnn", num_layers=1, d_model=16, dropout=0.1)
    for steps in (STEPS // 2, STEPS):
        training = {"steps": steps, "translate_every": STEPS // 2}
        changed = change(config, model=vars(model), training=training)
        assert train_run.train(changed, tmp_path / "run")
    lines = read_figures(tmp_path / "run", "validation/")
    assert lines[-1]["validation/loss"] < 0.8 * lines[0]["validation/loss"]
    scored = [line["step"] for line in lines if "validation/bleu" in line]
    assert scored == [STEPS // 2, STEPS]


def test_program_that_is_told_to_stop_ends_with_a_status_of_its_own(
    config: Config, tmp_path: Path
) -> None:
    write_recipe(config, tmp_path / "recipe.py")
    run = tmp_path / "run"
    run.mkdir()
    request_stop(run, "enough")
    done = programs.run("t2t.train", f"--config={tmp_path}/recipe.py", f"--workdir={run}")
    assert done.returncode == STOPPED_EARLY, done.stderr
    end = f"stopped early after step 0: enough; to continue, remove {run}/stop.json and run the"
    assert done.stderr.splitlines()[-1].startswith(end)


WRONG = {
    "training.steps='9'": "training.steps='9' is not of type int",
    "model.norm='batch'": "model.norm='batch' is unknown; use one of layer, rms, none, or name ",
    "model.max_positions=9": "model.max_positions=9 has no effect with model.position='sinusoidal'",
    "training.frozen=('no',)": "training.frozen has 'no', which is no parameter's name; use names",
    "plugins=('.own',)": "plugins: '.own' is not the name of a module; write one as PACKAGE.MODULE",
    "data.test_src='no.en'": "data.test_src='no.en' and data.test_tgt='' go together; give both",
}


@pytest.mark.parametrize(("written", "message"), WRONG.items(), ids=WRONG)
def test_notebook_and_program_refuse_the_same_before_a_directory_exists(
    config: Config, tmp_path: Path, written: str, message: str
) -> None:
    write_recipe(config, tmp_path / "base.py")
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        f"from runpy import run_path\n\n\ndef get_config():\n"
        f"    config = run_path({str(tmp_path / 'base.py')!r})['get_config']()\n"
        f"    config.{written}\n    return config\n"
    )
    with pytest.raises(ConfigError) as caught:
        notebook.train(runpy.run_path(str(recipe))["get_config"](), tmp_path / "run")
    done = programs.run("t2t.train", f"--config={recipe}", f"--workdir={tmp_path / 'run'}")
    assert done.stderr.splitlines()[-1] == str(caught.value)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data": {"train_src": ("no.en", "no.en")}}, DataError, "no.en does not exist"),
        ({"data": {"test_src": "no.en", "test_tgt": "no.de"}}, DataError, "no.en does not exist"),
        ({"tokenizer": {"vocab_size": 9000}}, ConfigError, r"vocab_size=9000 is more than"),
        ({"data": {"max_length": 2}}, DataError, "none of 280 sentence pairs is left"),
        ({"mesh": {"data": 3}}, ConfigError, "does not cover 1 devices"),
        (
            {"training": {"translate_every": 5}, "decoding": {"strategy": "sampling"}},
            ConfigError,
            "scores the best output of beam search",
        ),
    ],
    ids=str,
)
def test_bad_input_is_an_error_that_does_not_bind_the_next_attempt(
    config: Config, tmp_path: Path, changes: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        train_run.train(change(config, **changes), tmp_path / "run")
    open_run(tmp_path / "run", config)


def test_vocabulary_of_another_text_is_refused(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    with pytest.raises(DataError, match="none of 280 sentence pairs is left"):
        train_run.train(change(config, data={"max_length": 2}), tmp_path / "run")
    for text in (config.data.train_src[0], config.data.train_tgt[0]):
        Path(text).write_text(Path(text).read_text() + "one more\n")
    with pytest.raises(VocabularyError, match="was trained on another text; remove it, to train"):
        train_run.train(config, tmp_path / "run")


@pytest.mark.slow
def test_run_stopped_by_signals_is_the_same_bit_for_bit(
    uninterrupted: Path, config: Config, tmp_path: Path
) -> None:
    """Signals arrive while one checkpoint is renamed, and while another is begun."""
    write_recipe(config, tmp_path / "recipe.py")
    flags = [f"--config={tmp_path}/recipe.py", f"--workdir={tmp_path}/run"]
    for signal_and_moment in (
        ["SIGINT", "os.rename", "checkpoints/10$"],
        ["SIGTERM", "os.mkdir", r"checkpoints/20\..*/params"],
    ):
        done = programs.run("tests.moments", *signal_and_moment, "t2t.train", *flags)
        assert done.returncode == command_line.INTERRUPTED, done.stderr
        *_, line = done.stderr.splitlines()
        step = list_steps(tmp_path / "run")[-1]
        end = f"stopped and saved after step {step} of {STEPS}; run the same command to continue"
        assert line == end
    assert list_steps(tmp_path / "run")[-1] < STEPS
    assert train_run.train(config, tmp_path / "run")
    assert_same_training(tmp_path / "run", uninterrupted, STEPS, "validation/")


def train_on_one_device(config: Config, workdir: Path, *moment: str) -> None:
    """Trains in a process that is to be killed, by itself at the given moment if there is one."""
    if moment:
        signal_at(Moment(*moment), signal.SIGKILL)
    with mock.patch.object(train_run, "make_mesh", make_small_mesh):
        train_run.train(config, workdir)


STAGES = "9: 1,0", "17: 0.5,2", "26: 0,1", "1,1"
MEND = "b: objective=denoising prefix=<b>"

# In the order in which they occur in a run.
KILLS = [
    ("os.rename", r"run/config\.json$"),
    ("os.rename", r"vocab/joint\.model$"),
    ("open", r"cache/.*/tgt\.ids$"),  # in the middle of a cache
    ("os.rename", r"cache/\w+$"),
    ("os.mkdir", r"checkpoints/10\..*/training"),  # being created
    ("open", r"checkpoints/15\..*/params.*/commit_success"),  # written, not yet complete
    ("os.rename", r"checkpoints/20$"),  # complete, but not renamed
    ("shutil.rmtree", r"checkpoints/15$"),  # being removed for a newer one
    ("open", r"metrics\.jsonl$"),
]


@pytest.mark.slow
def test_run_killed_at_bad_moments_is_the_same_bit_for_bit(
    uninterrupted: Path, config: Config, tmp_path: Path
) -> None:
    """Kills each start at the next moment of the list, and lets the last one finish."""
    config = change(config, data={"cache_directory": f"{tmp_path}/cache"})
    newest = 0
    for moment in KILLS:
        process = programs.call(train_on_one_device, config, tmp_path / "run", *moment)
        process.join()
        assert process.exitcode == -signal.SIGKILL, moment
        before, newest = newest, max(list_steps(tmp_path / "run"), default=0)
        assert newest >= before
    assert newest < STEPS
    assert train_run.train(config, tmp_path / "run")
    assert_same_training(tmp_path / "run", uninterrupted, STEPS, "validation/")


def find_newest(workdir: Path) -> int:
    return max(list_steps(workdir), default=0)


def train_and_die(config: Config, workdir: Path, seconds: float) -> None:
    """Trains in a process that kills itself some time after its first new checkpoint."""
    newest = find_newest(workdir)

    def die() -> None:
        while find_newest(workdir) == newest:
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()
    train_on_one_device(config, workdir)


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        {},
        {"subword_sampling": 0.2, "packed_length": 32, "train_weights": (), "stages": STAGES},
        {"mixture": ("a: prefix=<a>", MEND), "train_weights": (), "stages": ("9: 0,1", "1,0.5")},
        {"objective": "span_corruption", "train_src": (), "validation_src": ""},
        {"objective": "lm", "packed_length": 32, "train_src": (), "validation_src": ""},
    ],
    ids=str,
)
def test_run_killed_at_any_moment_is_the_same_bit_for_bit(
    data: dict[str, Any], config: Config, tmp_path: Path
) -> None:
    """Kills at random times; T2T_SEED=... repeats those of a failure, up to timing."""
    kind = "decoder_only" if data.get("objective") == "lm" else "transformer"
    config = change(config, data=data, model={"kind": kind})
    other = change(config, data={"cache_directory": f"{tmp_path}/cache"})
    assert train_run.train(other, tmp_path / "uninterrupted")
    seed = int(os.environ.get("T2T_SEED", time.time_ns() % 10**6))
    print(f"T2T_SEED={seed}")
    draw, newest, killed = random.Random(seed), 0, 0
    for _ in range(4):
        process = programs.call(train_and_die, config, tmp_path / "run", draw.uniform(0, 0.3))
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        finished = find_newest(tmp_path / "run")
        killed += process.exitcode != 0 and newest < finished < STEPS
        assert finished >= newest
        newest = finished
    assert killed
    assert train_run.train(config, tmp_path / "run")
    assert_same_training(tmp_path / "run", tmp_path / "uninterrupted", STEPS, "validation/")
