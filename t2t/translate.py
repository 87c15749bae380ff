"""Translates standard input: `python -m t2t.translate --workdir=RUN < in.txt > out.txt`.

Each input line, even an empty one, gives one output line. On a terminal each line is translated at
once; lines from a pipe or file are read ahead and translated in batches.

With --n_best=3 each input line gives up to three output lines, best first, which begin with the
number of the input line and a tab. With --scores the score (log-probability divided by the length
penalty) and a tab precede the text. With both: "2<TAB>-0.4137<TAB>Ein Mädchen klettert."
"""

import codecs
import itertools
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
from absl import flags

from t2t.config.fields import MeshConfig
from t2t.config.files import load_config
from t2t.config.rules import validate
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.choose_engine import make_translator
from t2t.decoding.translator import Translation
from t2t.runtime import program
from t2t.runtime.compilation_cache import enable_compilation_cache
from t2t.runtime.mesh import make_mesh
from t2t.training.checkpoint import restore_params

_log = logging.getLogger(__name__)

BATCHES_READ_AHEAD = 16  # their sentences are sorted by length, then batched


def translate_lines(
    workdir: Path,
    checkpoint: str,
    lines: Iterator[bytes],
    n_best: int = 1,
    beam_size: int | None = None,
    read_ahead: int | None = None,
    backend: str = "jax",
    compute_type: str | None = None,
) -> Iterator[list[Translation]]:
    """Yields up to `n_best` translations of each line, in the order of the lines.

    Args:
        workdir: a run directory.
        checkpoint: last, best, a step, or avg:COUNT.
        lines: UTF-8, each with its line ending.
        n_best: at most the beam size.
        beam_size: None: the config's.
        read_ahead: lines translated together; None: `BATCHES_READ_AHEAD` batches.
        backend: jax or ctranslate2.
        compute_type: of ctranslate2; None: float32.
    """
    config = load_config(workdir / "config.json")
    if beam_size is not None:
        config.decoding.beam_size = beam_size
    vocabulary = Vocabulary.load(workdir / "vocab")
    translator = make_translator(backend, compute_type, validate(config), vocabulary)
    params, _ = restore_params(workdir, checkpoint)
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        params = translator.place(params)
    text = decode_lines(lines)
    size = read_ahead or config.decoding.batch_size * BATCHES_READ_AHEAD
    while chunk := list(itertools.islice(text, size)):
        with jax.set_mesh(mesh):
            translations = translator.translate_n_best(params, chunk, n_best)
        yield from translations


def decode_lines(lines: Iterator[bytes]) -> Iterator[str]:
    """Decodes lines and removes their endings.

    Invalid UTF-8 is replaced by U+FFFD, and reported after the last line.
    """
    damaged = []
    for number, line in enumerate(lines, start=1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:  # a byte order mark is not part of the sentence; training removes it, too
            text = text.removeprefix(codecs.BOM_UTF8)
        try:
            yield text.decode()
        except UnicodeDecodeError:
            damaged.append(number)
            yield text.decode(errors="replace")
    if damaged:
        _log.warning(
            "lines that are not valid UTF-8: %d, first line %d; U+FFFD replaces the invalid bytes",
            len(damaged), damaged[0],
        )  # fmt: skip


def format_lines(number: int, translations: list[Translation], numbered: bool, scored: bool) -> str:
    """Formats the output lines of one input line as the module's docstring describes."""
    return "".join(
        f"{number}\t" * numbered + f"{found.score:.4f}\t" * scored + f"{found.text}\n"
        for found in translations
    )


def prompt_lines() -> Iterator[bytes]:
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


def main() -> int:
    """Translates as the flags say; returns 1 if the reader of the output closed the pipe."""
    values = flags.FLAGS
    enable_compilation_cache()
    interactive = sys.stdin.isatty()
    translations = translate_lines(
        program.read_workdir(),
        values.checkpoint,
        prompt_lines() if interactive else iter(sys.stdin.buffer),
        values.n_best,
        values.beam_size,
        read_ahead=1 if interactive else None,
        backend=values.backend,
        compute_type=values.compute_type,
    )
    try:
        for number, found in enumerate(translations, start=1):
            text = format_lines(number, found, values.n_best > 1, values.scores)
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        # For example in `... | head`. Python flushes stdout at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    program.define_workdir()
    program.define_backend()
    flags.DEFINE_string(
        "checkpoint", "best", "last, best, a step, or avg:5 for the mean of the last 5."
    )
    flags.DEFINE_integer(
        "n_best", 1, "Translations per line; above 1 each is preceded by the line's number."
    )
    flags.DEFINE_bool(
        "scores", False, "Print log-probability divided by length penalty before the text."
    )
    flags.DEFINE_integer("beam_size", None, "Beam size; 1 is greedy. Default: the config's.")
    program.run(main, alone="it reads one standard input; translate parts of a file side by side")
