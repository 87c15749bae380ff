"""Makes `programs/*.hlo.xz`, optimised HLO of small train steps, by compilers for TPUs and GPUs.

    python -m tests.planning.make_programs v5e      # the extra tpu; on a CPU, two minutes
    python -m tests.planning.make_programs h100     # the extra cuda; on a CPU, one minute

The files leave out what `hlo_parser.py` skips, which is most of the text: code of kernels, stack
frames, layouts of the program, and all of `backend_config` except estimates. The programs in the
tree were compiled by libtpu 0.0.48.1 and by jax-cuda12-pjrt 0.11.2.
"""

import lzma
import re
import sys
from pathlib import Path

import jax

from t2t.config.fields import (
    Config,
    DataConfig,
    MeshConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from t2t.planning.compile_step import compile_step
from t2t.planning.topology import open_topology
from t2t.runtime.mesh import make_mesh

FOLDER = Path(__file__).parent / "programs"
PROGRAMS = {  # name -> topology, slices, mesh.fsdp, training.accumulation_steps
    "v5e-2x2": ("v5e:2x2", 1, 2, 1),
    "v5e-2x2-slices": ("v5e:2x2", 2, 2, 1),
    "v5e-4x4-accumulation": ("v5e:4x4", 1, 4, 2),
    "h100-2": ("h100:2", 1, 2, 1),
    "h100-2x2-accumulation": ("h100:2x2", 1, 2, 2),
}
ROWS, LENGTH = 32, 128
_ESTIMATES = r'"estimated_cycles":"\d+"|"cost_estimate":\{[^}]*\}|"known_trip_count":\{[^}]*\}'


def make_config(fsdp: int, accumulation_steps: int) -> Config:
    """A model of one layer, wide enough for the attention kernel."""
    return Config(
        model=ModelConfig(num_layers=1, d_model=128, d_ff=256, num_heads=2, dropout=0.0),
        data=DataConfig(packed_length=LENGTH, batch_tokens=ROWS * LENGTH),
        tokenizer=TokenizerConfig(vocab_size=512),
        training=TrainingConfig(accumulation_steps=accumulation_steps),
        mesh=MeshConfig(data=-1, fsdp=fsdp),
    )


def shorten(text: str) -> str:
    """Returns the lines of instructions without the fields that the parser skips."""
    header, *lines = text.splitlines()
    counts = re.findall(r"(?:num_partitions|replica_count)=\d+", header)
    kept = [", ".join([header.split(",")[0], *counts])]
    for line in lines:
        if line.startswith("  "):
            kept.append(_shorten_instruction(line))
        elif re.match(r"ENTRY |%|}", line):
            kept.append(re.sub(r"^((?:ENTRY )?%[\w.\-]+ ).*\{$", r"\1{", line))
    return "\n".join(kept) + "\n"


def _shorten_instruction(line: str) -> str:
    line = re.sub(r"/\*index=\d+\*/", "", line)
    line, _, settings = line.partition(", backend_config={")
    origin = re.search(r'op_name="[^"]*"', line)
    named = f", metadata={{{origin[0]}}}" if origin else ""
    line = re.sub(r', metadata=\{(?:[^"}]|"[^"]*")*\}', lambda _: named, line)
    estimates = ",".join(re.findall(_ESTIMATES, settings))
    return f"{line}, backend_config={{{estimates}}}" if estimates else line


def main() -> None:
    """Compiles the programs whose names begin as given, or all, and writes their files."""
    chosen = [name for name in PROGRAMS if name.startswith(tuple(sys.argv[1:]) or "")]
    jax.config.update("jax_platforms", "cpu")
    FOLDER.mkdir(exist_ok=True)
    for name in chosen:
        topology, slices, *sizes = PROGRAMS[name]
        config = make_config(*sizes)
        mesh = make_mesh(config.mesh, open_topology(topology, slices).devices)
        text = shorten(compile_step(config, mesh, ROWS, LENGTH, LENGTH).text)
        path = FOLDER / f"{name}.hlo.xz"
        path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
