"""Continues prompts, or fills gaps: `python -m t2t.generate --workdir=RUN < in.txt > out.txt`.

Each input line is a prompt, and gives an output line: the prompt, as it was written, and what
follows it. An empty line gives a whole text. It needs a model of data.objective=lm or prefix_lm.
Standard input and output, --n_best, --scores and --input are those of t2t.translate; scores are
those of what follows the prompt. On a terminal a single output is written while it grows, if it is
sampled or --beam_size is 1.

With --fill each line is a text with gaps, and gives the whole text: <extra_id_0>, <extra_id_1>, ...
for a model of span_corruption, [MASK] for one of masked_lm. With --scores two columns follow for
each gap: its log-probability, and what fills it.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from t2t.api.line_program import Lines, LiveText, process_lines
from t2t.config.requests import Flag, Plugins
from t2t.evaluation.requests import MeasureModels, ModelRequest
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationRequest(ModelRequest, MeasureModels, Lines, Plugins):
    """A model, prompts or gaps, and the search."""

    fill: bool = False  # fill the gaps of the lines instead of continuing them
    # an output ends before this text; may be given several times
    stop: Annotated[tuple[str, ...], Flag(is_repeated=True)] = ()

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        if self.fill and self.stop:
            yield "--stop is not for --fill; leave it out"
        if self.fill and "split_sentences" in self.decoding:
            yield "--split_sentences is not for --fill, which takes whole texts; leave it out"


def main(request: GenerationRequest) -> int:
    """Continues prompts or fills gaps; returns the exit status."""
    from t2t.api.fill_gaps import make_filler
    from t2t.api.line_translator import LineTranslator
    from t2t.decoding.continuation import Continuer
    from t2t.decoding.translator import Translator
    from t2t.evaluation.load_models import RunModel
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()

    def make(model: RunModel) -> Translator:
        if request.fill:
            return make_filler(model, model.config)
        return Continuer(model.config, model.vocabulary, model.members, request.stop)

    return process_lines(
        request,
        lambda: LineTranslator(request, n_best=request.n_best, make=make),
        live=LiveText(max(map(len, request.stop), default=1) - 1),
    )


if __name__ == "__main__":
    command_line.run(main, alone="each of several processes does a --part")
