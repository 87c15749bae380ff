"""Checks devices, packages, network and disk: `python -m t2t.doctor [--workdir=RUN]`.

Start it like training, with the same launcher and environment: each process prints what it found.
With --config=RECIPE it also checks that the disk holds the checkpoints of that recipe. The exit
status is 1 if there is a problem.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from t2t.config.requests import Hosts, RunPath
from t2t.runtime import command_line
from t2t.runtime.error_messages import explain

if TYPE_CHECKING:
    from t2t.api.package_checks import Finding
    from t2t.config.fields import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorRequest(Hosts):
    """The disk and the recipe that are checked besides the machine."""

    workdir: RunPath | None = None  # a run directory whose disk is checked
    config: str | None = None


def examine(request: DoctorRequest) -> Iterator[tuple[str, "Finding"]]:
    """Runs all checks; yields name and finding.

    Those of the machine need JAX, and the recipe the packages that it uses.

    Raises:
        ConfigError: the recipe is not valid, or the vocabulary of its `tokenizer.path`.
    """
    from t2t.api.package_checks import Finding, describe, examine_packages

    yield from examine_packages()
    try:
        from t2t.api import machine_checks
        from t2t.runtime.distributed import join
        from t2t.runtime.jax_settings import enable_compilation_cache
    except Exception as error:  # of any package
        yield "machine", Finding("not checked", describe(error))
        return
    enable_compilation_cache()
    join(**request.hosts)
    config = None
    try:
        config = read_recipe(request) if request.config is not None else None
    except Exception as error:
        if explain(error) is not None:
            raise
        yield "recipe", Finding("not checked", describe(error))
    yield from machine_checks.examine(request.workdir, config)


def read_recipe(request: DoctorRequest) -> "Config":
    """Returns the config of the recipe, with the facts of the vocabulary that it names."""
    from t2t.config.config_flag import read_config
    from t2t.data.preparation import fill_tokenizer

    is_alone = not request.hosts["distributed"]
    config = read_config(workdir=request.workdir, trains_alone=is_alone)
    return fill_tokenizer(config, request.workdir)


def main(request: DoctorRequest) -> int:
    """Prints the findings of this process; returns the exit status."""
    healthy = True
    for name, finding in examine(request):
        healthy &= not finding.problem
        wrong = f"  WRONG: {finding.problem}" if finding.problem else ""
        print(f"{name}: {finding.value}{wrong}", flush=True)
    return 0 if healthy else 1


if __name__ == "__main__":
    command_line.run(main)
