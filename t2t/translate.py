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

from absl import flags

from t2t.api.line_program import define_lines, process_lines
from t2t.config.fields import ConfigError
from t2t.config.flags import define_decoding, define_metricx, read_decoding
from t2t.runtime import command_line
from t2t.storage.paths import make_run_path


def main() -> int:
    """Translates as the flags say; returns the exit status."""
    from t2t.api.line_translator import LineTranslator
    from t2t.evaluation.load_models import ModelRequest
    from t2t.runtime.jax_settings import enable_compilation_cache

    values = flags.FLAGS
    if values.alignment_layer is not None and not values.alignments:
        raise ConfigError("--alignment_layer is for --alignments; add it, or leave this out")
    enable_compilation_cache()
    if values.metricx:
        from t2t.evaluation.metricx import use_metricx

        use_metricx(make_run_path(values.metricx, "--metricx"), values.metricx_input or "")
    request = ModelRequest(checkpoint=values.checkpoint, **command_line.read_models())
    layer = values.alignment_layer or 0 if values.alignments else None

    def make() -> LineTranslator:
        return LineTranslator(
            request, read_decoding(), n_best=values.n_best, backend=values.backend,
            compute_type=values.compute_type, alignment_layer=layer,
        )  # fmt: skip

    return process_lines(make, prefixes=values.prefixes)


if __name__ == "__main__":
    command_line.define_models()
    command_line.define_direction()
    command_line.define_backend()
    command_line.define_checkpoint()
    define_lines()
    flags.DEFINE_string(
        "prefixes", "", "A file of prefixes: line n is the beginning of the translation of line n."
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
    define_decoding()
    define_metricx()
    command_line.run(main, alone="each of several processes translates a --part")
