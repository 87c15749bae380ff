"""The writers in examples/writers, against the packages' offline modes, across a kill."""

import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs import run_python

LOG = """
import os, signal, sys, time
from pathlib import Path
import jax.numpy as jnp
from t2t.config import Config, TrainingConfig
from t2t.config.variants import import_plugins
from t2t.training.metric_writers import open_writers
from t2t.training.report import Report
from t2t.training.step import Metrics

name, first, last, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
import_plugins([f"examples.writers.{name}_writer"])
Path("run").mkdir(exist_ok=True)
training = TrainingConfig(steps=100, log_every=1)
report = Report(Path("run"), training, first, open_writers([name], Config(), Path("run")))
zero = jnp.asarray(0)
for step in range(first + 1, last + 1):
    figures = [jnp.asarray(float(x)) for x in (10 * step + first, 80, 80, 20, 0.5, 0.25)]
    report.add(step, Metrics(*figures, skipped=zero, skipped_in_a_row=zero))
report.flush()
report.validation(last, {"loss": 1.0})
if end == "kill":
    time.sleep(5)  # a client that sends in the background loses what it holds
    os.kill(os.getpid(), signal.SIGKILL)
report.close()  # "stop": as after an error, with steps that no checkpoint has
"""


def read_wandb(folder: Path) -> Iterator[tuple[int, str]]:
    """(step, name) of the rows in W&B's offline files, which are in the format of LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data, place, record = path.read_bytes(), 7, b""
        while place + 7 <= len(data):
            if (left := 32768 - place % 32768) < 7:
                place += left
            _, length, kind = struct.unpack_from("<IHB", data, place)
            record += data[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # whole, or the last part
                row = wandb_internal_pb2.Record.FromString(record)
                names = {item.key or item.nested_key[0]: item for item in row.history.item}
                if "step" in names:
                    step = int(names["step"].value_json)
                    yield from ((step, name) for name in names if "/" in name)
                record = b""


def read_mlflow(folder: Path) -> Iterator[tuple[int, str]]:
    for path in folder.glob("mlruns/*/*/metrics/*/*"):
        for line in path.read_text().splitlines():
            yield int(line.split()[2]), f"{path.parent.name}/{path.name}"


def read_trackio(folder: Path) -> Iterator[tuple[int, str]]:
    code = (
        "from trackio.sqlite_storage import SQLiteStorage as S\n"
        "for run in S.get_runs('t2t'):\n"
        "    for row in S.get_logs('t2t', run):\n"
        "        print(*(f'{row[\"step\"]}:{name}' for name in row if '/' in name))\n"
    )
    environment = os.environ | {"TRACKIO_DIR": str(folder / "trackio")}
    done = run_python("-c", code, environment=environment)
    for pair in done.stdout.split():
        step, _, name = pair.partition(":")
        yield int(step), name


READERS: dict[str, Callable[[Path], Iterator[tuple[int, str]]]] = {
    "wandb": read_wandb,
    "mlflow": read_mlflow,
    "trackio": read_trackio,
}


@pytest.mark.extras
@pytest.mark.parametrize(
    ("name", "end"),
    # W&B's offline file is empty after SIGKILL.
    [("wandb", "stop"), ("mlflow", "kill"), ("trackio", "kill")],
)
def test_each_step_stands_once_where_training_continues(
    name: str, end: str, tmp_path: Path
) -> None:
    pytest.importorskip(name, reason=f"needs {name}, of the extra `writers`")
    environment = os.environ | {
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HOME": str(tmp_path),
    }
    for first, last, how in ((0, 7, end), (5, 9, "stop")):
        arguments = "-c", LOG, name, str(first), str(last), how
        done = run_python(*arguments, folder=tmp_path, environment=environment)
        assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    found = sorted(READERS[name](tmp_path))
    assert [step for step, figure in found if figure == "train/loss"] == [*range(1, 10)]
    assert [step for step, figure in found if figure == "validation/loss"] == [7, 9]
