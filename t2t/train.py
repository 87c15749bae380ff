"""Trains a model: `python -m t2t.train --config=configs/quickstart.py --workdir=runs/quickstart`.

The same command again continues a run that was stopped; without --config it takes the run's own.
With --extend a finished run goes on. With --init_from a new run begins with the parameters of
another one.
"""

import dataclasses

from t2t.config.config_flag import read_config, read_given
from t2t.config.field_types import PositiveInt
from t2t.config.fields import ConfigError
from t2t.config.files import load_config
from t2t.config.requests import Hosts, OneRun, Plugins, RunPath
from t2t.config.rules import check_effect
from t2t.config.variants import import_plugins
from t2t.runtime import command_line
from t2t.runtime.host_memory import keep_freed_memory
from t2t.runtime.jax_settings import has_gpu, has_tpu


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRequest(OneRun, Plugins, Hosts):
    """A run, and the recipe of a new one."""

    config: str | None = None
    # train a finished run for so many more steps, with a schedule that starts anew; without
    # --config, with the config of the run
    extend: PositiveInt | None = None
    # RUN or RUN:CHECKPOINT: begin a new run with the parameters of another one, where they fit
    # (fine-tuning). CHECKPOINT is last, best, a step, avg:COUNT, ema or ema:STEP; default: the best
    # by validation, or the last
    init_from: RunPath | None = None
    # where metrics go besides metrics.jsonl and TensorBoard: names of writers that a module of
    # --plugins registers, such as wandb of examples.writers.wandb_writer
    writers: tuple[str, ...] = ()
    # pause after this step, with the learning rates of the whole training; the same command without
    # this flag goes on
    until: PositiveInt | None = None
    # accept fields without effect, such as those that only other rows of a sweep use
    allow_unused: bool = False


def main(request: TrainingRequest) -> int:
    """Trains as requested; returns the exit status."""
    workdir = request.workdir
    if request.writers:
        import_plugins(request.plugins)
    is_alone = not request.hosts["distributed"]
    given = None
    if request.config is not None:  # an empty name is refused
        given = read_config(request.extend, workdir, trains_alone=is_alone)
    elif not (workdir / "config.json").exists():
        raise ConfigError(
            f"--config is missing, and {workdir} holds no run to continue; name a recipe, such as "
            "--config=configs/quickstart.py"
        )
    is_new = request.extend or not (workdir / "config.json").exists()
    if given and is_new and not request.allow_unused:
        check_effect([given], read_given())

    if not (has_gpu() or has_tpu()):
        keep_freed_memory()

    from t2t.api.train_run import train
    from t2t.runtime.distributed import join
    from t2t.runtime.jax_settings import enable_compilation_cache
    from t2t.training.resume import extend
    from t2t.training.stop_request import STOPPED_EARLY, is_stop_requested

    if request.extend:
        config = extend(workdir, request.extend, given)
    else:
        config = given or load_config(workdir / "config.json")
    if request.init_from:
        config.training.init_from = str(request.init_from)
    enable_compilation_cache()
    join(**request.hosts, shares_signals=True)
    if train(config, workdir, request.writers, request.until):
        return 0
    return STOPPED_EARLY if is_stop_requested(workdir) else command_line.INTERRUPTED


if __name__ == "__main__":
    command_line.run(main)
