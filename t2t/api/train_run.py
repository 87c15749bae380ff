"""`train`: trains a run from its data to its last checkpoint, or continues one."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import shlex
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from tqdm.contrib.logging import logging_redirect_tqdm

from t2t.config.field_types import Role
from t2t.config.fields import Config, flatten
from t2t.config.files import differences
from t2t.config.stages import Stage
from t2t.config.variants import find_role, list_plugins
from t2t.data.batch import DeviceBatch, HostBatch, Route
from t2t.data.batch_plan import RowLengths
from t2t.data.corpus import Corpus
from t2t.data.corpus_sources import Data, check_paths, open_data
from t2t.data.directions import find_tasks
from t2t.data.loader import Loader, find_row_shards, prefetch
from t2t.data.objectives import make_objectives, plan_lengths
from t2t.data.packing import make_plan
from t2t.data.preparation import check_prepared, fill_tokenizer, make_vocabulary, tokenize
from t2t.data.stages import find_stage, format_stage, iterate_stages, list_stages, measure_stages
from t2t.data.token_cache import TokenizedCorpus
from t2t.data.tokenizer import Vocabulary
from t2t.evaluation.validation_scores import Validation
from t2t.model.parameters import Params, name_leaves
from t2t.ops.build_model import abstract_model
from t2t.ops.select_kernels import list_kernels
from t2t.runtime.distributed import process_0_first
from t2t.runtime.jax_settings import check_precision
from t2t.runtime.mesh import check_divisibility, make_mesh
from t2t.runtime.saved_programs import SavedPrograms
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import check_bucket, explain_write_errors
from t2t.storage.paths import check_new_run_path
from t2t.training import loop
from t2t.training.checkpoint import rank_steps
from t2t.training.checkpoint_manager import Checkpoints
from t2t.training.config_warnings import doubt_outputs, doubt_shapes, list_doubts
from t2t.training.disk_space import warn_of_missing_space
from t2t.training.fine_tuning import (
    Outcome,
    SourceRun,
    check_fit,
    check_undivided,
    read_source,
    tabulate_outcomes,
    take_params,
)
from t2t.training.metric_writers import check_writers, open_writers
from t2t.training.optimizer import Optimizer, describe_optimizer, make_run_optimizer
from t2t.training.parameter_groups import check_patterns, find_factor
from t2t.training.provenance import (
    hash_params,
    identify_programs,
    read_last_start,
    record_start,
)
from t2t.training.report import Report
from t2t.training.resume import (
    check_vocabulary,
    keep_source,
    open_run,
    settle_dtype,
    settle_options,
)
from t2t.training.run_directory import RunError, list_steps, lock_run, read_curve
from t2t.training.sharing import Sharing, has_own_stacks
from t2t.training.state import (
    abstract_params,
    abstract_state,
    init_params,
    init_state,
    init_training,
)
from t2t.training.step import make_run_step
from t2t.training.stop_request import is_stop_requested, record_stop
from t2t.training.teachers import open_teachers, place_teachers

_log = logging.getLogger(__name__)

# Modules whose functions are compiled.
_PROGRAMS = ("t2t.training.step", "t2t.training.state", "t2t.evaluation.validation_scores")
# Roles of fields on which no program depends.
_UNCOMPILED = {
    Role.SEED, Role.TEXT, Role.LANGUAGES, Role.FILES, Role.STORE, Role.HELD_OUT, Role.VOCABULARY,
    Role.COPIED, Role.VALIDATION, Role.LOGGING, Role.CHECKPOINTS, Role.SEARCH, Role.SEARCH_BATCHES,
    Role.WISHES,
}  # fmt: skip


def train(
    config: Config, workdir: Path, writers: Sequence[str] = (), until: int | None = None
) -> bool:
    """Trains until the last step, an interruption or a stop request; returns whether it is done.

    `writers` names registered writers of metrics. Training pauses after the step `until`: another
    call goes on.
    """
    check_writers(writers)
    if not (workdir / "config.json").exists():
        check_new_run_path(workdir)
    check_precision(jax.config.values["jax_enable_x64"])
    tasks = check_paths(config.data)
    with explain_write_errors(RunError, workdir):
        check_bucket(workdir)  # a folder is checked when it is locked
    config = fill_tokenizer(keep_source(workdir, config), workdir)
    check_optimizer(config)
    is_tuned = config.training.init_from and not list_steps(workdir)
    source = open_source(config, workdir) if is_tuned else None
    mesh = make_mesh(config.mesh)
    check_divisibility(config, mesh)
    teachers = open_teachers(config, workdir, mesh)
    check_prepared(config, workdir, tasks)
    data = open_data(tasks, config.tokenizer)
    with lock_run(workdir), jax.set_mesh(mesh):
        config = settle_options(workdir, settle_dtype(workdir, config))
        open_run(workdir, config, data.corpora)
        last = max(list_steps(workdir), default=0)
        if last >= config.training.steps:
            end = describe_end(workdir, config, last, data.splits)
            _log.info("training has %s; --extend=STEPS goes on", end)
            return True
        if until and last >= until:
            _log.info("training has passed step %d", until)
            return True
        if is_stop_requested(workdir):
            record_stop(workdir, last)
            return False
        if last and config.training.init_from:
            _log.info(
                "--init_from=%s acted when the run began; going on from checkpoint %d",
                config.training.init_from, last,
            )  # fmt: skip
        return train_on_mesh(config, workdir, mesh, data, source, writers, teachers, until)


def check_optimizer(config: Config) -> None:
    """Raises `ConfigError` if an optimiser is wrong or a pattern has no effect; builds no array."""
    optimizer = make_run_optimizer(config)
    if config.training.frozen or config.training.rate_factors:
        size = config.tokenizer.vocab_size
        _, params = abstract_params(config, size, size)
        describe_optimizer(config, optimizer, params)  # raises if rate_factors have no effect
        check_patterns(config.training, name_leaves(params))


def open_source(config: Config, workdir: Path) -> SourceRun:
    """Reads the parameters of another run with which a new one begins."""
    source = read_source(config.training.init_from, workdir)
    size = config.tokenizer.vocab_size
    if Sharing(config).is_plain:
        check_undivided(source, "--init_from")
    check_fit(config.model, abstract_model(config.model, size, size)[1], source)
    if not config.tokenizer.path and not Vocabulary.is_saved(workdir / "vocab"):
        _log.info(
            "the vocabulary will be trained on this run's text; to keep that of %s, add "
            "--config.tokenizer.path=%s",
            source.run, source.run / "vocab",
        )  # fmt: skip
    return source


def start_from(
    source: SourceRun, config: Config, params: Params, vocabulary: Vocabulary
) -> tuple[Params, dict[str, Any]]:
    """Returns a new run's parameters with what fits of the source, and a record for the ledger.

    The source loses its own parameters, so that they fill no memory during training.
    """
    outcomes, sharing = dict[str, Outcome](), Sharing(config)

    def take(route: Route) -> Params:
        theirs = source
        if has_own_stacks(source.params):
            theirs = source._replace(params=sharing.pick(source.params, route))
        taken, own = take_params(sharing.pick(params, route), theirs, vocabulary)
        for each in own:
            name = sharing.name_of(each.name, route)
            outcomes.setdefault(name, each._replace(name=name))
        return taken

    taken = sharing.join(take)
    table = tabulate_outcomes([*outcomes.values()], source)
    identity = identify(source)
    _log.info(
        "parameters of %s, checkpoint %s, sha256 %s:\n%s",
        source.run, source.checkpoint, identity["sha256"][:16],
        textwrap.indent(format_table(table, align="llr"), "  "),
    )  # fmt: skip
    if changed := differences(Config(model=source.model), Config(model=config.model)):
        _log.info("its model and this one differ: %s", ", ".join(map(str, changed)))
    frozen = [
        outcome.name
        for outcome in outcomes.values()
        if outcome.text != "taken" and find_factor(config.training, outcome.name) is None
    ]
    if frozen:
        _log.warning("training.frozen keeps random initial values in %s", ", ".join(frozen))
    source.params.clear()
    return taken, identity | {"parameters": table}


def identify(source: SourceRun) -> dict[str, Any]:
    """Returns what the ledger records of another run's parameters."""
    return {
        "run": str(source.run.absolute()),
        "checkpoint": source.checkpoint,
        "sha256": hash_params(source.params),
    }


def train_on_mesh(
    config: Config,
    workdir: Path,
    mesh: Mesh,
    data: Data,
    source: SourceRun | None,
    writers: Sequence[str],
    teachers: Sequence[SourceRun],
    until: int | None,
) -> bool:
    """Prepares batches, state and validation, and trains; returns whether it came to the end.

    The run directory is open and locked, and `mesh` is set. `source` has parameters to begin with,
    `teachers` those that the loss reads, and `writers` are names. `until` is that of `train`.
    """
    vocabulary = make_vocabulary(config, workdir, data.training)
    check_vocabulary(workdir, vocabulary)
    config = settle_options(workdir, config, vocabulary)
    check_tables(config, vocabulary, mesh)
    optimizer, initial = make_run_optimizer(config), None
    programs = open_programs(config, vocabulary)
    with contextlib.closing(Checkpoints(workdir, config, optimizer)) as checkpoints:
        if list_steps(workdir):
            structure, described = abstract_state(config, optimizer, *vocabulary.sizes)
            state = checkpoints.restore(described)
        elif source is None:
            structure, state = init_state(config, optimizer, *vocabulary.sizes, programs)
        else:
            structure, params = init_params(config, *vocabulary.sizes, programs)
            params, initial = start_from(source, config, params, vocabulary)
            state = init_training(config, optimizer, params, programs)
        origins = [identify(teacher) for teacher in teachers]
        if teachers:
            state = state._replace(teachers=place_teachers(teachers, vocabulary))
        start = int(state.step)
        batches, plan = plan_batches(config, workdir, vocabulary, mesh, data.training, start)
        num_bytes = checkpoints.check_space(state)
        for origin in origins:
            _log.info("teacher: %(run)s, checkpoint %(checkpoint)s, sha256 %(sha256).16s", origin)
        record_start(workdir, config, vocabulary, data.corpora, start, initial, origins, plan)
        log_model(config, optimizer, state.params, start)
        warn_of_missing_space(workdir, config, num_bytes)
        validate = Validation(config, vocabulary, mesh, data.validation, programs)
        opened = open_writers(writers, config, workdir)
        report = Report(workdir, config.training, start, opened)
        with contextlib.closing(report), logging_redirect_tqdm():  # prints log lines above the bar
            state, finished = loop.train(
                config,
                state,
                make_run_step(structure, config, programs),
                announce(prefetch(batches, mesh), start, plan["stages"]),
                validate,
                checkpoints,
                report,
                until,
            )
    if int(state.step) >= config.training.steps:
        _log.info("%s", describe_end(workdir, config, int(state.step), data.splits))
        return True
    if is_stop_requested(workdir):
        record_stop(workdir, int(state.step))
        return False
    remedy = "the same command without --until goes on"
    _log.info(
        "stopped and saved after step %d of %d; %s",
        state.step, config.training.steps,
        remedy if finished else "run the same command to continue",
    )  # fmt: skip
    return finished


def log_model(config: Config, optimizer: Optimizer, params: Params, start: int) -> None:
    """Logs the size of the model, its stacks and kernels, and what the optimiser updates."""
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    _log.info("%d parameters, starting after step %d", size, start)
    for line in Sharing(config).describe(params):
        _log.info("  %s", line)
    for operation, module in list_kernels(config.model).items():
        _log.info("  %-23s %s", operation, module)
    for line in describe_optimizer(config, optimizer, params):
        _log.info("%s", line)


def check_tables(config: Config, vocabulary: Vocabulary, mesh: Mesh) -> None:
    """Raises `ConfigError` if the mesh does not divide the embeddings of a vocabulary."""
    for size in vocabulary.sizes:  # those of tokenizer.path may differ
        tokenizer = dataclasses.replace(config.tokenizer, vocab_size=size)
        check_divisibility(dataclasses.replace(config, tokenizer=tokenizer), mesh)


def open_programs(config: Config, vocabulary: Vocabulary) -> SavedPrograms:
    """Returns the compiled programs of training, which runs of other seeds and texts share.

    Those with plugins are not kept on disk, since the code of a plugin may be anywhere.
    """
    facts = {name: v for name, v in flatten(config).items() if find_role(name) not in _UNCOMPILED}
    identity = identify_programs(_PROGRAMS, (facts, vocabulary.sizes))
    return SavedPrograms("" if list_plugins() else identity)


def announce(
    batches: Iterable[DeviceBatch], start: int, stages: Sequence[Mapping[str, Any]]
) -> Iterator[DeviceBatch]:
    """Logs what a stage reads before its first batch, or before the first batch of all.

    Also logs the shape of each batch whose step is compiled next.
    """
    left = [stage for stage in stages if stage["steps"][1] is None or start < stage["steps"][1]]
    seen = set()
    for step, batch in enumerate(batches, start=start + 1):
        if left and step >= left[0]["steps"][0]:
            _log.info("training reads in %s", format_stage(left.pop(0)))
        rows, src_length = batch.src.shape
        if (shape := (rows, src_length, batch.tgt_out.shape[1])) not in seen:
            seen.add(shape)
            _log.info("compiling a step for %d rows of %d source and %d target positions", *shape)
        yield batch


def describe_end(workdir: Path, config: Config, step: int, splits: Collection[str]) -> str:
    """Describes a training that finished at a step: its validation scores, how to evaluate it."""
    metric = config.checkpoints.best_metric
    scores = dict(read_curve(workdir, f"validation/{metric}"))
    finished = f"finished at step {step}"
    command = f"python -m t2t.evaluate --workdir={shlex.quote(str(workdir))}"
    if len(config.data.directions) > 1:
        command += f" --task={config.data.directions[0]}"
    if "test" not in splits:
        command += " --split=validation" if "validation" in splits else " --src=FILE --ref=FILE"
    if not scores:
        return f"{finished}; to evaluate: {command} --checkpoint=last"
    last = max(scores)
    best = rank_steps(scores, metric)[0]
    return (
        f"{finished}; validation {metric}: last {scores[last]:.4g} at step {last}, "
        f"best {scores[best]:.4g} at step {best}; to evaluate: {command}"
    )


def plan_batches(
    config: Config,
    workdir: Path,
    vocabulary: Vocabulary,
    mesh: Mesh,
    corpora: Sequence[Corpus],
    start: int,
) -> tuple[Iterator[HostBatch], dict[str, Any]]:
    """Plans the batches of the training corpora after step `start`.

    Returns:
        These batches; and for the ledger what each stage reads (`measure_stages`), and the source
        and target positions of packed rows. A run goes on with those that it began with.
    """
    stages = list_stages(config.data, corpora)
    tasks = find_tasks(config.data, corpora)
    objectives = make_objectives(tasks, vocabulary)
    row_lengths = None
    if start and config.data.packed_length and (last_start := read_last_start(workdir)):
        row_lengths = RowLengths(*last_start["row_lengths"])

    def make(tokenized: Sequence[TokenizedCorpus], stage: Stage) -> Loader:
        nonlocal row_lengths  # the first stage or epoch decides for all
        lengths = plan_lengths(objectives, tokenized)
        plan = make_plan(lengths, config.data, config.seed, stage.weights, row_lengths, tasks)
        row_lengths = plan.row_lengths
        return Loader(
            plan, tokenized, row_shards=find_row_shards(mesh),
            parts=config.training.accumulation_steps, objectives=objectives,
        )  # fmt: skip

    last = config.training.steps
    if config.data.subword_sampling:
        from t2t.data.sampled_epochs import SampledEpochs

        for corpus in corpora:
            corpus.read(0, 1)  # each epoch needs the text: an error, if it is not here
        epochs = SampledEpochs(config, workdir, corpora, vocabulary, make)
        with process_0_first():
            plan = epochs.open_step(start).plan
        batches = epochs.iterate(start, last)
    else:
        tokenized = [tokenize(corpus, vocabulary, config.data) for corpus in corpora]
        make_loader = functools.partial(make, tokenized)
        loader = make_loader(find_stage(stages, start))
        plan = loader.plan
        batches = iterate_stages(stages, make_loader, start, last, loader)
    src_share, tgt_share = plan.padding_shares()
    _log.info(
        "%d pairs, %d batches per epoch; padding: %.1f%% of source and %.1f%% of target positions; "
        "dropped: %s",
        len(plan.src_lengths), plan.steps_per_epoch, 100 * src_share, 100 * tgt_share,
        plan.describe_dropped(corpora),
    )  # fmt: skip
    num_shapes = min(len(plan.shapes), last - start)
    _log.info(
        "%s to compile, rows x (source + target positions): %s",
        "one batch shape" if num_shapes == 1 else f"up to {num_shapes} batch shapes",
        ", ".join(f"{s.rows} x ({s.src_length} + {s.tgt_length})" for s in plan.shapes),
    )
    subwords = sum(int(side.sum()) for side in (plan.src_lengths, plan.tgt_lengths))
    pieces = sum(vocabulary.sizes) / (1 + vocabulary.shared)
    doubts = list_doubts(config, subwords / pieces, start, num_shapes)
    sides = plan.src_lengths, plan.tgt_lengths
    are_pairs = np.repeat([not task.is_text_alone for task in tasks], [*map(len, corpora)])
    are_read = are_pairs & (np.maximum(*sides) <= config.data.max_length)
    doubts = itertools.chain(
        doubts,
        doubt_shapes(config, plan.shapes),
        doubt_outputs(config, *(side[are_read] for side in sides)),
    )
    for doubt in doubts:
        _log.warning("%s", doubt)
    shares = measure_stages(stages, plan, corpora)
    return batches, {"stages": shares, "row_lengths": plan.row_lengths}
