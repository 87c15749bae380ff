"""Says what a recipe needs on TPUs or GPUs that this machine does not have: memory and least time.

    python -m t2t.plan --config=configs/big.py --topology=v5e:16x16 --config.mesh.fsdp=16
    python -m t2t.plan --config=configs/big.py --topology=h100:8x4 --config.mesh.fsdp=8

It compiles the sharded training step with the compiler for these devices, on a CPU (`pip install
-e '.[tpu]'` or `'.[cuda]'`), and reads memory, FLOPs, memory traffic and collectives from the
compiled program; for TPUs also cycles, for GPUs the number of kernels. From them follows a lower
bound of the time of a step and of all steps of the recipe. It reads no data:
sentence lengths are drawn from a distribution like WMT14's.
"""

import dataclasses
import errno
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

from t2t.config.config_flag import read_config
from t2t.config.field_types import PositiveInt, Rule
from t2t.config.fields import Config, ConfigError
from t2t.config.requests import Request
from t2t.runtime import command_line
from t2t.storage.atomic_files import check_writable, explain_write_errors, make_folder, write_file

Length = Annotated[float, Rule("lie in [1, 1e6]", lambda value: 1 <= value <= 1e6)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanRequest(Request):
    """A recipe and the devices."""

    config: str
    # the devices to plan for, such as v5e:16x16, v5p:4x4x4, h100:8, h100:8x4 (4 hosts of 8 GPUs),
    # a100:8, h200:8, b200:8 or cpu:8
    topology: str
    slices: PositiveInt = 1  # plan for so many TPU slices, which the data centre's network joins
    output: Path | None = None  # also write all figures to this JSON file
    # try all meshes of these devices whose fsdp and tensor are powers of two
    search: bool = False
    all_shapes: bool = False  # compile all batch shapes, not only the most expensive one
    mean_length: Length = 27.0  # mean length of source sentences, in sub-words


def report_plan(config: Config, topology: str, output: Path | None = None, **options: Any) -> bool:
    """Prints the plan and writes it to `output` as JSON; returns whether the recipe fits.

    `options` are arguments of `t2t.api.plan_run.plan`.
    """
    from t2t.api.plan_run import plan

    if output:  # before the work, which takes minutes
        with explain_write_errors(ConfigError, output, "--output sets the path"):
            make_folder(output.parent)
            check_writable(output.parent, output.name)
            if output.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
    found = plan(config, topology, **options)
    print(found.text)
    if output:
        command = shlex.join(["python", "-m", "t2t.plan", *sys.argv[1:]])
        write_file(output, json.dumps({"command": command, **found.figures}, indent=2) + "\n")
    return found.fits


def main(request: PlanRequest) -> int:
    """Plans as requested; returns 0 if the recipe fits into memory, else 1."""
    import jax

    from t2t.data.preparation import fill_tokenizer

    jax.config.update("jax_platforms", "cpu")  # leave this machine's accelerators alone
    # The cache cannot load programs that were compiled for devices this machine does not have.
    jax.config.update("jax_enable_compilation_cache", False)
    config = fill_tokenizer(read_config(trains_alone=False))
    return 0 if report_plan(**vars(request) | {"config": config}) else 1


if __name__ == "__main__":
    command_line.run(main, alone="it compiles for devices that are elsewhere")
