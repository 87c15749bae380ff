"""Translates standard input: `python -m t2t.translate --workdir=RUN < in.txt > out.txt`.

Each input line, even an empty one, gives one output line. On a terminal each line is translated at
once; lines from a pipe or file are read ahead and translated in batches (--read_ahead).

With --n_best=3 each input line gives up to three output lines, best first, which begin with the
number of the input line and a tab; with --strategy=sampling --num_samples=3 they are samples. With
--scores the score (log-probability divided by the length penalty) and a tab precede the text. With
both: "2<TAB>-0.4137<TAB>Ein Mädchen klettert." With --alignments a tab and the links of source and
target words in Pharaoh format follow the text.
"""

import codecs
import contextlib
import dataclasses
import itertools
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
from absl import flags

from t2t.analysis.word_alignments import WordAligner, format_links
from t2t.config.fields import ConfigError, MeshConfig
from t2t.config.flags import define_decoding, read_decoding
from t2t.data.corpus import DataError
from t2t.decoding.choose_engine import make_translator
from t2t.decoding.n_best_list import format_lines
from t2t.decoding.translation import Translation
from t2t.evaluation.load_models import ModelRequest, describe_models, restore_models
from t2t.model.interface import Params
from t2t.runtime import program
from t2t.runtime.compilation_cache import enable_compilation_cache
from t2t.runtime.mesh import make_mesh

_log = logging.getLogger(__name__)

BATCHES_READ_AHEAD = 16  # their sentences are sorted by length, then batched


def translate_lines(
    request: ModelRequest,
    lines: Iterator[bytes],
    n_best: int = 1,
    decoding: Mapping[str, float | str] | None = None,
    read_ahead: int | None = None,
    backend: str = "jax",
    compute_type: str | None = None,
    prefixes: Iterator[bytes] | None = None,
    alignment_layer: int | None = None,
) -> Iterator[list[Translation]]:
    """Yields up to `n_best` translations of each line, or samples, in the order of the lines.

    Args:
        request: the model or the models of an ensemble.
        lines: UTF-8, each with its line ending.
        n_best: at most the beam size; 1 with sampling, where `num_samples` says how many.
        decoding: overrides fields of config.decoding.
        read_ahead: lines translated together; None: `BATCHES_READ_AHEAD` batches.
        backend: jax or ctranslate2.
        compute_type: of ctranslate2; None: float32.
        prefixes: with which the translations begin, as many as lines.
        alignment_layer: of the decoder, to align words by; 0: the last but one; None: no alignment.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: something is missing or inconsistent.
    """
    config, vocabulary, members = describe_models(request, decoding)
    if config.decoding.strategy == "sampling":
        if n_best > 1:
            raise ConfigError(f"--n_best={n_best} is for beam search; use --num_samples={n_best}")
        n_best = config.decoding.num_samples
    translator = make_translator(backend, compute_type, config, vocabulary, members)
    aligner = None
    if alignment_layer is not None:
        if len(members.configs) > 1:
            raise ConfigError("--alignments need one model; give one run and checkpoint")
        aligner = WordAligner(config, vocabulary, alignment_layer or None)
    restored, _ = restore_models(request, members)
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        params = translator.place(restored)
    text, first = decode_lines(lines), 0
    starts = None if prefixes is None else decode_lines(prefixes)
    size = read_ahead or config.decoding.batch_size * BATCHES_READ_AHEAD
    while chunk := list(itertools.islice(text, size)):
        given = None if starts is None else list(itertools.islice(starts, len(chunk)))
        if given is not None and len(given) < len(chunk):
            raise DataError(f"{first + len(given)} prefixes, but more lines; give one for each")
        with jax.set_mesh(mesh):
            translations = translator.translate_n_best(
                params, chunk, n_best, prefixes=given, first=first
            )
        if aligner:
            translations = align(aligner, restored, chunk, translations)
        first += len(chunk)
        yield from translations
    if starts is not None and next(starts, None) is not None:
        raise DataError(f"more prefixes than the {first} lines; give one for each line")


def align(
    aligner: WordAligner,
    params: Params,
    sentences: Sequence[str],
    translations: Sequence[list[Translation]],
) -> list[list[Translation]]:
    """Returns the translations with their alignments."""
    pairs = [
        (sentence, each.text)
        for sentence, found in zip(sentences, translations, strict=True)
        for each in found
    ]
    links = iter(aligner.align(params, pairs))
    return [
        [dataclasses.replace(each, alignment=format_links(next(links))) for each in found]
        for found in translations
    ]


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
    """Translates as the flags say; returns the exit status."""
    values = flags.FLAGS
    enable_compilation_cache()
    interactive = sys.stdin.isatty()
    numbered = max(values.n_best, values.num_samples or 1) > 1
    with contextlib.ExitStack() as files:
        prefixes = values.prefixes and files.enter_context(Path(values.prefixes).open("rb"))
        translations = translate_lines(
            ModelRequest(checkpoint=values.checkpoint, **program.read_models()),
            prompt_lines() if interactive else iter(sys.stdin.buffer),
            values.n_best,
            read_decoding(),
            read_ahead=1 if interactive else values.read_ahead,
            backend=values.backend,
            compute_type=values.compute_type,
            prefixes=prefixes or None,
            alignment_layer=values.alignment_layer or 0 if values.alignments else None,
        )
        return write(translations, numbered, values.scores)


def write(translations: Iterator[list[Translation]], numbered: bool, scored: bool) -> int:
    """Writes the lines to standard output; returns 1 if its reader closed the pipe."""
    try:
        for number, found in enumerate(translations, start=1):
            text = format_lines(number, found, numbered, scored)
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        # For example in `... | head`. Python flushes stdout at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    program.define_models()
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
    flags.DEFINE_string(
        "prefixes", "", "A file of prefixes: line n is the beginning of the translation of line n."
    )
    flags.DEFINE_integer(
        "read_ahead",
        None,
        "Lines that are read before they are translated together; 1: each line from a pipe is "
        f"answered at once. Default: {BATCHES_READ_AHEAD} batches, or 1 on a terminal.",
        lower_bound=1,
    )
    flags.DEFINE_bool(
        "alignments", False, "Print a tab and the links of words after the text: 0-0 1-2 ..."
    )
    flags.DEFINE_integer(
        "alignment_layer", None, "With --alignments: decoder layer, from 1; default: last but one."
    )
    define_decoding()
    program.run(main)
