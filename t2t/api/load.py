"""`t2t.load`.

Its imports are inside the function, because every program imports `t2t`.
"""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import t2t.api.run


def load(
    workdir: str | PathLike[str] | Sequence[str | PathLike[str]],
    checkpoint: str | int = "best",
    weights: Sequence[float] = (),
    mean: str = "probabilities",
    direction: str = "",
) -> "t2t.api.run.Run":
    """Loads the model of a run with the parameters of one checkpoint, or an ensemble of several.

    Args:
        workdir: the run directory, or those of an ensemble.
        checkpoint: "best" (by the run's validation metric), "last", a step, "avg:COUNT", the mean
            of the last COUNT checkpoints, or "ema" or "ema:STEP", the moving average of
            `training.ema_decay`; several joined by commas form an ensemble. The default is that of
            the programs.
        weights: of an ensemble's models; by default they are equal.
        mean: what an ensemble averages, "probabilities" or "log_probs".
        direction: source and target language, such as "en-de", if the run has several.

    Modules that the run's config names in `plugins` have to be imported before.

    Raises:
        ConfigError, VocabularyError, RunError: a run or checkpoint does not exist, or config,
            vocabulary and parameters do not fit together.
    """
    import jax

    from t2t.api.run import Run
    from t2t.config.fields import ConfigError
    from t2t.evaluation.load_models import ModelRequest, RunModel
    from t2t.runtime.jax_settings import check_precision
    from t2t.storage.paths import make_run_path

    given = [workdir] if isinstance(workdir, str | PathLike) else workdir
    workdirs = tuple(map(make_run_path, given))
    check_precision(jax.config.jax_enable_x64)
    if mean not in ("probabilities", "log_probs"):
        raise ConfigError(f"mean={mean!r} is unknown; use probabilities or log_probs")
    request = ModelRequest(workdirs, str(checkpoint), tuple(weights), mean, direction)
    return Run(RunModel(request))
