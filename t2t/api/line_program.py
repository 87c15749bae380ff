"""Shared by t2t.translate and t2t.generate: flags, and lines in and out."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from absl import flags

from t2t.config.fields import ConfigError
from t2t.decoding.bulk import BATCHES_TOGETHER, find_inputs, read_part
from t2t.runtime.command_line import define_bulk
from t2t.storage.open_text import open_text, unpack
from t2t.storage.paths import make_path

if TYPE_CHECKING:  # imported in `process_lines`, so that --help is quick
    from t2t.api.line_translator import LineTranslator

flags.disclaim_key_flags()  # --help shows a program the flags that it defines by these functions


def define_lines() -> None:
    """Defines the flags of lines in and out."""
    flags.DEFINE_integer(
        "n_best", 1, "Outputs per line; above 1 each is preceded by the line's number."
    )
    flags.DEFINE_bool(
        "scores", False, "Print log-probability divided by length penalty before the text."
    )
    flags.DEFINE_integer(
        "read_ahead",
        None,
        "Lines that are read before they are processed together; 1: each line from a pipe is "
        f"answered at once. Default: {BATCHES_TOGETHER} batches, or 1 on a terminal.",
        lower_bound=1,
    )
    define_bulk(10_000)


class LiveText:
    """Writes a text to a terminal while it grows."""

    def __init__(self, held: int = 0):
        """`held` characters at the end wait, since they may begin a stop string."""
        self._held, self._shown = held, ""

    def show(self, text: str) -> None:
        """Writes what is new and will stay; U+FFFD may become another character."""
        text = text[: len(text) - self._held].rstrip("\ufffd")
        if text.startswith(self._shown):
            _write(text[len(self._shown) :])
            self._shown = text

    def finish(self, line: str) -> None:
        """Writes the rest of the final line."""
        fits = line.startswith(self._shown)
        _write(line[len(self._shown) :] if fits else f"\n{line}")
        self._shown = ""


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def process_lines(
    make: Callable[[], "LineTranslator"], *, prefixes: str = "", live: LiveText | None = None
) -> int:
    """Processes the lines of standard input, or files, as the flags say; returns the exit status.

    Args:
        make: creates the translator; called after the flags are checked.
        prefixes: file of prefixes, or "".
        live: writes single lines while they grow, if standard output is a terminal. Empty lines
            that are typed are then skipped.

    Raises:
        ConfigError: flags exclude each other, or name files that do not exist.
    """
    from t2t.api.line_translator import translate_bulk, translate_lines
    from t2t.decoding.translation import format_lines

    values = flags.FLAGS
    in_bulk = values["input"].present
    for name in ("output", "part", "shard_lines"):
        if values[name].present and not in_bulk:
            raise ConfigError(f"--{name} is for --input; add it, or leave this out")
    for name in ("prefixes", "read_ahead"):
        if in_bulk and name in values and values[name].value:
            raise ConfigError(f"--{name} is for standard input; leave it out with --input")
    part = read_part(values.part)
    inputs = find_inputs(values.input, values.output) if in_bulk else {}
    with contextlib.ExitStack() as stack:
        starts = prefixes and stack.enter_context(open_text(make_path(prefixes)))
        translator = make()
        if inputs:
            translate_bulk(translator, inputs, part, values.shard_lines, values.scores)
            return 0
        interactive = sys.stdin.isatty()
        lines = _prompt_lines() if interactive else unpack(sys.stdin.buffer, "standard input")
        found = translate_lines(
            translator,
            filter(bytes.strip, lines) if interactive and live else lines,
            read_ahead=1 if interactive else values.read_ahead,
            prefixes=starts or None,
        )
        if live and sys.stdout.isatty() and not (values.scores or translator.is_numbered):
            translator.watch(live.show)
        for number, each in enumerate(found, start=1):
            line = format_lines(number, each, translator.is_numbered, values.scores)
            (live or LiveText()).finish(line)
    return 0


def _prompt_lines() -> Iterator[bytes]:
    """Yields the lines typed on a terminal, until Ctrl-D or Ctrl-C."""
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.buffer.readline()
        except KeyboardInterrupt:
            line = b""
        if not line:
            print(file=sys.stderr)
            return
        yield line
