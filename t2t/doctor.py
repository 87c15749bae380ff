"""Checks devices, packages, network and disk: `python -m t2t.doctor [--workdir=RUN]`.

Start it like training, with the same launcher and environment: each process prints what it found.
With --config=RECIPE it also checks that the disk holds the checkpoints of that recipe. The exit
status is 1 if there is a problem.
"""

from absl import flags

from t2t.config.flags import define_config, read_config
from t2t.runtime import command_line
from t2t.storage.paths import make_run_path


def main() -> int:
    """Prints the findings of this process; returns the exit status."""
    workdir = make_run_path(flags.FLAGS.workdir) if flags.FLAGS.workdir else None
    config = read_config(workdir=workdir) if flags.FLAGS["config"].value else None

    from t2t.api.machine_checks import examine
    from t2t.runtime.distributed import join
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()
    join(**command_line.read_hosts())
    healthy = True
    for finding in examine(workdir, config):
        healthy &= not finding.problem
        wrong = f"  WRONG: {finding.problem}" if finding.problem else ""
        print(f"{finding.name}: {finding.value}{wrong}")
    return 0 if healthy else 1


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "A run directory whose disk is checked.")
    define_config(required=False)
    command_line.define_hosts()
    command_line.run(main)
