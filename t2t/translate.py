"""Translates text: `python -m t2t.translate --workdir=RUN < in.txt > out.txt`.

Each input line, even an empty one, gives one output line. On a terminal each line is translated at
once; lines from a pipe or file are read ahead and translated in batches (--read_ahead).

With --n_best=3 each input line gives up to three output lines, best first, which begin with the
number of the input line and a tab; with --strategy=sampling --num_samples=3 they are samples. With
--scores the score (log-probability divided by the length penalty) and a tab precede the text. With
both, tabs separate 2, -0.4137 and "Ein Mädchen klettert.". With --alignments a tab and the links of
source and target words in Pharaoh format follow the text.

--input=FILES --output=DIR translates files, plain or packed (.gz, .bz2, .xz, .zst), in shards. A
process that was killed goes on where it was if it is started again.
"""

import contextlib
import sys
from collections.abc import Iterator

from absl import flags

from t2t.config.fields import ConfigError
from t2t.config.flags import define_decoding, define_metricx, read_decoding
from t2t.decoding.bulk import BATCHES_TOGETHER, find_inputs, read_part
from t2t.runtime import command_line
from t2t.storage.open_text import open_text, unpack
from t2t.storage.paths import make_path, make_run_path


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
    from t2t.api.line_translator import LineTranslator, translate_bulk, translate_lines
    from t2t.decoding.translation import format_lines
    from t2t.evaluation.load_models import ModelRequest
    from t2t.runtime.jax_settings import enable_compilation_cache

    values = flags.FLAGS
    if values.alignment_layer is not None and not values.alignments:
        raise ConfigError("--alignment_layer is for --alignments; add it, or leave this out")
    in_bulk = values["input"].present
    for name in ("output", "part", "shard_lines"):
        if values[name].present and not in_bulk:
            raise ConfigError(f"--{name} is for --input; add it, or leave this out")
    for name in ("prefixes", "read_ahead"):
        if values[name].value and in_bulk:
            raise ConfigError(f"--{name} is for standard input; leave it out with --input")
    part = read_part(values.part)
    inputs = find_inputs(values.input, values.output) if in_bulk else {}
    enable_compilation_cache()
    if values.metricx:
        from t2t.evaluation.metricx import use_metricx

        use_metricx(make_run_path(values.metricx, "--metricx"), values.metricx_input or "")
    request = ModelRequest(checkpoint=values.checkpoint, **command_line.read_models())
    layer = values.alignment_layer or 0 if values.alignments else None
    with contextlib.ExitStack() as stack:
        prefixes = values.prefixes and stack.enter_context(open_text(make_path(values.prefixes)))
        translator = LineTranslator(
            request, read_decoding(), n_best=values.n_best, backend=values.backend,
            compute_type=values.compute_type, alignment_layer=layer,
        )  # fmt: skip
        if inputs:
            translate_bulk(translator, inputs, part, values.shard_lines, values.scores)
            return 0
        interactive = sys.stdin.isatty()
        translations = translate_lines(
            translator,
            prompt_lines() if interactive else unpack(sys.stdin.buffer, "standard input"),
            read_ahead=1 if interactive else values.read_ahead,
            prefixes=prefixes or None,
        )
        for number, found in enumerate(translations, start=1):
            text = format_lines(number, found, translator.is_numbered, values.scores)
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    command_line.define_models()
    command_line.define_direction()
    command_line.define_backend()
    command_line.define_checkpoint()
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
        f"answered at once. Default: {BATCHES_TOGETHER} batches, or 1 on a terminal.",
        lower_bound=1,
    )
    flags.DEFINE_bool(
        "alignments", False, "Print a tab and the links of words after the text: 0-0 1-2 ..."
    )
    flags.DEFINE_integer(
        "alignment_layer",
        None,
        "With --alignments: decoder layer, from 1; default: last but one.",
        lower_bound=1,
    )
    command_line.define_bulk(10_000)
    define_decoding()
    define_metricx()
    command_line.run(main, alone="each of several processes translates a --part")
