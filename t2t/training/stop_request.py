"""Early stopping at the request of another program, such as `t2t.watch`.

The request is the file `stop.json` in the run directory. Training stops after its next checkpoint,
and does not start again before the file is removed.
"""

import dataclasses
import json
import logging
from pathlib import Path

from t2t.runtime.distributed import broadcast_from_process_0, is_first
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)

STOP_FILE = "stop.json"
STOPPED_EARLY = 76  # exit status of training that stopped for a request


@dataclasses.dataclass(frozen=True)
class StopRequest:
    """The contents of `stop.json`."""

    reason: str
    obeyed_at: int | None = None  # step of the last checkpoint; None until training has stopped


def is_stop_requested(workdir: Path) -> bool:
    """Returns whether there is a request; all processes must call it and get the same answer."""
    return broadcast_from_process_0((workdir / STOP_FILE).exists())


def request_stop(workdir: Path, reason: str) -> None:
    """Writes a request to stop training, unless there is one already; or raises `RunError`."""
    if not (workdir / STOP_FILE).exists():
        _log.info("asking training to stop: %s", reason)
        _write(workdir, StopRequest(reason))


def read_stop_request(workdir: Path) -> StopRequest | None:
    """Returns the request, or None; an empty file, as `touch` makes it, is one, too.

    Raises:
        RunError: the request cannot be read.
    """
    path = workdir / STOP_FILE
    try:
        text = path.read_text("utf-8")
        return StopRequest(**json.loads(text)) if text.strip() else StopRequest("no reason given")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}); remove it to continue training") from None


def record_stop(workdir: Path, step: int) -> None:
    """Logs that training stopped for the request, and writes the step to `stop.json`.

    Raises:
        RunError: the request cannot be read or written.
    """
    request = read_stop_request(workdir)
    if request is None:  # removed after the decision to stop
        return
    if is_first():
        _write(workdir, dataclasses.replace(request, obeyed_at=step))
    _log.info(
        "stopped early after step %d: %s; to continue, remove %s and run the same command",
        step, request.reason, workdir / STOP_FILE,
    )  # fmt: skip


def _write(workdir: Path, request: StopRequest) -> None:
    path = workdir / STOP_FILE
    with explain_write_errors(RunError, path):
        write_file(path, json.dumps(dataclasses.asdict(request), indent=2) + "\n")
