"""`process_lines`: the lines of t2t.translate and t2t.generate, in and out."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from t2t.config.field_types import PositiveInt
from t2t.decoding.bulk import Bulk, find_inputs, read_part
from t2t.storage.open_text import open_text, unpack
from t2t.storage.paths import make_path

if TYPE_CHECKING:  # imported in `process_lines`, so that --help is quick
    from t2t.api.line_translator import LineTranslator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(Bulk):
    """Lines of standard input, or of files, and what is printed for each."""

    n_best: PositiveInt = 1  # outputs per line; above 1 each is preceded by the line's number
    scores: bool = False  # print log-probability divided by length penalty before the text
    # lines that are read before they are processed together; 1: each line from a pipe is answered
    # at once. Default: 16 batches, or 1 on a terminal
    read_ahead: PositiveInt | None = None

    def list_problems(self) -> Iterator[str]:
        """Yields what is for standard input."""
        yield from super().list_problems()
        for name in ("prefixes", "read_ahead"):
            if self.input is not None and getattr(self, name, None):
                yield f"--{name} is for standard input; leave it out with --input"


class LiveText:
    """Writes a text to a terminal while it grows."""

    def __init__(self, held: int = 0):
        """`held` characters at the end wait, since they may begin a stop string.

        So does white space there, which an output does not end in.
        """
        self._held, self._shown = held, ""

    def show(self, text: str) -> None:
        """Writes what is new and will stay; U+FFFD may become another character."""
        text = text.rstrip("\ufffd")
        text = text[: max(len(text) - self._held, 0)].rstrip()
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
    request: Lines,
    make: Callable[[], "LineTranslator"],
    *,
    prefixes: str = "",
    live: LiveText | None = None,
) -> int:
    """Processes the lines of standard input, or files; returns the exit status.

    Args:
        request: the files, and what is printed for each line.
        make: creates the translator; called after the files are found.
        prefixes: file of prefixes, or "".
        live: writes single lines while they grow, if standard output is a terminal. Empty lines
            that are typed are then skipped.

    Raises:
        ConfigError: a file does not exist, or the output cannot be written.
    """
    from t2t.api.line_translator import translate_bulk, translate_lines
    from t2t.decoding.translation import format_lines

    part = read_part(request.part)
    inputs = find_inputs(request.input, request.output) if request.input is not None else {}
    with contextlib.ExitStack() as stack:
        starts = prefixes and stack.enter_context(open_text(make_path(prefixes)))
        translator = make()
        if inputs:
            translate_bulk(translator, inputs, part, request.shard_lines, request.scores)
            return 0
        interactive = sys.stdin.isatty()
        lines = _prompt_lines() if interactive else unpack(sys.stdin.buffer, "standard input")
        found = translate_lines(
            translator,
            filter(bytes.strip, lines) if interactive and live else lines,
            read_ahead=1 if interactive else request.read_ahead,
            prefixes=starts or None,
        )
        if live and sys.stdout.isatty() and not (request.scores or translator.is_numbered):
            translator.watch(live.show)
        for number, each in enumerate(found, start=1):
            line = format_lines(number, each, translator.is_numbered, request.scores)
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
