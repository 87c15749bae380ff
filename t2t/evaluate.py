"""Scores a run on a test set: `python -m t2t.evaluate --workdir=RUN --split=test`.

It reads the run directory and the raw text of the split. It writes the scores to
RUN/evaluations/SPLIT-CHECKPOINT-beam4-alpha0.6.json and, in the same folder, the hypotheses,
sources, references and the references' log-probabilities as .txt, one line per sentence. --watch
scores the checkpoints of a run while it trains. --average, --beam_sizes and --alphas score a run
with several averages, beam sizes or length penalties.
"""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from absl import flags

from t2t.config.fields import ConfigError
from t2t.config.flags import define_decoding, read_decoding
from t2t.evaluation.checkpoint_watcher import Watch, wait_for_checkpoint
from t2t.evaluation.decoding_grid import scan_averages, scan_search
from t2t.evaluation.evaluator import EvaluationRequest, Evaluator
from t2t.evaluation.saved_evaluations import format_measures
from t2t.evaluation.scores import MEASURES
from t2t.model.interface import Params
from t2t.runtime import program
from t2t.runtime.compilation_cache import enable_compilation_cache
from t2t.runtime.distributed import is_first, join, process_0_first
from t2t.storage.atomic_files import explain_write_errors, make_folder
from t2t.storage.paths import make_run_path
from t2t.training.checkpoint import save_params
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)

_MODES = ("watch", "average", "beam_sizes", "alphas")  # flags that select several evaluations


def evaluate(request: EvaluationRequest) -> tuple[dict[str, Any], Path]:
    """Translates, scores and saves; returns the content and the path of the scores file.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: the request names something that does
            not exist, does not fit the run, or cannot be written.
    """
    evaluator = Evaluator(request)
    params, label = evaluator.restore()
    evaluator.prepare_output(label)
    if request.save_params:
        process_0_first(lambda: save_run(request, params, label))
    [evaluation] = evaluator.evaluate(params, label)
    return dict(evaluation.result), evaluation.path


def save_run(request: EvaluationRequest, params: Params, label: str) -> None:
    """Saves the evaluated parameters as a new run directory."""
    target = make_run_path(request.save_params, "--save_params")
    if target.exists():
        raise ConfigError(f"--save_params={target} exists already; choose a new directory")
    with explain_write_errors(RunError, f"--save_params={target}"):
        make_folder(target.parent)
        save_params(request.workdir, target, params, step=int(label.split("-")[-1]))


def describe(result: Mapping[str, Any], output: Path) -> str:
    """Returns a summary of the evaluation as text."""
    search = f"beam {result['beam_size']}, alpha {result['alpha']:g}"
    if result["strategy"] == "sampling":
        search = f"sampling at temperature {result['temperature']:g}"
    if result["mbr"] != "none":
        search += f", chosen by {result['mbr']}"
    lines = [
        f"{result['split']}, checkpoint {result['checkpoint']}, {search}: "
        f"{result['num_sentences']} sentences in "
        f"{result['seconds']:.1f} s ({result['sentences_per_second']:.1f} sentences/s, "
        f"{result['tokens_per_second']:.0f} tokens/s), after {result['compile_seconds']:.1f} s of "
        "compilation"
    ]
    return "\n".join([*lines, format_measures(result["measures"]), str(output)])


def watch(request: EvaluationRequest, measure: str, patience: int, timeout: float) -> int:
    """Scores checkpoints as training writes them, prints their table; returns the exit status.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: as in `evaluate`.
    """
    counts = read_counts(request.checkpoint)
    if not wait_for_checkpoint(request.workdir, timeout):
        _log.info("no checkpoint for %g seconds (--watch_timeout)", timeout)
        return program.INTERRUPTED
    evaluator = Evaluator(dataclasses.replace(request, checkpoint="last"))
    chosen = "-".join("last" if count == 1 else f"avg{count}" for count in counts)
    output = evaluator.prepare_output(f"watch-{chosen}")
    folder = output.with_name(f"{output.stem}-{measure}")
    language = evaluator.config.data.tgt_language
    following = Watch(request.workdir, folder, counts, measure, language, patience)
    finished = following.follow(evaluator, timeout)
    print(following.describe())
    if finished:
        return 0
    _log.info("no new checkpoint for %g seconds (--watch_timeout)", timeout)
    return program.INTERRUPTED


def read_counts(checkpoint: str) -> list[int]:
    """Parses --checkpoint for --watch: "last" gives 1, "avg:n" gives n checkpoints to average."""
    counts = []
    for which in checkpoint.split(","):
        match which.split(":"):
            case ["last"]:
                counts.append(1)
            case ["avg", count] if count.isdecimal() and int(count) > 0:
                counts.append(int(count))
            case _:
                raise ConfigError(
                    f"--checkpoint={checkpoint} cannot be used with --watch; use last, avg:5, or "
                    "several joined by commas"
                )
    return sorted(set(counts))


def read_numbers(flag: str, values: list[str] | None, kind: type[int] | type[float]) -> list[Any]:
    """Parses the numbers that a flag lists."""
    try:
        numbers = [kind(value) for value in values or []]
    except ValueError:
        raise ConfigError(f"--{flag}={','.join(values or [])} is not a list of numbers") from None
    if kind is int and any(number < 1 for number in numbers):
        raise ConfigError(f"--{flag}={','.join(values or [])} must be positive")
    return numbers


def check_flags(values: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for flags that exclude each other."""
    given = [name for name in _MODES if values[name]]
    if len(given) > 1 and set(given) != {"beam_sizes", "alphas"}:
        raise ConfigError(f"{' and '.join(f'--{name}' for name in given)}: give one of them")
    for name in ("output", "save_params"):
        if given and values[name]:
            raise ConfigError(f"--{name} is for one evaluation, but --{given[0]} makes several")
    if given and jax.process_count() > 1:
        raise ConfigError(f"--{given[0]} works in one process; start only one")
    if values["average"] and values["checkpoint"]:
        raise ConfigError("--average chooses the checkpoints; leave out --checkpoint")
    for name in ("patience", "watch_timeout"):
        if values[name] and not values["watch"]:
            raise ConfigError(f"--{name} is for --watch; add --watch or leave it out")


def main() -> int:
    """Evaluates as the flags say and prints a summary; returns the exit status."""
    values = flags.FLAGS.flag_values_dict()
    enable_compilation_cache()
    join(**program.read_hosts())
    check_flags(values)
    is_selection = any(values[name] for name in _MODES)
    fields = {field.name for field in dataclasses.fields(EvaluationRequest)}
    models = program.read_models()
    workdir, *others = models.pop("workdirs")
    given = models | {"workdir": workdir, "others": tuple(others), "decoding": read_decoding()}
    given |= {name: values[name] for name in fields - given.keys()}
    given["split"] = given["split"] or ("validation" if is_selection else "test")
    given["checkpoint"] = given["checkpoint"] or ("last" if values["watch"] else "best")
    request = EvaluationRequest(**given)
    is_ensemble = bool(request.others) or (not is_selection and "," in request.checkpoint)
    if is_ensemble and (is_selection or request.save_params):
        raise ConfigError("an ensemble is one evaluation; leave out --save_params and selections")
    measure = values["measure"]
    beam_sizes = read_numbers("beam_sizes", values["beam_sizes"], int)
    alphas = read_numbers("alphas", values["alphas"], float)
    if values["watch"]:
        return watch(request, measure, values["patience"], values["watch_timeout"])
    if values["average"]:
        print(scan_averages(request, read_numbers("average", values["average"], int), measure))
    elif beam_sizes or alphas:
        print(scan_search(request, beam_sizes, alphas, measure))
    else:
        result, output = evaluate(request)
        if is_first():
            print(describe(result, output))
    return 0


def define_flags() -> None:
    """Defines the flags that say what is evaluated, and how."""
    flags.DEFINE_string(
        "split",
        None,
        "A split of the run's corpus; default: test, or validation with --watch, --average, "
        "--beam_sizes and --alphas, whose scores are for choosing among settings.",
    )
    flags.DEFINE_string(
        "checkpoint",
        None,
        "last, best, a step, avg:5 for the mean of the last 5, or ema for the moving average of "
        "training.ema_decay; default: best. Several form an ensemble. With --watch: "
        "last (the default), avg:5, or several joined by commas, each scored for every new "
        "checkpoint.",
    )
    flags.DEFINE_string(
        "src",
        "",
        "A text file to translate instead of a split; needs --ref. The scores are named after this "
        "file and a hash of both texts.",
    )
    flags.DEFINE_string("ref", "", "The reference translations of --src, line by line.")
    flags.DEFINE_string("output", "", "The scores file (.json); default: in RUN/evaluations/.")
    flags.DEFINE_string(
        "save_params", "", "Save the evaluated parameters as this new run directory."
    )


def define_modes() -> None:
    """Defines the flags that select several evaluations."""
    flags.DEFINE_bool(
        "watch",
        False,
        "Score all checkpoints of the run, and new ones as they appear, until its last step.",
    )
    flags.DEFINE_integer(
        "patience",
        0,
        "With --watch: tell training to stop after this many checkpoints without a better score; "
        "0: never.",
        lower_bound=0,
    )
    flags.DEFINE_float(
        "watch_timeout",
        0.0,
        "With --watch: exit after this many seconds without a new checkpoint; 0: never.",
        lower_bound=0.0,
    )
    flags.DEFINE_list(
        "average", None, "A list such as 1,2,5,10: score the mean of the last n checkpoints each."
    )
    flags.DEFINE_list(
        "beam_sizes",
        None,
        "A list such as 1,4: score with each of these beam sizes, and with each of --alphas if "
        "given.",
    )
    flags.DEFINE_list(
        "alphas",
        None,
        "A list such as 0.4,0.6,1: score with each of these exponents of the length penalty. One "
        "search per beam size serves all of them, with the results of separate searches: alpha "
        "ranks the finished hypotheses but does not affect which hypotheses are extended, and the "
        "search continues until no alpha can find a better one. With beam size 1 there is one "
        "hypothesis, so alpha changes nothing.",
    )
    flags.DEFINE_enum(
        "measure",
        "bleu",
        MEASURES,
        "The score by which --watch, --average, --beam_sizes and --alphas choose the best.",
    )


if __name__ == "__main__":
    program.define_models()
    program.define_direction()
    program.define_hosts()
    program.define_backend()
    define_flags()
    define_modes()
    define_decoding()
    program.run(main)
