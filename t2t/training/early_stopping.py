"""A request to end training before its last step, left in the run directory by another program.

Training obeys it after its next checkpoint, and does not go on while it lies there.
"""

import dataclasses
import json
import logging
from pathlib import Path

from t2t.runtime.distributed import broadcast_from_process_0, is_first
from t2t.storage.atomic_files import write_file
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)

STOPPED_EARLY = 76  # exit status of training that has obeyed


@dataclasses.dataclass(frozen=True)
class StopRequest:
    """What `stop.json` holds."""

    reason: str
    obeyed_at: int | None = None  # the step of the last checkpoint, once training has ended


def request_stop(workdir: Path, reason: str) -> None:
    """Asks training to stop; nothing changes where that was asked before.

    Raises:
        RunError: the run directory cannot be written.
    """
    if not find_path(workdir).exists():
        _write(workdir, StopRequest(reason))


def read_stop_request(workdir: Path) -> StopRequest | None:
    """The request, if there is one.

    Raises:
        RunError: it cannot be read.
    """
    path = find_path(workdir)
    try:
        return StopRequest(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}); remove it to train on") from None


def is_stop_requested(workdir: Path) -> bool:
    """Whether there is a request: one answer for all processes, to be asked by all of them."""
    return broadcast_from_process_0(find_path(workdir).exists())


def obey_stop_request(workdir: Path, step: int) -> None:
    """Says that training has ended for the request, and notes it there for who watches.

    Raises:
        RunError: the request cannot be read or written.
    """
    request = read_stop_request(workdir)
    if request is None:  # removed since; stopping was right when it was decided
        return
    if is_first():
        _write(workdir, dataclasses.replace(request, obeyed_at=step))
    _log.info(
        "stopped early after step %d: %s; remove %s, and the same command continues",
        step, request.reason, find_path(workdir),
    )  # fmt: skip


def find_path(workdir: Path) -> Path:
    """Where the request lies."""
    return workdir / "stop.json"


def _write(workdir: Path, request: StopRequest) -> None:
    path = find_path(workdir)
    try:
        write_file(path, json.dumps(dataclasses.asdict(request), indent=2) + "\n")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
