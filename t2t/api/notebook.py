"""`t2t.load`; and `t2t.train`, `t2t.evaluate`, `t2t.evaluate_output` and `t2t.compare`.

Imports of JAX are inside the functions, because every program imports `t2t`.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t2t.api.compare_runs import Comparison
    from t2t.api.run import Run
    from t2t.config.fields import Config
    from t2t.evaluation.saved_evaluations import Evaluation


_MODELS = ("checkpoint", "weights", "mean")  # options that choose parameters


def load(
    workdir: str | PathLike[str] | Iterable[str | PathLike[str]],
    checkpoint: str | int = "best",
    weights: Iterable[float] = (),
    mean: str = "probabilities",
    task: str = "",
    *,
    measure_model: Mapping[str, str | PathLike[str]] | None = None,
) -> "Run":
    """Loads the model of a run with the parameters of one checkpoint, or an ensemble of several.

    Args:
        workdir: the run directory, or several for an ensemble.
        checkpoint: "best" (by the run's validation metric), "last", a step, "avg:COUNT", the mean
            of the last COUNT checkpoints, or "ema" or "ema:STEP", the moving average of
            `training.ema_decay`; several joined by commas form an ensemble. The default is that of
            the programs.
        weights: of an ensemble's models; by default they are equal.
        mean: what an ensemble averages, "probabilities" or "log_probs".
        task: of a run that learns several, its name in `data.mixture` (default: the first), or the
            direction, such as "en-de".
        measure_model: for `mbr` by a measure that a model computes, the run directory of that model
            by measure.

    Modules that the run's config names in `plugins` have to be imported before.

    Raises:
        ConfigError, VocabularyError, RunError: a run or checkpoint does not exist, or config,
            vocabulary and parameters do not fit together.
    """
    import jax

    from t2t.api.run import Run, check_process
    from t2t.config.files import read_argument
    from t2t.config.requests import make_request, name_as
    from t2t.evaluation.load_models import RunModel
    from t2t.evaluation.requests import MeasureModels, ModelRequest
    from t2t.runtime.jax_settings import check_precision

    check_process()
    given = {"workdirs": workdir, "weights": weights, "mean": mean, "task": task}
    given["checkpoint"] = str(read_argument("checkpoint", checkpoint, str | int))
    request = make_request(ModelRequest, given)
    models = make_request(MeasureModels, {"measure_model": measure_model or {}}).measure_model
    check_precision(jax.config.values["jax_enable_x64"])
    with name_as(ModelRequest):
        model = RunModel(request)
    model.measure_models = models
    return Run(model)


def train(config: "Config", workdir: str | PathLike[str], *, writers: Sequence[str] = ()) -> "Run":
    """Trains a run, or continues it, like the program `t2t.train`.

    An interruption of the kernel stops training after the step; the same call continues.

    Args:
        config: for example of a recipe in `configs/`; `training.init_from` names a run that is
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
    from t2t.api.run import check_process
    from t2t.config.files import read_argument
    from t2t.config.fitted_config import check_config
    from t2t.config.rules import check_effect
    from t2t.runtime.jax_settings import enable_compilation_cache
    from t2t.storage.paths import make_run_path
    from t2t.training.checkpoint import list_scored_measures

    check_process()
    path = make_run_path(read_argument("workdir", workdir, str), "workdir")
    names = read_argument("writers", writers, tuple[str, ...])
    config = check_config(config, path)
    if not (path / "config.json").exists():
        check_effect([config], ())
    enable_compilation_cache()
    train_run.train(config, path, names)
    is_scored = config.checkpoints.best_metric in list_scored_measures(path)
    return load(path, "best" if is_scored else "last")


def evaluate(
    run: "str | PathLike[str] | Iterable[str | PathLike[str]] | Run",
    split: str = "",
    *,
    checkpoint: str | int | None = None,
    **options: Any,
) -> "Evaluation":
    """Translates and scores a test set, and saves the evaluation, like the program `t2t.evaluate`.

    Args:
        run: a run directory, or several for an ensemble; or a run that is loaded, of which the
            parameters that it holds are evaluated, whatever its directory holds by now.
        split: of the run's corpus; by default test.
        checkpoint: as in `t2t.load`; not with a run that is loaded.
        options: the flags of the program that say what is evaluated, and how, such as
            `src="mine.en", ref="mine.de"` in place of a split, or `beam_size=1`: the fields of
            `t2t.evaluation.requests.EvaluationRequest` and of `config.decoding`.

    Returns:
        The saved evaluation: `value("bleu")`, `interval("bleu")`, `read_lines("hypotheses")`.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: something is missing or does not fit.
    """
    from t2t.api import evaluate_run
    from t2t.api.run import Run, check_process
    from t2t.config.fields import ConfigError
    from t2t.config.files import read_argument
    from t2t.config.requests import make_request, name_as
    from t2t.evaluation.requests import EvaluationRequest
    from t2t.runtime.jax_settings import enable_compilation_cache

    check_process()
    for name in ("workdir", "workdirs"):
        if name in options:
            raise ConfigError(f"{name}: the run directory is the first argument; leave {name} out")
    given = {"split": split, **options}
    if checkpoint is not None:
        given["checkpoint"] = read_argument("checkpoint", checkpoint, str | int)
    if isinstance(run, Run):
        if named := [name for name in _MODELS if name in given]:
            raise ConfigError(
                f"{named[0]}={given[named[0]]!r} chooses parameters, but {run!r} is evaluated "
                "with those that it holds; leave it out, or name the run directory"
            )
        given = vars(run.request) | given
    else:
        given["workdirs"] = read_argument("run", run, tuple[str, ...])
        given["checkpoint"] = str(given.get("checkpoint", "best"))
    request = make_request(EvaluationRequest, given)
    enable_compilation_cache()
    with name_as(EvaluationRequest):
        return evaluate_run.evaluate(request, run.held if isinstance(run, Run) else None)


def evaluate_output(
    hypotheses: str | PathLike[str], output: str | PathLike[str], **options: Any
) -> "Evaluation":
    """Scores what another program translated, like the program `t2t.evaluate_output`.

    Args:
        hypotheses: the file of the translations.
        output: the .json file that is written.
        options: the flags of the program, such as `src="mine.en", ref="mine.de"`: the fields of
            `t2t.evaluation.requests.OutputRequest`.

    Raises:
        ConfigError, DataError, RunError: something is missing or does not fit.
    """
    from t2t.api.run import check_process
    from t2t.config.requests import make_request, name_as
    from t2t.evaluation import outputs
    from t2t.evaluation.requests import OutputRequest

    check_process()
    given = {"hypotheses": hypotheses, "output": output, **options}
    with name_as(OutputRequest):
        return outputs.evaluate_output(make_request(OutputRequest, given))


def compare(
    *systems: "str | PathLike[str] | Run | Evaluation",
    measure: str | None = None,
    split: str = "",
    checkpoint: str | int = "",
    task: str = "",
) -> "Comparison":
    """Compares evaluations of runs, with verdicts, like the program `t2t.compare`.

    Args:
        systems: run directories, of which the newest evaluations are taken; runs that are loaded,
            of which it is the newest evaluation of the parameters that they hold; or evaluations.
            Seeds of one system are joined by commas, "runs/a1,runs/a2". The first system is what
            the others are compared with.
        measure: by default bleu, or what means something for the text.
        split: of the evaluations; by default test.
        checkpoint: of the newest evaluations of run directories; empty: of any.
        task: of the evaluations of run directories, if they are of several tasks.

    Raises:
        ConfigError, EvaluationError: evaluations are missing or not comparable.
    """
    from t2t.api import compare_runs
    from t2t.api.run import Run
    from t2t.config.fields import ConfigError, show
    from t2t.config.files import read_argument
    from t2t.config.requests import name_as
    from t2t.evaluation.saved_evaluations import Evaluation

    split = read_argument("split", split, str)
    measure = read_argument("measure", measure, str | None)
    chosen = str(read_argument("checkpoint", checkpoint, str | int))
    task = read_argument("task", task, str)
    if not systems:
        raise ConfigError("systems is empty; name run directories, runs or evaluations")
    operands = []
    for number, system in enumerate(systems):
        if chosen and isinstance(system, Run | Evaluation):
            raise ConfigError(
                f"checkpoint={chosen} chooses among the evaluations of a run directory, but "
                f"systems[{number}]={show(system)} is given; leave it out"
            )
        found = system.find_evaluation(split or "test") if isinstance(system, Run) else system
        path = found.path if isinstance(found, Evaluation) else found
        if not isinstance(path, str | PathLike):
            raise ConfigError(
                f"systems[{number}]={show(system)} is no run directory, run or evaluation; give "
                "each as an argument of its own"
            )
        operands.append(str(path))
    with name_as(("measure", "split", "checkpoint", "task")):
        return compare_runs.compare(
            operands, measure, split, "", None, checkpoint=chosen, task=task
        )
