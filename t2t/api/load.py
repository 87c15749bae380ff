"""`t2t.load`.

Its imports are inside the function, because every program imports `t2t`.
"""

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import t2t.api.run


def load(workdir: str | PathLike[str], checkpoint: str | int = "last") -> "t2t.api.run.Run":
    """Loads the model of a run with the parameters of one checkpoint.

    Args:
        workdir: the run directory.
        checkpoint: "last", "best" (by the run's validation metric), a step, or "avg:COUNT", the
            mean of the last COUNT checkpoints.

    Raises:
        ConfigError, VocabularyError, RunError: the run or the checkpoint does not exist, or its
            config, vocabulary and parameters do not fit together.
    """
    from t2t.api.run import open_run
    from t2t.storage.paths import make_run_path

    return open_run(make_run_path(workdir), str(checkpoint))
