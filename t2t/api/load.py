"""`t2t.load`. It imports what it needs when it is called, since every program imports `t2t`."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import t2t.api.run


def load(workdir: str | PathLike[str], checkpoint: str | int = "last") -> "t2t.api.run.Run":
    """The model of a run directory with the parameters of a checkpoint.

    Args:
        workdir: a run directory.
        checkpoint: last, best (by the run's validation metric), a step, or avg:COUNT, the mean of
            the last COUNT.

    Raises:
        ConfigError, VocabularyError, RunError: there is no such run or checkpoint, or its parts do
            not fit together.
    """
    from t2t.api.run import open_run

    return open_run(Path(workdir).expanduser(), str(checkpoint))
