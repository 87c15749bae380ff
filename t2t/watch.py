"""Scores a run's checkpoints while it trains: `python -m t2t.watch --workdir=RUN --patience=5`.

It scores the checkpoints that exist, then new ones as they appear, until training ends. It keeps
the best parameters as a run directory of their own. With --patience it tells training to stop.
"""

import dataclasses
from typing import Annotated

from t2t.config.field_types import NonNegativeFloat, NonNegativeInt, Rule
from t2t.config.requests import Flag
from t2t.config.variants import import_plugins
from t2t.evaluation.requests import SelectionRequest, count_averaged
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchRequest(SelectionRequest):
    """The run, what is scored of each checkpoint, and when to stop."""

    # what is scored of each new checkpoint: the checkpoint itself (last), the mean of the last 5
    # (avg:5), or both, joined by commas
    checkpoints: Annotated[
        tuple[str, ...],
        Flag("checkpoint"),
        Rule(
            "be last or avg:COUNT, or several",
            lambda names: names and all(map(count_averaged, names)),
        ),
    ] = ("last",)
    # tell training to stop after this many checkpoints without a better score, counted from the
    # first one that translates (1 BLEU); 0: never
    patience: NonNegativeInt = 0
    # exit with status 124 after this many seconds without a new checkpoint; 0: never
    timeout: NonNegativeFloat = 0.0


def main(request: WatchRequest) -> int:
    """Scores checkpoints until training ends, and prints the table; returns the exit status."""
    from t2t.api.watch_run import watch
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()
    import_plugins(request.plugins)  # that register measures
    finished, table = watch(request, request.checkpoints, request.patience, request.timeout)
    print(table, end="\n" * bool(table))
    return 0 if finished else command_line.TIMED_OUT


if __name__ == "__main__":
    command_line.run(main)
