"""Shared by all programs: flags, logging, signals, exit statuses."""

import contextlib
import functools
import io
import logging
import os
import re
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

from t2t.config.flags import combine_repeated, define_request, read_request
from t2t.config.requests import HOSTS, Request, find_request, list_flags, list_help
from t2t.config.variants import trust_plugins
from t2t.runtime.child_programs import end_with_parent
from t2t.runtime.error_messages import explain, is_unanswered
from t2t.runtime.jax_settings import check_precision, skip_absent_accelerators

flags.disclaim_key_flags()  # --help shows a program the flags that it defines by these functions

INTERRUPTED = 75  # exit status: stopped by a signal; the same command continues
TIMED_OUT = 124  # exit status: what a program waited for did not come, as of the command timeout
# Exit status: another process, or the storage, did not answer; the same command continues. It is
# that of SIGABRT, by which JAX ends a process that has lost another.
LOST = 134
LEAVING = 60.0  # seconds that a process which failed waits for the others to end, too
LEAVING_LOST = 10.0  # the same if it failed because it lost another
_interruptions: list[int] = []  # signals that have raised KeyboardInterrupt


def run(main: Callable[..., int | None], alone: str = "one process does its work") -> None:
    """Parses the flags, calls `main`, and exits with the status that it returns.

    The type of the argument of `main`, if it has one, is the request whose fields are the flags.
    `alone` is why a program whose request has no `Hosts` does not take them.

    A wrong flag, a `ValueError` or `RuntimeError` that t2t defines, any `OSError`, errors of a
    bucket's client and those that a variable of JAX causes end the program with only their message
    and status 2, or `LOST` if something did not answer. SIGINT and SIGTERM end it with status
    `INTERRUPTED`. Any other exception is a bug and keeps its traceback, with status 1. One of
    several processes ends `LEAVING` seconds later at the latest, whatever the others do.
    """
    _prepare_streams()
    logging.captureWarnings(True)
    skip_absent_accelerators()
    _handle_signals()
    if not end_with_parent():
        sys.exit(INTERRUPTED)
    sys.excepthook = _report_fault
    kind = find_request(main)
    texts = list_help(kind or Request) if _asks_for_help(sys.argv) else {}
    define_request(kind or Request, texts)
    operands = "".join(flag.operands for flag in list_flags(kind or Request))
    flags.FLAGS.set_gnu_getopt(bool(operands))  # flags may follow operands

    def call(arguments: Sequence[str]) -> int | None:
        _, *given = arguments
        if given and not operands:
            return _fail(f"{' '.join(given)}: not a flag; see --help")
        if operands and not given:
            return _fail(f"{operands} is missing; see --help")
        logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
        for library in ("jax", "matplotlib", "sacrebleu"):
            logging.getLogger(library).setLevel(logging.WARNING)
        # Orbax logs through these; its errors are raised and reported by t2t.
        for library in ("absl", "asyncio"):
            logging.getLogger(library).setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        try:
            check_precision()
            status = main(read_request(kind, given)) if kind else main()
            sys.stdout.flush()
            return status
        except (KeyboardInterrupt, Exception) as error:
            status = _end(error)
            if status is None:
                raise
            return status

    app.run(call, flags_parser=functools.partial(_parse, alone=alone))


def _end(error: KeyboardInterrupt | Exception) -> int | None:
    """Reports what ended the program; returns the exit status, or None if it is a bug."""
    _settle_output()
    message: str | None
    # Some packages turn a KeyboardInterrupt into an ImportError.
    if isinstance(error, KeyboardInterrupt) or _interruptions:
        message, status = "interrupted", INTERRUPTED
    elif isinstance(error, BrokenPipeError) and not error.filename:
        message, status = "", 1  # nobody reads the output any more, as in `... | head`
    elif message := explain(error):
        status = LOST if is_unanswered(error) else 2
    else:
        status = 1
    _leave_in_time(status)
    if message:
        print(message, file=sys.stderr)
    return None if message is None else status


def _prepare_streams() -> None:
    """Opens the standard streams that are missing, and makes those of output UTF-8.

    Without a stream (`>&-`) a checkpoint that is opened could be number 1, and receive what is
    printed. Input and output that are missing are errors when they are used; messages then go
    nowhere.

    Output is UTF-8 in every locale, since what is written to files is read as UTF-8. It overrules
    PYTHONIOENCODING, too. Names of files that are no UTF-8 are written as they are.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opposite = os.O_RDONLY if number == 1 else os.O_WRONLY
            found = os.open(os.devnull, opposite)  # the lowest that is free: mostly this number
            os.set_inheritable(found, found == number)
            setattr(sys, name, open(found, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _settle_output() -> None:
    """Flushes the output; drops it if that fails, since Python's exit would fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_in_time(status: int) -> None:
    """Makes one of several processes exit with `status` after at most a minute.

    JAX would wait five minutes at its exit for the other processes, which may wait for this one,
    and then abort it. Processes that raise the same error leave together, and sooner.
    """
    if any(flags.FLAGS[name].value for name in HOSTS if name in flags.FLAGS):
        timer = threading.Timer(LEAVING_LOST if status == LOST else LEAVING, os._exit, [status])
        timer.daemon = True
        timer.start()


def _handle_signals() -> None:
    """Makes SIGTERM and SIGINT raise `KeyboardInterrupt`; an ignored SIGINT stays ignored.

    asyncio replaces Python's default SIGINT handler, so a Ctrl-C within Orbax would be lost. It
    leaves other handlers alone, such as this one. Python ignores what is raised in a callback of
    the garbage collector (JAX has one), so a `KeyboardInterrupt` there is raised again later.
    """
    report = sys.unraisablehook

    def repeat_interrupt(ignored: Any) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            seen = len(_interruptions)
            threading.Thread(target=_interrupt_again, args=[seen], daemon=True).start()
        else:
            report(ignored)

    sys.unraisablehook = repeat_interrupt
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    del frame
    _interruptions.append(number)
    raise KeyboardInterrupt


def _interrupt_again(seen: int) -> None:
    """Sends SIGTERM, more and more rarely, until there are more interruptions than those `seen`.

    One that comes just before the main thread begins to wait does not wake it.
    """
    for attempt in range(10):
        time.sleep(0.1 * 2**attempt)
        if len(_interruptions) > seen:
            return
        os.kill(os.getpid(), signal.SIGTERM)


def _report_fault(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Reports an exception that nobody caught, but for one of TensorStore's threads.

    When a checkpoint cannot be written, each of its other files complains about Orbax's event loop.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread or str(error) != "Event loop is closed":
        sys.__excepthook__(kind, error, trace)


def _asks_for_help(arguments: Sequence[str]) -> bool:
    return any(re.fullmatch(r"--?(h|help\w*|\?)(=.*)?", argument) for argument in arguments)


def _parse(arguments: Sequence[str], alone: str) -> Sequence[str]:
    spelled = ["--help" if argument == "-h" else argument for argument in arguments]
    try:
        parsed: Sequence[str] = flags.FLAGS(spelled)
        combine_repeated(spelled)
        if "trust_plugins" in flags.FLAGS:
            trust_plugins(flags.FLAGS.plugins or (), copies=flags.FLAGS.trust_plugins)
        return parsed
    except SystemExit:
        if not _asks_for_help(spelled):
            raise
        _settle_output()
        sys.exit(0)  # absl ends with 1
    except flags.UnrecognizedFlagError as error:
        sys.exit(_fail(_explain_unknown(error, alone)))
    except flags.Error as error:
        sys.exit(_fail(f"{error}; see --help"))
    except Exception as error:
        if (message := explain(error)) is None:
            raise
        sys.exit(_fail(message))


def _explain_unknown(error: flags.UnrecognizedFlagError, alone: str) -> str:
    """Returns the message for an unknown flag; one that others know names what to do instead."""
    if error.flagname in HOSTS:
        return f"{error.flagvalue}: start this program in one process: {alone}"
    section, _, field = error.flagname.removeprefix("no").partition(".")
    name = field.rpartition(".")[2]
    if section != "config":
        return f"{error}; see --help"
    if "config" in flags.FLAGS and flags.FLAGS["config"].present:  # it has --noFIELD of bools alone
        return (
            f"--{error.flagname}: no field that is True or False is called {field}; write "
            f"--config.{field}=VALUE"
        )
    if "config" in flags.FLAGS:  # ml_collections defines --config.FIELD when it reads --config
        return f"--{error.flagname} overrides a field of --config; add --config=RECIPE"
    if (field.startswith("decoding.") or field == "plugins") and name in flags.FLAGS:
        return f"--{error.flagname}: write --{name}; this program reads the config of the run"
    return f"--{error.flagname}: this program reads the config of the run; leave this out"


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 2
