"""Converts a run for another engine: `python -m t2t.export --workdir=RUN --output=DIR`.

CTranslate2 4.x (`pip install ctranslate2`) is an inference engine for serving and for int8 on CPUs.
DIR/vocab holds the SentencePiece models; the engine's tokens are their pieces, without EOS.

`--format=hf` writes a folder that `transformers` 5 loads: a model that was imported, also after
fine-tuning, or one of Marian's or T5's architecture that was trained here.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from t2t.evaluation.requests import OneCheckpoint
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRequest(OneCheckpoint):
    """The engine that a run is converted for."""

    format: Literal["ctranslate2", "hf"] = "ctranslate2"  # the engine to convert for
    output: Path  # a new directory for the model
    # the task, of a run whose tasks have their own stacks; default: that of data.mixture's first
    task: str = ""
    # the type of the saved weights, for CTranslate2; default: not quantized
    quantization: (
        Literal[
            "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"
        ]
        | None
    ) = None


def main(request: ExportRequest) -> None:
    """Exports the run, and prints the new directory."""
    from t2t.api.export_run import export

    export(
        request.workdir, request.checkpoint, request.output, request.quantization, request.format,
        request.task,
    )  # fmt: skip
    print(request.output)


if __name__ == "__main__":
    command_line.run(main)
