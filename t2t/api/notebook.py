"""`t2t.load`; and `t2t.train`, `t2t.evaluate` and `t2t.compare`, whose results notebooks show.

Imports of JAX are inside the functions, because every program imports `t2t`.
"""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from t2t.api.compare_runs import Comparison
    from t2t.api.run import Run
    from t2t.config.fields import Config
    from t2t.evaluation.evaluator import EvaluationRequest
    from t2t.evaluation.load_models import ModelRequest
    from t2t.evaluation.saved_evaluations import Evaluation


def load(
    workdir: str | PathLike[str] | Sequence[str | PathLike[str]],
    checkpoint: str | int = "best",
    weights: Sequence[float] = (),
    mean: str = "probabilities",
    direction: str = "",
) -> "Run":
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
    check_precision(jax.config.values["jax_enable_x64"])
    if mean not in ("probabilities", "log_probs"):
        raise ConfigError(f"mean={mean!r} is unknown; use probabilities or log_probs")
    request = ModelRequest(workdirs, str(checkpoint), tuple(weights), mean, direction)
    return Run(RunModel(request))


def train(config: "Config", workdir: str | PathLike[str], *, writers: Sequence[str] = ()) -> "Run":
    """Trains a run, or continues it, like the program `t2t.train`.

    An interruption of the kernel stops training after the step; the same call continues.

    Args:
        config: such as that of a recipe in `configs/`; `training.init_from` names a run that is
            fine-tuned.
        workdir: the run directory.
        writers: registered writers of metrics.

    Returns:
        The run, with its best parameters by validation, or the last without a validation.

    Raises:
        ConfigError, DataError, RunError: the config breaks a rule, data are missing, or the run
            directory holds another run.
    """
    from t2t.api import train_run
    from t2t.config.new_run_rules import check_effect, check_new_run
    from t2t.config.rules import validate
    from t2t.runtime.jax_settings import enable_compilation_cache
    from t2t.storage.paths import make_run_path
    from t2t.training.checkpoint import list_scored_measures

    path = make_run_path(workdir)
    validate(config)
    if not (path / "config.json").exists():
        check_new_run(config)
        check_effect([config], ())
    enable_compilation_cache()
    train_run.train(config, path, writers)
    is_scored = config.checkpoints.best_metric in list_scored_measures(path)
    return load(path, "best" if is_scored else "last")


def evaluate(
    run: "str | PathLike[str] | Run",
    split: str = "test",
    *,
    checkpoint: str | int = "best",
    **options: Any,
) -> "Evaluation":
    """Translates and scores a test set, and saves the evaluation, like the program `t2t.evaluate`.

    Args:
        run: a run directory; or a run that is loaded, which is evaluated with its checkpoint.
        split: of the run's corpus.
        checkpoint: as in `t2t.load`.
        options: other fields of `t2t.evaluation.evaluator.EvaluationRequest`, such as
            `src="mine.en", ref=("mine.de",)` or `decoding={"beam_size": 1}`.

    Returns:
        The saved evaluation: `value("bleu")`, `interval("bleu")`, `read_lines("hypotheses")`.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: something is missing or does not fit.
    """
    from t2t.api import evaluate_run
    from t2t.evaluation.evaluator import EvaluationRequest
    from t2t.runtime.jax_settings import enable_compilation_cache
    from t2t.storage.paths import make_run_path

    enable_compilation_cache()
    if isinstance(run, str | PathLike):
        request = EvaluationRequest(make_run_path(run), str(checkpoint), split, **options)
    else:
        request = make_request(run.request, split, **options)
    return evaluate_run.evaluate(request)


def make_request(models: "ModelRequest", split: str, **options: Any) -> "EvaluationRequest":
    """Returns the request to evaluate the checkpoints of a loaded run, or an ensemble."""
    from t2t.evaluation.evaluator import EvaluationRequest

    workdir, *others = models.workdirs
    fields: dict[str, Any] = {"others": tuple(others), "weights": models.weights}
    fields |= {"mean": models.mean, "direction": models.direction} | options
    return EvaluationRequest(workdir, models.checkpoint, split, **fields)


def compare(
    *systems: "str | PathLike[str] | Run | Evaluation",
    measure: str | None = None,
    split: str = "test",
    checkpoint: str = "",
) -> "Comparison":
    """Compares the newest evaluations of runs, with verdicts, like the program `t2t.compare`.

    Args:
        systems: run directories, runs or evaluations; seeds of one system are joined by commas,
            "runs/a1,runs/a2". The first one is what the others are compared with.
        measure: by default bleu.
        split: of the evaluations.
        checkpoint: of the evaluations; empty: of the newest one.

    Raises:
        ConfigError, EvaluationError: evaluations are missing or not comparable.
    """
    from t2t.api import compare_runs

    def name(system: "str | PathLike[str] | Run | Evaluation") -> str:
        if isinstance(system, str | PathLike):
            return str(system)
        return str(getattr(system, "path", None) or cast("Run", system).workdir)

    operands = [name(system) for system in systems]
    return compare_runs.compare(operands, measure, split, "", None, checkpoint=checkpoint)
