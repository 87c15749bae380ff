"""Errors that steps would meet, found before the first one starts."""

import contextlib
import dataclasses
import importlib.util
import json
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from t2t.config.fields import Config, ConfigError, describe_unknown_field
from t2t.config.files import build_config, override, read_saved_config
from t2t.config.languages import fill_languages, normalize_language
from t2t.config.new_run_rules import check_effect, check_new_run
from t2t.config.open_numbers import OpenConfig
from t2t.config.recipes import load_recipe
from t2t.config.requests import DECODING, find_request, list_flags, make_request
from t2t.config.variants import import_plugins
from t2t.pipelines.records import Work
from t2t.pipelines.steps import Pipeline, Step, list_texts
from t2t.runtime.text_tables import show_bytes
from t2t.storage.atomic_files import check_writable, explain_write_errors, measure_free_space

Languages = tuple[str, str]  # source and target; empty if they are not known


def check(pipeline: Pipeline, works: Mapping[str, Work], only: Collection[str] = ()) -> None:
    """Checks flags, languages, packages and disk of the steps that are to run.

    Raises:
        ConfigError: a step would fail; the message names it.
    """
    configs: dict[str, Config] = {}
    waiting = [
        work for name, work in works.items() if work.action != "none" and name in (only or works)
    ]
    for name in works.keys() - {work.step.name for work in waiting}:
        with contextlib.suppress(ConfigError):  # it is for the checks of others alone
            configs[name] = read_saved_config(pipeline.find_output(name) / "config.json")
    for work in waiting:
        with _explain(work.step):
            if config := check_flags(pipeline, work.step):
                configs[work.step.name] = config
    for work in waiting:
        with _explain(work.step):
            check_languages(pipeline, work.step, configs)
            check_engine(work.step, configs)
    check_disk(pipeline, [work for work in waiting if work.step.program == "train"], configs)


@contextlib.contextmanager
def _explain(step: Step) -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # a ConfigError, or a PathError
        raise ConfigError(f"step {step.name}: {str(error).splitlines()[0]}") from None


def check_flags(pipeline: Pipeline, step: Step) -> Config | None:
    """Checks a step's flags; returns its config, if it has one that is known by now."""
    # By name, since programs are above this layer; they import the library when they run.
    module = importlib.import_module(f"t2t.{step.program}")
    kind, flags = find_request(module.main), pipeline.resolve(step)
    assert kind is not None
    known = {each.name: each for each in list_flags(kind) if each.name}
    own = {name: value for name, value in flags.items() if not name.startswith("config.")}
    for name in own:
        if name not in known:
            raise ConfigError(f"--{name}: {describe_unknown_field(name, [*known])}")
    given = {}
    for name, flag in known.items():
        if flag.default is dataclasses.MISSING and name not in own:
            raise ConfigError(f"--{name} is missing; add it to the flags of the step")
        if name in own:
            value = own[name]
            is_list = typing.get_origin(flag.kind.plain) is tuple and not flag.is_repeated
            given[flag.field] = value.split(",") if is_list and isinstance(value, str) else value
    make_request(kind, given, "--")
    plugins = flags.get("plugins", ())
    import_plugins(plugins.split(",") if isinstance(plugins, str) else plugins)
    build_config({"decoding": {name: flags[name] for name in DECODING if name in flags}})
    overrides = {
        name.removeprefix("config."): value
        for name, value in flags.items()
        if name.startswith("config.")
    }
    recipe = step.flags.get("config")
    if recipe is None or "{" in recipe:
        if overrides and recipe is None:
            raise ConfigError(f"--config.{next(iter(overrides))} overrides a field of --config")
        return None
    config = _read_config(recipe, overrides)
    if step.program in ("prepare", "train") and not isinstance(config, OpenConfig):
        check_new_run(config)
        if not flags.get("allow_unused"):
            check_effect([config], overrides)
    return config


def _read_config(recipe: str, overrides: Mapping[str, Any]) -> Config:
    config = load_recipe(recipe)
    plugins = overrides.get("plugins", config.plugins)
    import_plugins([plugins] if isinstance(plugins, str) else plugins)
    values = {
        name: (value,) if name == "plugins" and isinstance(value, str) else value
        for name, value in overrides.items()
    }
    if isinstance(config, OpenConfig):  # its rules hold when its numbers are known
        for name, value in values.items():
            section, _, field = name.rpartition(".")
            if not hasattr(getattr(config, section) if section else config, field):
                raise ConfigError(f"{name}: {describe_unknown_field(name)}")
            setattr(getattr(config, section) if section else config, field, value)
        return config
    return override(config, values)


def check_engine(step: Step, configs: Mapping[str, Config]) -> None:
    """Checks that CTranslate2 is installed, and supports the model, if a step needs it."""
    default = "ctranslate2" if step.program == "export" else ""
    if step.flags.get("backend", step.flags.get("format", default)) != "ctranslate2":
        return
    if importlib.util.find_spec("ctranslate2") is None:
        raise ConfigError("CTranslate2 is not installed; pip install ctranslate2")
    if config := configs.get(str(step.flags.get("workdir")).strip("{}")):
        from t2t.interop.ctranslate2_export import check_support

        check_support(config.model)


def find_languages(
    pipeline: Pipeline, run: str, configs: Mapping[str, Config], direction: str = ""
) -> Languages:
    """The languages between which a run translates, by its name `{STEP}` or its path.

    `direction` is the one that a program asks a run of several for.
    """
    step = pipeline.steps.get(run.strip("{}"))
    if direction:
        src, _, tgt = direction.partition("-")
    elif step is None:
        path = Path(run).expanduser() / "config.json"
        return _read_languages(read_saved_config(path)) if path.exists() else ("", "")
    elif step.program == "import_model":
        saved: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            path = Path(step.flags["source"]).expanduser() / "tokenizer_config.json"
            saved = json.loads(path.read_text("utf-8"))
        src, _, tgt = str(step.flags.get("directions", "")).partition("-")
        src = saved.get("source_lang") or src or step.flags.get("src_language", "")
        tgt = saved.get("target_lang") or tgt or step.flags.get("tgt_language", "")
    else:
        return _read_languages(configs[step.name]) if step.name in configs else ("", "")
    return normalize_language(src), normalize_language(tgt)


def _read_languages(config: Config) -> Languages:
    if config.data.directions:
        return "", ""  # several
    data = fill_languages(config.data)
    return normalize_language(data.src_language), normalize_language(data.tgt_language)


def check_languages(pipeline: Pipeline, step: Step, configs: Mapping[str, Config]) -> None:
    """Checks that translations are used as text of the language that their model writes."""
    if step.name not in configs:
        return
    src, tgt = _read_languages(configs[step.name])
    teacher = step.flags.get("config.plugin.distillation.teacher")
    if teacher:
        _compare(find_languages(pipeline, teacher.partition(":")[0], configs), (src, tgt), teacher)
    for name, text in list_texts(step.flags):
        maker = pipeline.steps.get(text.partition("}")[0].removeprefix("{"))
        if maker is None or maker.program != "translate":
            continue
        if name in ("config.data.train_src", "config.data.train_tgt"):
            run = str(maker.flags.get("workdir"))
            wanted = (src, tgt) if name.endswith("tgt") else (tgt, src)
            direction = str(maker.flags.get("direction", ""))
            _compare(find_languages(pipeline, run, configs, direction), wanted, run)


def _compare(found: Languages, wanted: Languages, run: str) -> None:
    if all((*found, *wanted)) and found != wanted:
        raise ConfigError(
            f"its teacher {run} translates {'-'.join(found)}, and this step needs "
            f"{'-'.join(wanted)}; name a teacher of these languages"
        )


def check_disk(pipeline: Pipeline, works: list[Work], configs: Mapping[str, Config]) -> None:
    """Checks that the folder can be written, and has space for the checkpoints of trainings.

    A recipe that fits itself to its text is not counted, since its size is not known yet.
    """
    workdir = pipeline.workdir
    place = next(each for each in (workdir, *workdir.parents) if each.exists())
    with explain_write_errors(ConfigError, f"--workdir={workdir}"):
        check_writable(place)
    known = [
        (work, config)
        for work in works
        if (config := configs.get(work.step.name)) and not isinstance(config, OpenConfig)
    ]
    if not known:
        return
    from t2t.training.disk_space import count_kept, estimate_checkpoint
    from t2t.training.run_directory import list_steps

    needed = 0
    for work, config in known:
        run = pipeline.find_output(work.step.name)
        there = 0 if work.is_aside else len(list_steps(run))
        needed += max(count_kept(config) - there, 0) * estimate_checkpoint(config)
    if needed > (free := measure_free_space(place)):
        raise ConfigError(
            f"--workdir={workdir} has {show_bytes(free, 3)} free, and the checkpoints of the "
            f"trainings that are left need {show_bytes(needed, 3)}; free some space, or lower "
            "checkpoints.keep_last"
        )
