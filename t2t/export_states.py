"""Writes the encoder's output for lines of text: `python -m t2t.export_states --workdir=RUN ...`.

    python -m t2t.export_states --workdir=RUN --input=captions.txt --output=states

Each input file, plain or packed (.gz, .bz2, .xz, .zst), becomes a folder of its name, which appears
when it is complete: states/captions.txt/000000.safetensors has the lines 1 to 1000. A file holds
`states` [sub-words of all its lines, d_model], `offsets` (line n of the file, from 0, has the rows
offsets[n] to offsets[n + 1]) and `ids`, the sub-word of each row. The states are those to which a
decoder attends. A process that was killed goes on where it was if it is started again.
"""

from absl import flags

from t2t.config.flags import define_batch_size
from t2t.decoding.bulk import find_inputs, read_part
from t2t.runtime import command_line


def main() -> None:
    """Writes the states of the files that the flags name."""
    from t2t.api.encoder_states import export_states
    from t2t.evaluation.load_models import ModelRequest
    from t2t.runtime.jax_settings import enable_compilation_cache

    values = flags.FLAGS
    part, inputs = read_part(values.part), find_inputs(values.input, values.output)
    enable_compilation_cache()
    request = ModelRequest(
        (command_line.read_workdir(),), values.checkpoint, direction=values.direction
    )
    export_states(
        request, inputs, part, values.shard_lines, dtype=values.dtype, batch_size=values.batch_size
    )


if __name__ == "__main__":
    command_line.define_workdir()
    command_line.define_direction()
    command_line.define_checkpoint()
    command_line.define_bulk(1000)
    define_batch_size()
    flags.DEFINE_string(
        "dtype", None, "Of the computation and the states: float32 or bfloat16. Default: the run's."
    )
    command_line.run(main, alone="each of several processes does a --part")
