"""Converts a run for another engine: `python -m t2t.export --workdir=RUN --output=DIR`.

CTranslate2 4.x (`pip install ctranslate2`) is an inference engine for serving and for int8 on CPUs.
DIR/vocab holds the SentencePiece models; the engine's tokens are their pieces, without EOS.

`--format=hf` writes a folder that `transformers` 5 loads: a model that was imported, also after
fine-tuning, or one of Marian's or T5's architecture that was trained here.
"""

from absl import flags

from t2t.runtime import command_line
from t2t.storage.paths import make_path

QUANTIZATIONS = (
    "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16",
)  # fmt: skip


def main() -> None:
    """Exports the run that the flags name, and prints the new directory."""
    from t2t.api.export_run import export

    values = flags.FLAGS
    output = make_path(values.output)
    export(
        command_line.read_workdir(), values.checkpoint, output, values.quantization, values.format
    )
    print(output)


if __name__ == "__main__":
    command_line.define_workdir()
    flags.DEFINE_enum("format", "ctranslate2", ["ctranslate2", "hf"], "The engine to convert for.")
    command_line.define_checkpoint()
    flags.DEFINE_string("output", None, "A new directory for the model.", required=True)
    flags.DEFINE_enum(
        "quantization",
        None,
        QUANTIZATIONS,
        "The type of the saved weights, for CTranslate2; default: not quantized.",
    )
    command_line.run(main)
