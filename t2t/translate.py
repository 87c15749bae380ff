"""Translates standard input: `python -m t2t.translate --workdir=RUN < in.txt > out.txt`.

One line comes out for each line that goes in, whatever is in it. On a terminal each line is
answered at once; from a pipe or file many are read ahead and translated together.

With --n_best=3 each line gives up to three lines, best first, that begin with the number of the
input line and a tab; with --scores the score (log-probability over length penalty) and a tab stand
before the text. With both: "2<TAB>-0.4137<TAB>Ein Mädchen klettert."
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

BATCHES_READ_AHEAD = 16  # sorted by length among themselves


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
    """Up to `n_best` translations of each line, in order.

    Args:
        workdir: a run directory.
        checkpoint: last, best, a step, or avg:COUNT.
        lines: UTF-8 with line ends.
        n_best: at most the beam's size.
        beam_size: None: the config's.
        read_ahead: lines translated together; None: some batches.
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
    """Text without line ends; what is not UTF-8 becomes U+FFFD and is reported at the end."""
    damaged = []
    for number, line in enumerate(lines, start=1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:  # a byte order mark belongs to no sentence: corpora leave it out, too
            text = text.removeprefix(codecs.BOM_UTF8)
        try:
            yield text.decode()
        except UnicodeDecodeError:
            damaged.append(number)
            yield text.decode(errors="replace")
    if damaged:
        _log.warning(
            "lines that are not UTF-8: %d, the first is line %d; U+FFFD stands for what is damaged",
            len(damaged), damaged[0],
        )  # fmt: skip


def format_lines(number: int, translations: list[Translation], numbered: bool, scored: bool) -> str:
    """The output for one input line, as described above."""
    return "".join(
        f"{number}\t" * numbered + f"{found.score:.4f}\t" * scored + f"{found.text}\n"
        for found in translations
    )


def prompt_lines() -> Iterator[bytes]:
    """Lines typed on a terminal, until Ctrl-D or Ctrl-C."""
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
    """Translates as the flags say; 1 where the reader of the output went away."""
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
        # As in `... | head`. Python would try to write once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    program.define_workdir()
    program.define_backend()
    flags.DEFINE_string("checkpoint", "best", "last, best, a step, or avg:5 for the last 5's mean.")
    flags.DEFINE_integer("n_best", 1, "Translations for each line, each after the line's number.")
    flags.DEFINE_bool("scores", False, "Print log-probability over length penalty before the text.")
    flags.DEFINE_integer("beam_size", None, "Instead of the config's; 1 is greedy.")
    program.run(main)
