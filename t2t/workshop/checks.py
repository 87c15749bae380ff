"""Errors that steps would meet, found before the first one starts."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from t2t.config.config_flag import read_overrides
from t2t.config.field_types import INPUT
from t2t.config.fields import Config, ConfigError, describe_unknown_field
from t2t.config.files import (
    build_config,
    complete_options,
    override,
    override_decoding,
    read_saved_config,
    set_fields,
)
from t2t.config.fitted_config import FittedConfig
from t2t.config.flags import parse_request
from t2t.config.measure_rules import list_measures
from t2t.config.measures import MEASURE_FIELD
from t2t.config.requests import RUN, Flag, Plugins, Request
from t2t.config.rules import check_effect, check_fields
from t2t.config.variants import CHOICES, choices, import_plugins
from t2t.data.corpus_sources import check_sources, list_splits
from t2t.data.directions import choose_task
from t2t.evaluation.load_models import require_ctranslate2
from t2t.evaluation.requests import EvaluationRequest, ModelRequest, OneCheckpoint
from t2t.runtime.text_tables import show_bytes
from t2t.storage.atomic_files import check_writable, explain_write_errors, measure_free_space
from t2t.storage.paths import first_line, is_bucket
from t2t.training.checkpoint_names import check_checkpoint
from t2t.training.run_directory import is_regular
from t2t.workshop.inputs import read_step_recipe
from t2t.workshop.records import StepPlan
from t2t.workshop.steps import Step, Workshop, find_flags, find_program, list_texts


def check(
    workshop: Workshop, works: Mapping[str, StepPlan], only: Collection[str] = ()
) -> dict[str, Config]:
    """Checks the steps that are to run; returns the configs of trainings, as far as they are known.

    Raises:
        ConfigError: a step would fail; the message names it.
    """
    configs: dict[str, Config] = {}
    waiting = [work for name, work in works.items() if work.is_waiting and name in (only or works)]
    finished = works.keys() - {work.step.name for work in waiting}
    for name in finished:
        with contextlib.suppress(ConfigError):  # it is for the checks of others alone
            configs[name] = read_saved_config(workshop.find_output(name) / "config.json")
    requests = dict[str, Request]()
    check_aside(workshop, [work.step.name for work in waiting if work.is_aside])
    for work in waiting:
        name = work.step.name
        with _explain(work.step):
            requests[name] = check_flags(workshop, work.step)
            ready = not any(works[each].is_waiting for each in work.step.needs)
            if config := check_config(workshop, work.step, ready=ready):
                configs[name] = config
                check_loss(workshop, config)
    for work in waiting:
        with _explain(work.step):
            check_runs(workshop, work.step, requests[work.step.name], configs)
            check_engine(work.step, requests[work.step.name], configs)
    check_disk(workshop, [work for work in waiting if work.step.program == "train"], configs)
    return configs


def check_aside(workshop: Workshop, names: Collection[str]) -> None:
    """Raises `ConfigError` if what changed steps have written is in a bucket, and has to stay."""
    if names and is_bucket(workshop.workdir):
        own = [(workshop.find_folder(name), workshop.find_records(name)) for name in names]
        there = [str(folder) for folders in own for folder in folders if folder.exists()]
        raise ConfigError(
            f"{', '.join(names)} changed, and a bucket cannot move what was written; remove "
            f"{', '.join(there)}, or choose another --workdir"
        )


@contextlib.contextmanager
def _explain(step: Step) -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # a ConfigError, a DataError or a PathError
        raise ConfigError(f"step {step.name}: {first_line(error)}") from None


def check_flags(workshop: Workshop, step: Step) -> Request:
    """Returns the request that a step's program will make of its flags."""
    kind, known = find_program(step.program), find_flags(step.program)
    own = [each for each in workshop.list_arguments(step) if not each[0].startswith("config.")]
    given, names = dict(own), [name for name in known if "." not in name]
    for name in given:
        if name not in names:
            raise ConfigError(f"--{name}: {describe_unknown_field(name, names)}")
    for name in names:
        if known[name].default is dataclasses.MISSING and name not in given:
            raise ConfigError(f"--{name} is missing; add it to the flags of the step")
    request = parse_request(kind, [f"--{name}={text}" for name, text in own if name != "flagfile"])
    if isinstance(request, Plugins):
        import_plugins(request.plugins)
    return request


def check_config(workshop: Workshop, step: Step, *, ready: bool) -> Config | None:
    """Checks and returns the config of a step, if it has one that is known by now.

    `ready` is whether the steps that it needs are finished.
    """
    texts: dict[str, list[str]] = {}
    for name, text in workshop.list_arguments(step):
        if name.startswith("config."):
            texts.setdefault(name.removeprefix("config."), []).append(text)
    if texts and "config" not in step.flags:
        raise ConfigError(f"--config.{next(iter(texts))} overrides a field of --config")
    recipe = read_step_recipe(workshop, step, ready=ready)
    given = read_overrides(texts, recipe.plugins if recipe else ())
    fits_itself = isinstance(recipe, FittedConfig)
    if recipe is None or fits_itself:
        check_values(given)  # the rules between fields hold when all values are known
    if recipe is None:
        return None
    config = complete_options(set_fields(recipe, given)) if fits_itself else override(recipe, given)
    check_sources(config.data)
    trains = step.program in ("prepare", "train") and not fits_itself
    if trains and not step.flags.get("allow_unused"):
        check_effect([config], given)
    return config


def check_values(values: Mapping[str, Any]) -> None:
    """Checks fields of a config, each by itself."""
    changed = dataclasses.asdict(set_fields(Config(), values))
    check_fields(complete_options(build_config(changed)))


def check_runs(
    workshop: Workshop, step: Step, request: Request, configs: Mapping[str, Config]
) -> None:
    """Checks what a step asks of runs, as far as their configs are known: checkpoints, search."""
    runs = {workshop.find_output(name): name for name in workshop.steps}
    members = list[tuple[Path, str]]()
    if isinstance(request, OneCheckpoint):
        members = [(request.workdir, request.checkpoint)]
    elif isinstance(request, ModelRequest):
        members = request.members
    for path, which in members:
        _check_checkpoint(workshop, runs.get(path), which, configs)
    known = find_flags(step.program)
    for name, text in list_texts(workshop.resolve(step)):
        notes = known.get(name, Flag()).kind.notes
        if name.startswith("config.plugin.") or {INPUT, RUN} & {*notes}:
            run, colon, which = text.rpartition(":")
            if colon and Path(run) in runs:  # RUN:CHECKPOINT
                _check_checkpoint(workshop, runs[Path(run)], which, configs)
    first = runs.get(members[0][0], "") if members else ""
    config = configs.get(first)
    if isinstance(request, ModelRequest):
        check_search(request, config)
    if isinstance(request, EvaluationRequest):
        check_evaluation(request, config)


def _check_checkpoint(
    workshop: Workshop, name: str | None, which: str, configs: Mapping[str, Config]
) -> None:
    """Checks the checkpoint of a step that trains or imports a model, or of another run."""
    config = configs.get(name) if name else None
    if name and workshop.steps[name].program == "import_model":
        if which != "last" and not which.isdecimal():
            raise ConfigError(f"checkpoint {which!r}: the imported model {name} has only last")
        return
    # The recipe chooses the others when its text is there.
    fitted = None if isinstance(config, FittedConfig) else config
    check_checkpoint(which, config if which.startswith("ema") else fitted)
    number = which.removeprefix("ema:")
    # In a run that has begun an interruption may have written it.
    if not fitted or not number.isdecimal() or (name and workshop.find_output(name).exists()):
        return
    step, last, rules = int(number), fitted.training.steps, fitted.checkpoints
    if not (0 < step <= last and is_regular(step, fitted)):
        raise ConfigError(
            f"checkpoint {which!r} is of a step without one: checkpoints.every={rules.every}, "
            f"training.steps={last}"
        )
    earlier = range(rules.every, last, rules.every)
    kept = earlier[max(len(earlier) + 1 - rules.keep_last, 0) :]
    first = min(kept, default=last)
    if step < first and not (rules.keep_every and step % rules.keep_every == 0):
        raise ConfigError(
            f"checkpoint {which!r} is deleted before training ends, unless it is one of the best: "
            f"the last checkpoints.keep_last={rules.keep_last} are of step {first} and later; use "
            "one of these, or raise it"
        )


def check_search(request: ModelRequest, config: Config | None) -> None:
    """Checks fields of the search that a step sets, and the task."""
    given = {name: value for name, value in request.decoding.items() if value is not None}
    if given and config and not isinstance(config, FittedConfig):
        override_decoding(config, given, searches=request.searches)
    else:
        check_values({f"decoding.{name}": value for name, value in given.items()})
    if config:
        choose_task(config.data, request.task)


def check_evaluation(request: EvaluationRequest, config: Config | None) -> None:
    """Checks the measures and the split of an evaluation."""
    from t2t.evaluation.text_scores import choose_measures

    data, possible = config and config.data, choices(MEASURE_FIELD)
    data = data and choose_task(data, request.task)
    if config and data and not data.is_text_alone:
        language, sources = request.tgt_language or data.tgt_language, data.source.split("+")
        possible = list_measures(language, sources, spaces=True, kind=config.tokenizer.kind)
    choose_measures(request.measures, possible, request.tgt_language, request.measure_model)
    if data and data.source == "text" and request.split not in ("", *list_splits(data)):
        raise ConfigError(
            f"--split={request.split}: its run names no files of this split; it has "
            f"{', '.join(list_splits(data))}"
        )


def check_engine(step: Step, request: Request, configs: Mapping[str, Config]) -> None:
    """Checks that CTranslate2 is installed, and supports the model, if a step needs it."""
    if "ctranslate2" not in (getattr(request, "backend", ""), getattr(request, "format", "")):
        return
    require_ctranslate2()
    if config := configs.get(str(step.flags.get("workdir")).strip("{}")):
        from t2t.interop.ctranslate2_export import check_support

        check_support(config.model)


def check_loss(workshop: Workshop, config: Config) -> None:
    """Makes a registered loss, which may refuse its options."""
    if config.training.loss in CHOICES["training.loss"]:
        return
    from t2t.training.losses import make_loss

    try:
        make_loss(config)
    except (ConfigError, OSError) as error:
        if str(workshop.workdir) not in str(error):  # else it asks for what a step will write
            raise


def check_disk(workshop: Workshop, works: list[StepPlan], configs: Mapping[str, Config]) -> None:
    """Checks that the folder can be written, and has space for the checkpoints of trainings.

    A recipe that fits itself to its text is not counted, since its size is not known yet.
    """
    workdir = workshop.workdir
    place = next(each for each in (workdir, *workdir.parents) if each.exists())
    with explain_write_errors(ConfigError, f"--workdir={workdir}"):
        check_writable(place)
    known = [
        (work, config)
        for work in works
        if (config := configs.get(work.step.name)) and not isinstance(config, FittedConfig)
    ]
    if not known:
        return
    from t2t.training.disk_space import count_kept, count_missing, estimate_checkpoint

    needed, sizes = 0, dict[str, int]()  # by what a checkpoint's size depends on
    for work, config in known:
        parts = repr((config.model, config.training, config.tokenizer))
        if parts not in sizes:
            with _explain(work.step):
                sizes[parts] = estimate_checkpoint(config)
        run = workshop.find_output(work.step.name)
        needed += sizes[parts] * (
            count_kept(config) if work.is_aside else count_missing(run, config)
        )
    if needed > (free := measure_free_space(place)):
        raise ConfigError(
            f"--workdir={workdir} has {show_bytes(free, 3)} free, and the checkpoints of the "
            f"trainings that are left need {show_bytes(needed, 3)}; free some space, or lower "
            "checkpoints.keep_last"
        )
