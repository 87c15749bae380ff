"""Shows what every head attends to: `python -m t2t.inspect_heads --workdir=RUN "A girl climbs."`.

It writes one self-contained HTML page, RUN/heads.html: attention maps of the heads of encoder,
decoder and cross-attention, each with its entropy, its role and what the model loses without it.
"""

from collections.abc import Sequence

from absl import flags

from t2t.runtime import command_line


def main(operands: Sequence[str]) -> None:
    """Writes the page and prints its path; the operands are the words of the sentence."""
    from t2t.analysis.head_page import HeadRequest, show_attention
    from t2t.runtime.jax_settings import enable_compilation_cache

    values = flags.FLAGS
    enable_compilation_cache()
    request = HeadRequest(
        command_line.read_workdir(),
        " ".join(operands),
        values.checkpoint,
        values.importance,
        values.measure,
        values.seed,
        values.output,
        values.direction,
    )
    print(show_attention(request))


if __name__ == "__main__":
    command_line.define_workdir()
    command_line.define_direction()
    command_line.define_checkpoint()
    flags.DEFINE_integer(
        "importance",
        100,
        "Number of validation sentences on which the heads are measured, with each head switched "
        "off in turn; 0: skip this measurement.",
    )
    flags.DEFINE_enum(
        "measure",
        "loss",
        ["loss", "bleu"],
        "A head's importance is the change of this measure without it; bleu takes longer.",
    )
    flags.DEFINE_integer(
        "seed", 0, "Seed of the random choice of --importance sentences.", lower_bound=0
    )
    flags.DEFINE_string(
        "output",
        "",
        "The HTML file; default: RUN/heads.html, or heads-en-de.html with --direction.",
    )
    command_line.run(main, operands="the sentence")
