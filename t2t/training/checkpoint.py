"""Parameters of checkpoints: restores them for programs, averages them, writes them as a run.

Training's own checkpoints are written by t2t/training/checkpoint_manager.py.
"""

import contextlib
import math
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from t2t.config.files import load_config
from t2t.model.interface import Params
from t2t.storage.atomic_files import draft_folder, make_folder, require_space, write_file
from t2t.training.averages import average
from t2t.training.provenance import copy_plugins
from t2t.training.run_directory import (
    CHECKPOINT_NAMES,
    RunError,
    first_line,
    list_last_steps,
    list_steps,
    make_read_error,
)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """A context that delays SIGINT and SIGTERM until its end.

    Orbax may abort or wait forever if a signal interrupts it. Python handles signals only in the
    main thread, so the context does nothing in other threads. An ignored signal stays ignored. With
    several processes SIGTERM is left to JAX (`t2t.training.signals.Interruption`).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM][: 1 if jax.process_count() > 1 else 2]
    previous = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def restore_params(workdir: Path, which: str) -> tuple[Params, str]:
    """Restores parameters for evaluation onto the first local device.

    `which` is "last", "best" (by `checkpoints.best_metric`), a step, "avg:5", the mean of the last
    5 regular checkpoints (section 6.1), or "ema", the exponential moving average
    (`training.ema_decay`) in the last checkpoint; "ema:3000": in that of step 3000.

    Returns the parameters, and their name in files and records, for example "best-3000".

    Raises:
        RunError: there is no such checkpoint, or it cannot be read.
    """
    steps = list_steps(workdir)
    if not steps:
        raise RunError(f"{workdir} holds no complete checkpoint; is it a run directory?")
    match which.split(":"):
        case [step] | ["ema", step] if step.isdecimal() and int(step) not in steps:
            raise RunError(
                f"{workdir} holds no checkpoint of step {step}; it has {', '.join(map(str, steps))}"
            )
        case ["last"]:
            return _restore_step(workdir, steps[-1]), str(steps[-1])
        case ["best"]:
            best = find_best_step(workdir)
            return _restore_step(workdir, best), f"best-{best}"
        case ["avg", count] if count.isdecimal() and int(count) > 0:
            averaged = find_average_steps(workdir, int(count))
            return average_params(workdir, averaged), f"avg{count}-{averaged[-1]}"
        case ["ema"]:
            return _restore_step(workdir, steps[-1], "ema"), f"ema-{steps[-1]}"
        case ["ema", step] if step.isdecimal():
            return _restore_step(workdir, int(step), "ema"), f"ema-{step}"
        case [step] if step.isdecimal():
            return _restore_step(workdir, int(step)), step
        case _:
            raise RunError(f"checkpoint {which!r} is unknown; use {CHECKPOINT_NAMES}")


def find_average_steps(workdir: Path, count: int) -> list[int]:
    """Returns the steps of the last `count` consecutive regular checkpoints, for an average.

    Raises:
        RunError: there are fewer.
    """
    steps = list_last_steps(workdir, count)
    if len(steps) < count:
        remedy = f"ask for at most {len(steps)}" if steps else "use last"
        raise RunError(
            f"{workdir} has {len(steps)} checkpoints in a row at the regular interval, too few for "
            f"an average of {count}; {remedy}, or raise checkpoints.keep_last and continue training"
        )
    return steps


def find_best_step(workdir: Path) -> int:
    """Returns the step with the best score in `checkpoints.best_metric`, or raises `RunError`."""
    metric = load_config(workdir / "config.json").checkpoints.best_metric
    scores = {step: own[metric] for step, own in _read_scores(workdir).items() if metric in own}
    if not scores:
        raise RunError(f"{workdir} holds no checkpoint with a validation {metric}; use last")
    return max(scores, key=lambda step: sort_key(scores[step], metric))


def list_measures(workdir: Path) -> set[str]:
    """Returns the validation measures, such as loss and bleu, that checkpoints have scores for.

    Raises:
        RunError: a checkpoint's validation scores are damaged.
    """
    return {measure for scores in _read_scores(workdir).values() for measure in scores}


def _read_scores(workdir: Path) -> dict[int, dict[str, float]]:
    """Returns step -> measure -> validation score for all checkpoints."""
    options = ocp.CheckpointManagerOptions(
        create=False, enable_async_checkpointing=False, lightweight_initialize=True
    )
    folder = workdir.absolute() / "checkpoints"
    scores = {}
    with ocp.CheckpointManager(folder, options=options) as manager:
        for step in manager.all_steps():
            try:
                metrics = manager.metrics(step) or {}
                scores[step] = {measure: float(score) for measure, score in metrics.items()}
            except (AttributeError, TypeError, ValueError) as error:
                raise make_read_error(workdir, step, error) from error
    return scores


def sort_key(score: float, metric: str) -> float:
    """Returns the sort key of a score: higher is better; all metrics but bleu are negated."""
    if math.isnan(score):
        return -math.inf
    return score if metric == "bleu" else -score


def average_params(workdir: Path, steps: Sequence[int]) -> Params:
    """Reads and averages the parameters of these checkpoints, one at a time."""
    return average(_restore_step(workdir, step) for step in steps)


def save_params(workdir: Path, target: Path, params: Params, step: int) -> None:
    """Writes a run directory with only these parameters and what belongs to them; see `write_run`.

    Raises:
        OSError: it cannot be written.
    """
    paths = [*(workdir / "vocab").iterdir(), workdir / "config.json"]
    files = {str(path.relative_to(workdir)): path.read_bytes() for path in paths}
    write_run(target, params, step, files, plugins=workdir)


@hold_signals()
def write_run(
    target: Path,
    params: Params,
    step: int,
    files: Mapping[str, bytes],
    plugins: Path | None = None,
) -> None:
    """Writes a run directory with one checkpoint, of parameters alone.

    It appears when it is complete; in a bucket its `config.json` is the last object. `files` are
    the other files by their names, config.json and those of vocab/ among them; `plugins` is the run
    directory whose plugins are copied.

    Raises:
        OSError: it cannot be written.
    """
    with draft_folder(target) as folder:
        make_folder(folder / "vocab")
        require_space(folder, sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
        for name in files.keys() - {"config.json"}:
            write_file(folder / name, files[name])
        if plugins is not None:
            copy_plugins(plugins, folder)
        try:
            with ocp.CheckpointManager(folder.absolute() / "checkpoints") as manager:
                manager.save(step, args=ocp.args.Composite(params=ocp.args.StandardSave(params)))
        except Exception as error:  # Orbax raises errors of several types
            raise OSError(first_line(error)) from error
        write_file(folder / "config.json", files["config.json"])


@hold_signals()
def _restore_step(workdir: Path, step: int, item: str = "params") -> Params:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    folder = workdir.absolute() / "checkpoints" / str(step) / item
    if item == "ema" and not folder.exists() and step in list_steps(workdir):
        raise RunError(
            f"checkpoint {step} of {workdir} has no moving average of the parameters: training had "
            "training.ema_decay=0, or --save_params wrote it; use last, best or avg:COUNT"
        )
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            abstract = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
                ocp.StandardCheckpointHandler().metadata(folder).tree,
            )
            return rename_layers(_number_layers(checkpointer.restore(folder, abstract)))
    except Exception as error:
        raise make_read_error(workdir, step, error) from error


# The first names of an encoder layer's sub-modules, and those of today.
_RENAMED = {"attention": "self_attention", "attention_residual": "self_residual"}


def rename_layers(tree: Any, *, to_old: bool = False) -> Any:
    """Gives the encoder's layers in a tree of an old checkpoint today's names, or the reverse.

    The tree may hold parameters at any depth, as the state of an optimiser does.
    """
    names = {new: old for old, new in _RENAMED.items()} if to_old else _RENAMED

    def rename(tree: Any, depth: int | None) -> Any:  # below "encoder"; None: elsewhere
        if isinstance(tree, Mapping):
            return {
                names.get(name, name) if depth == 1 else name: rename(
                    part, 0 if name == "encoder" else None if depth is None else depth + 1
                )
                for name, part in tree.items()
            }
        if isinstance(tree, tuple) and hasattr(tree, "_fields"):
            return type(tree)(*(rename(part, depth) for part in tree))
        if isinstance(tree, tuple | list):
            return type(tree)(rename(part, depth) for part in tree)
        return tree

    return rename(tree, None)


def has_old_names(tree: Any) -> bool:
    """Returns whether a tree, as Orbax describes a checkpoint, has names that were changed."""
    paths = (
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree.leaves_with_path(tree)
    )
    return any(re.search(r"\bencoder\.\d+\.attention\.", path) for path in paths)


def _number_layers(params: Mapping[str, Any]) -> dict[Any, Any]:
    """Turns the layer numbers, which Orbax restores as strings, into integers again.

    As strings they would have another order: "10" comes before "2".
    """
    return {
        int(name) if name.isdecimal() else name: (
            _number_layers(part) if isinstance(part, dict) else part
        )
        for name, part in params.items()
    }
