"""Converts a run for CTranslate2: `python -m t2t.export --workdir=RUN --output=DIR`.

CTranslate2 4.x (`pip install ctranslate2`) is an inference engine for serving and for int8 on CPUs.
DIR/vocab holds the SentencePiece models; the engine's tokens are their pieces, without EOS.
"""

from pathlib import Path

from absl import flags

from t2t.config.fields import ConfigError
from t2t.config.files import load_config
from t2t.runtime import program
from t2t.storage.atomic_files import atomic_path, explain_write_errors, make_folder
from t2t.storage.paths import make_path

QUANTIZATIONS = (
    "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16",
)  # fmt: skip


def export(workdir: Path, checkpoint: str, output: Path, quantization: str | None = None) -> None:
    """Writes the model to a new directory.

    Raises:
        ConfigError: CTranslate2 is not installed or lacks such a model, or `output` exists.
        RunError: the checkpoint does not exist, or `output` cannot be written.
    """
    from t2t.data.tokenizer import Vocabulary
    from t2t.evaluation.load_models import require_ctranslate2
    from t2t.training.checkpoint import restore_params
    from t2t.training.run_directory import RunError

    require_ctranslate2()
    from t2t.interop.ctranslate2_export import check_support, write_model

    config = load_config(workdir / "config.json")
    check_support(config.model)
    vocabulary = Vocabulary.load(workdir / "vocab")
    params, _ = restore_params(workdir, checkpoint)
    if output.exists():
        raise ConfigError(f"--output={output} exists already; choose a new directory")
    src, tgt = vocabulary.src, vocabulary.tgt
    pieces = src.pieces(range(src.vocab_size)), tgt.pieces(range(tgt.vocab_size))
    with explain_write_errors(RunError, f"--output={output}"):
        make_folder(output.parent)
        with atomic_path(output) as draft:
            draft.mkdir()
            vocabulary.save(draft / "vocab")
            write_model(config.model, params, pieces, draft, quantization)


def main() -> None:
    """Exports the run that the flags name, and prints the new directory."""
    values = flags.FLAGS
    output = make_path(values.output)
    export(program.read_workdir(), values.checkpoint, output, values.quantization)
    print(output)


if __name__ == "__main__":
    program.define_workdir()
    flags.DEFINE_enum("format", "ctranslate2", ["ctranslate2"], "The engine to convert for.")
    program.define_checkpoint()
    flags.DEFINE_string("output", None, "A new directory for the model.", required=True)
    flags.DEFINE_enum(
        "quantization",
        None,
        QUANTIZATIONS,
        "The type of the saved weights; default: not quantized.",
    )
    program.run(main)
