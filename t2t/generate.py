"""Continues prompts, or fills gaps: `python -m t2t.generate --workdir=RUN < in.txt > out.txt`.

Each input line is a prompt, and gives an output line: the prompt and what follows it. It needs a
model of data.objective=lm. Standard input and output, --n_best, --scores and --input are those of
t2t.translate; scores are those of what follows the prompt. On a terminal a single output is written
while it grows, if it is sampled or --beam_size is 1.

With --fill each line is a text with gaps, and gives the whole text: <extra_id_0>, <extra_id_1>, ...
for a model of span_corruption, [MASK] for one of masked_lm. With --scores two columns follow for
each gap: its log-probability, and what fills it.
"""

from absl import flags

from t2t.api.line_program import LiveText, define_lines, process_lines
from t2t.config.fields import ConfigError
from t2t.config.flags import define_decoding, read_decoding
from t2t.runtime import command_line


def main() -> int:
    """Continues prompts or fills gaps as the flags say; returns the exit status."""
    from t2t.api.fill_gaps import make_filler
    from t2t.api.line_translator import LineTranslator
    from t2t.decoding.continuation import Continuer
    from t2t.decoding.translator import Translator
    from t2t.evaluation.load_models import ModelRequest, RunModel
    from t2t.runtime.jax_settings import enable_compilation_cache

    values, decoding = flags.FLAGS, read_decoding()
    if values.fill and values.stop:
        raise ConfigError("--stop is not for --fill; leave it out")
    enable_compilation_cache()
    request = ModelRequest(checkpoint=values.checkpoint, **command_line.read_models())

    def make(model: RunModel) -> Translator:
        if values.fill:
            return make_filler(model, model.config, decoding)
        return Continuer(model.config, model.vocabulary, model.members, values.stop)

    return process_lines(
        lambda: LineTranslator(request, decoding, n_best=values.n_best, make=make),
        live=LiveText(max(map(len, values.stop), default=1) - 1),
    )


if __name__ == "__main__":
    command_line.define_models()
    command_line.define_direction()
    command_line.define_checkpoint()
    flags.DEFINE_bool("fill", False, "Fill the gaps of the lines instead of continuing them.")
    flags.DEFINE_multi_string(
        "stop", [], "An output ends before this text; may be given several times."
    )
    define_lines()
    define_decoding()
    command_line.run(main, alone="each of several processes does a --part")
