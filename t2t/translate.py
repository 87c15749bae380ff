"""Translates text: `python -m t2t.translate --workdir=RUN < in.txt > out.txt`.

Each input line, even an empty one, gives one output line. On a terminal each line is translated at
once; lines from a pipe or file are read ahead and translated in batches (--read_ahead).

With --n_best=3 each input line gives up to three output lines, best first, which begin with the
number of the input line and a tab; with --strategy=sampling --num_samples=3 they are samples. With
--scores the score (log-probability divided by the length penalty) and a tab precede the text. With
both, tabs separate 2, -0.4137 and "Ein Mädchen klettert.". With --alignments a tab and the links of
source and target words in Pharaoh format follow the text.

--input=FILES --output=DIR translates files, plain or packed (.gz, .bz2, .xz, .zst), in shards.
After Ctrl-C, which loses nothing, or a kill the same command goes on where it was.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from t2t.api.line_program import Lines, process_lines
from t2t.config.field_types import InputPath, PositiveInt
from t2t.config.requests import Flag, Plugins
from t2t.config.variants import import_plugins
from t2t.evaluation.requests import Backend, MetricX, ModelRequest
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationRequest(ModelRequest, Backend, MetricX, Lines, Plugins):
    """A model, lines of text, and what is printed for each."""

    # a file of prefixes: line n is the beginning of the translation of line n
    prefixes: InputPath = ""
    # print a tab and the links of words after the text: 0-0 1-2 ...
    alignments: bool = False
    # with --alignments: decoder layer, from 1; default: last but one
    alignment_layer: Annotated[PositiveInt, Flag(needs="alignments")] | None = None

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        if self.prefixes and self.backend != "jax":
            yield f"--prefixes needs --backend=jax, not {self.backend}; leave out one of them"


def main(request: TranslationRequest) -> int:
    """Translates; returns the exit status."""
    from t2t.api.line_translator import LineTranslator
    from t2t.evaluation.metricx import use_metricx
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()
    import_plugins(request.plugins)  # for the measure of --mbr
    use_metricx(request.metricx, request.metricx_input)
    layer = request.alignment_layer or 0 if request.alignments else None

    def make() -> LineTranslator:
        return LineTranslator(
            request, n_best=request.n_best, backend=request.backend,
            compute_type=request.compute_type, alignment_layer=layer,
        )  # fmt: skip

    return process_lines(request, make, prefixes=request.prefixes)


if __name__ == "__main__":
    command_line.run(main, alone="each of several processes translates a --part")
