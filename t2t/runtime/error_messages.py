"""Messages of errors that are not bugs: one line ends the program, without a traceback."""

import errno
import re

from absl import flags

from t2t.runtime.jax_settings import explain_jax_error
from t2t.storage.paths import client_errors, describe_error, first_line

_OF_JAX = ("JaxRuntimeError", "XlaRuntimeError")
_OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|out[ _]of[ _]memory", re.IGNORECASE)
_UNANSWERED = re.compile(
    "UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|heartbeat|coordination service|NCCL|nccl|Gloo|gloo"
)


def explain(error: Exception) -> str | None:
    """Returns the message of an error that is the user's or the system's; None: it is a bug."""
    if type(error).__module__.split(".")[0] == "t2t" and isinstance(
        error, ValueError | RuntimeError
    ):
        return str(error)
    if (what := _find_memory_fault(error)) is not None:
        return f"out of memory{what}; {_advise_on_memory()}"
    if _is_lost_peer(error):
        return f"another process or the network did not answer: {first_line(error)}"
    if isinstance(error, OSError) and error.errno == errno.EBADF and not error.filename:
        return "standard input or output is closed; redirect it, for example to a file"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    is_timeout = isinstance(error, TimeoutError) and not error.strerror
    if is_timeout or isinstance(error, client_errors()):
        return f"the bucket cannot be used: {describe_error(error)}"
    return describe_error(error) if isinstance(error, OSError) else explain_jax_error(error)


def _is_lost_peer(error: Exception) -> bool:
    """Returns whether JAX raised it since a collective failed, or its coordination service."""
    is_known = _is_kind(error, *_OF_JAX) and bool(_UNANSWERED.search(str(error)))
    return is_known and _find_memory_fault(error) is None


def _find_memory_fault(error: Exception) -> str | None:
    """Returns what could not be allocated, in brackets if it is known; None: it is another error.

    JAX says RESOURCE_EXHAUSTED of all devices, CPUs included; CUDA's libraries have other words.
    """
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, MemoryError):
        return f" ({lines[0]})" if lines[0] else ""
    if not _is_kind(error, *_OF_JAX) or not _OUT_OF_MEMORY.search(str(error)):
        return None
    return f" ({lines[0].removeprefix('RESOURCE_EXHAUSTED: ').rstrip('.: ')})"


def _advise_on_memory() -> str:
    """Returns those remedies of docs/gpu.md for which the program has flags."""
    if "config" in flags.FLAGS:
        return (
            "use --config.mesh.fsdp=N on several devices, or in a new run "
            "--config.training.accumulation_steps=2; see docs/gpu.md"
        )
    sizes = [f"--{name}" for name in ("batch_size", "beam_size") if name in flags.FLAGS]
    smaller = f"a smaller {' or '.join(sizes)}" if sizes else "shorter sentences"
    return f"use {smaller}, or more devices; see docs/gpu.md"


def is_unanswered(error: Exception) -> bool:
    """Returns whether another process or a bucket did not answer, so that a new start may help."""
    if _is_lost_peer(error):
        return True
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, client_errors()):
        status = getattr(cause, "code", None)  # of HTTP
        broken = _is_kind(cause, "ClientConnectionError")  # aiohttp's
        return broken or (isinstance(status, int) and status >= 500)
    return isinstance(cause, TimeoutError) or bool(_UNANSWERED.search(str(error.__cause__)))


def _is_kind(error: BaseException, *names: str) -> bool:
    """Returns whether an error is of a class of such a name, whose package may not be imported."""
    return any(kind.__name__ in names for kind in type(error).__mro__)
