"""Runs in a bucket: gcsfs, TensorStore and Orbax talk to a server on this machine.

A run there is killed, continued, and compared bit for bit with an uninterrupted one in a folder.
"""

import gc
import re
import signal
import sys
from pathlib import Path

import pytest

from t2t.storage.paths import make_path
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import RunError, list_steps
from tests import programs
from tests.bucket_runs import assert_same_run, move_data, train_on_one_device
from tests.programs import ROOT, Program
from tests.tiny_training import STEPS, change, make_config, read_figures, write_recipe

# In the order in which they occur in a run: requests at whose arrival the run is killed. Those in
# which a bucket differs from a folder: it renames nothing, so files and folders appear one by one,
# and disappear one by one.
KILLS = [
    r'"name": "\S*run/vocab/joint\.model"',
    r'"name": "\S*cache/\w+/cache\.json"',  # all files of a token cache but the last
    r'"name": "\S*run/checkpoints/15/commit_success\.txt"',  # written, not yet complete
    r"DELETE \S*run/checkpoints/10/",  # being removed for a newer one
]


@pytest.mark.slow
def test_run_killed_at_bad_moments_is_the_same_bit_for_bit(bucket: Path, tmp_path: Path) -> None:
    """Kills each start at the next moment of the list, and lets the last one finish."""
    config = make_config(tmp_path)
    moved = move_data(config, tmp_path, bucket)
    train_on_one_device(config, str(tmp_path / "run"))
    newest = 0
    for moment in KILLS:
        process = programs.call(train_on_one_device, moved, str(bucket / "run"), moment)
        process.join()
        assert process.exitcode == -signal.SIGKILL, moment
        before, newest = newest, max(list_steps(bucket / "run"), default=0)
        assert newest >= before, moment
    assert newest < STEPS
    train_on_one_device(moved, str(bucket / "run"))
    assert_same_run(bucket / "run", tmp_path / "run", STEPS)
    files = ({path.name for path in (place / "run").iterdir()} for place in (bucket, tmp_path))
    assert next(files) == next(files)
    assert not [*tmp_path.glob("gs:*")]
    (bucket / "run" / "checkpoints" / str(STEPS) / "params" / "manifest.ocdbt").unlink()
    with pytest.raises(RunError, match=rf"checkpoint {STEPS} .* cannot be read .* the one before"):
        restore_params(bucket / "run", "last")
    gc.collect()  # Orbax leaves tasks behind, which complain; here the message is captured


def run(*command: str, given: str = "") -> str:
    """Runs a program on one device; returns its output, or fails with its messages."""
    done = programs.run(*command, given=given.encode())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_program_works_on_a_run_in_a_bucket(bucket: Path, tmp_path: Path) -> None:
    config = change(make_config(tmp_path), training={"steps": 10}, checkpoints={"keep_last": 3})
    config = move_data(config, tmp_path, bucket)
    write_recipe(config, tmp_path / "recipe.py")
    recipe, workdir = f"--config={tmp_path}/recipe.py", f"--workdir={bucket}/run"
    run("t2t.train", recipe, workdir)
    split = "--split=validation"
    saved = f"{bucket}/averaged"
    run("t2t.evaluate", workdir, split, "--checkpoint=avg:2", f"--save_params={saved}")
    run("t2t.tune_decoding", workdir, split, "--checkpoint=last,avg:2")
    assert f"{bucket}/out/scores.json" in run(
        "t2t.evaluate", f"--workdir={saved}", split, "--checkpoint=last",
        f"--output={bucket}/out/scores.json",
    )  # fmt: skip
    watch = "t2t.watch", workdir, "--checkpoint=last,avg:2"
    watched = run(*watch)
    assert len(re.findall(r"^ *(5|10) ", watched, re.MULTILINE)) == 3
    assert run(*watch) == watched  # which finds all scores
    [best] = re.findall(r"the best parameters: (.*)", watched)
    assert "checkpoints" in run("t2t.show", f"{bucket}/run")
    assert "checkpoint" in run("t2t.show", best)
    plot = f"{bucket}/out/lengths.svg"
    operands = f"{bucket}/run", f"{bucket}/out/scores.json"
    run("t2t.compare", *operands, split, f"--plot={plot}")
    assert "<svg" in make_path(plot).read_text()
    run("t2t.inspect_heads", workdir, "--importance=2", "--checkpoint=last", "two dogs run")
    run(
        "t2t.inspect_data", recipe, f"--vocabulary={bucket}/run/vocab",
        f"--output={bucket}/out/data.json",
    )  # fmt: skip
    assert run("t2t.translate", workdir, given="two dogs\n").count("\n") == 1
    (tmp_path / "rows.py").write_text(
        "from t2t.sweeps.sweep_rows import Row\n\n\n"
        "def get_rows(base):\n"
        "    return [Row('base'), Row('no_norm', {'model.norm': 'none'})]\n"
    )
    sweep = "t2t.sweep", recipe, f"--sweep={tmp_path}/rows.py", f"--workdir={bucket}/sweep"
    report = run(*sweep)
    verdict = r"^no_norm .*\n +(better|worse|not distinguishable|no verdict)"
    assert re.search(verdict, report, re.MULTILINE)
    assert run(*sweep) == report  # which finds all rows
    models = f"{workdir},{bucket}/run", "--checkpoint=5,10"
    run("t2t.evaluate", *models, split)
    run("t2t.export", workdir, "--checkpoint=last", f"--output={bucket}/exported")
    checked = programs.run("t2t.doctor", workdir)
    assert checked.returncode in (0, 1), checked.stderr  # 1: less than 10 MB/s
    assert re.search(r"^bandwidth: +writes \d+ MB/s", checked.stdout, re.MULTILINE)
    assert {path.name for path in bucket.iterdir()} > {"run", "averaged", "exported", "out"}
    assert not [*ROOT.glob("gs:*")]


# The second process is killed between checkpoints.
TRAIN_AND_DIE = """
import os, runpy, sys
from jax.experimental import multihost_utils
reached = multihost_utils.reached_preemption_sync_point

def die(step):
    if step == 12 and "--process_id=1" in sys.argv:
        os.kill(os.getpid(), 9)
    return reached(step)

multihost_utils.reached_preemption_sync_point = die
runpy.run_module("t2t.train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_two_processes_prepare_and_train_in_a_bucket_and_survive_a_loss(
    bucket: Path, tmp_path: Path
) -> None:
    config = change(make_config(tmp_path), mesh={"data": 2})
    write_recipe(move_data(config, tmp_path, bucket), tmp_path / "recipe.py")
    launch = ["launch/local.py", "--processes=2", "--devices=1", "--", sys.executable, "-m"]
    flags = [f"--config={tmp_path}/recipe.py", f"--workdir={bucket}/run"]
    assert "epoch:" in run(*launch, "t2t.prepare", *flags)
    vocabulary = (bucket / "run" / "vocab" / "joint.model").read_bytes()
    with Program(*launch[:-1], "-c", TRAIN_AND_DIE, *flags) as first:
        assert first.wait() != 0
    assert re.search(r"\[0\] exited (?!2\n)\d+", first.messages)  # 2: a start would be of no use
    assert "training the vocabulary" not in first.messages
    newest = list_steps(bucket / "run")[-1]
    assert 0 < newest < STEPS
    run(*launch, "t2t.train", *flags)
    assert list_steps(bucket / "run")[-1] == STEPS
    assert [line["step"] for line in read_figures(bucket / "run", "train/")] == [
        *range(5, STEPS + 1, 5)
    ]
    assert (bucket / "run" / "vocab" / "joint.model").read_bytes() == vocabulary
