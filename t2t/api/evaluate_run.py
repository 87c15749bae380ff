"""`evaluate` and `watch`: one evaluation of a run, and one of each checkpoint that it writes."""

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.config.fields import ConfigError
from t2t.config.files import load_config
from t2t.config.measures import CASED_MEASURES, choose_measure
from t2t.evaluation.checkpoint_watcher import Watch, wait_for_checkpoint
from t2t.evaluation.evaluator import EvaluationRequest, Evaluator
from t2t.evaluation.saved_evaluations import describe_search, format_measures
from t2t.evaluation.significance import MIN_SENTENCES
from t2t.model.interface import Params
from t2t.storage.atomic_files import explain_write_errors, make_folder
from t2t.storage.paths import make_run_path
from t2t.training.checkpoint import save_params
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)


def evaluate(request: EvaluationRequest) -> tuple[dict[str, Any], Path]:
    """Translates, scores and saves; returns the content and the path of the scores file.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: the request names something that does
            not exist, does not fit the run, or cannot be written.
    """
    evaluator = Evaluator(request)
    if evaluator.config.tokenizer.lowercase:
        _log.info(
            "outputs are lower-case (tokenizer.lowercase): %s count that as errors",
            ", ".join(CASED_MEASURES),
        )
    params, label = evaluator.restore()
    evaluator.prepare_output(label)
    if request.save_params:
        save_run(request, params, label)
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
    lines = [
        f"{result['split']}, checkpoint {result['checkpoint']}, {describe_search(result)}: "
        f"{result['num_sentences']} sentences in "
        f"{result['seconds']:.1f} s ({result['sentences_per_second']:.1f} sentences/s, "
        f"{result['tokens_per_second']:.0f} tokens/s), after {result['compile_seconds']:.1f} s of "
        "compilation"
    ]
    lines.append(format_measures(result["measures"]))
    lines += describe_lengths(result["measures"])
    if result["num_sentences"] < MIN_SENTENCES:
        lines.append(
            f"no 95% intervals: resamples of fewer than {MIN_SENTENCES} sentences do not show how "
            "scores vary"
        )
    return "\n".join([*lines, str(output)])


def describe_lengths(measures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describes the lengths of the first BLEU: brevity penalty, ratio, and words as it counts."""
    pattern = r"BP = (\S+) ratio = (\S+) hyp_len = (\d+) ref_len = (\d+)"  # sacreBLEU's line
    for name, score in measures.items():
        if found := re.search(pattern, score.get("detail", "")):
            penalty, ratio, length, wanted = found.groups()
            return [
                f"{name}: brevity penalty {penalty}, length ratio {ratio} ({length} tokens, "
                f"{wanted} in the references)"
            ]
    return []


def watch(
    request: EvaluationRequest,
    counts: Sequence[int],
    measure: str | None,
    patience: int,
    timeout: float,
) -> bool:
    """Scores checkpoints as training writes them, and prints their table.

    An empty `measure` means the one of `choose_measure`.

    Returns:
        Whether the last step was scored; if not, no checkpoint came for `timeout` seconds.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: as in `evaluate`.
    """
    if not wait_for_checkpoint(request.workdir, timeout):
        _log.info("no checkpoint for %g seconds (--watch_timeout)", timeout)
        return False
    lowercase = load_config(request.workdir / "config.json").tokenizer.lowercase
    measure = choose_measure(measure, lowercase=lowercase)
    request = dataclasses.replace(request.measuring(measure), checkpoint="last")
    evaluator = Evaluator(request)
    keeping = evaluator.config.checkpoints
    if max(counts) > keeping.keep_last and keeping.keep_every != keeping.every:
        raise ConfigError(
            f"--checkpoint=avg:{max(counts)} needs as many checkpoints at a time, but training "
            f"keeps checkpoints.keep_last={keeping.keep_last}; average fewer"
        )
    chosen = "-".join("last" if count == 1 else f"avg{count}" for count in counts)
    output = evaluator.prepare_output(f"watch-{chosen}")
    folder = output.with_name(f"{output.stem}-{measure}")
    following = Watch(request.workdir, folder, counts, measure, evaluator.tgt_language, patience)
    finished = following.follow(evaluator, timeout)
    print(following.describe())
    if not finished:
        _log.info("no new checkpoint for %g seconds (--watch_timeout)", timeout)
    return finished
