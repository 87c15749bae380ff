"""Writes the encoder's output for lines of text: `python -m t2t.export_states --workdir=RUN ...`.

    python -m t2t.export_states --workdir=RUN --input=captions.txt --output=states

Each input file, plain or packed (.gz, .bz2, .xz, .zst), becomes a folder of its name, which appears
when it is complete: states/captions.txt/000000.safetensors has the lines 1 to 1000. A file holds
`states` [sub-words of all its lines, d_model], `offsets` (line n of the file, from 0, has the rows
offsets[n] to offsets[n + 1]) and `ids`, the sub-word of each row. The states are those to which a
decoder attends. After Ctrl-C, which loses nothing, or a kill the same command goes on.
"""

import dataclasses
from typing import ClassVar

from t2t.config.field_types import PositiveInt
from t2t.decoding.bulk import Bulk, find_inputs, read_part
from t2t.evaluation.requests import ModelRequest, OneCheckpoint, OneTask, SearchFields
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatesRequest(OneCheckpoint, OneTask, SearchFields, Bulk):
    """The encoder and the files."""

    searched: ClassVar = ("batch_size",)

    input: tuple[str, ...] = ()
    shard_lines: PositiveInt = 1000  # lines that are saved together
    # of the computation and the states: float32 or bfloat16. Default: the run's
    dtype: str | None = None


def main(request: StatesRequest) -> None:
    """Writes the states of the files."""
    from t2t.api.encoder_states import export_states
    from t2t.runtime.jax_settings import enable_compilation_cache

    part, inputs = read_part(request.part), find_inputs(request.input, request.output)
    enable_compilation_cache()
    run = ModelRequest(
        (request.workdir,), request.checkpoint,
        task=request.task, decoding=request.decoding,
    )  # fmt: skip
    export_states(run, inputs, part, request.shard_lines, dtype=request.dtype)


if __name__ == "__main__":
    command_line.run(main, alone="each of several processes does a --part")
