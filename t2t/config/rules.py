"""The rules that a config must satisfy, which are checked before any device work.

    the values of one field          `Rule` and `Literal` in its type (field_types.py)
    fields without effect            `beside` and `unless` in their types, `list_unused` here
    fields of config.data            data_rules.py
    combinations of other fields     `validate`
    of new runs and requests alone   `check_effect`; other runs can be opened

Each error message names the field, the value, the rule and the remedy.
"""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from t2t.config.data_rules import (
    batch_problems,
    mixture_problems,
    objective_problems,
    text_problems,
)
from t2t.config.field_types import FieldType, Unused
from t2t.config.fields import (
    FIELD_TYPES,
    Config,
    ConfigError,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    PluginOptions,
    TrainingConfig,
    flatten,
    holds,
)
from t2t.config.measures import MEASURES
from t2t.config.mixture import has_tasks, read_mixture
from t2t.config.variants import CHOICES, choices, describe_unknown, import_plugins, takes_model

HIGHEST_PEAK = 0.1  # no built-in optimiser learns at a higher rate


def validate(config: Config) -> Config:
    """Returns the config unchanged.

    Raises:
        ConfigError: the config breaks rules; the message has one line for each.
    """
    check_fields(config)
    found = _mixture_problems(config) if has_tasks(config.data) else _list_problems(config)
    if problems := [*found]:
        raise ConfigError("\n".join(problems))
    return config


def list_task_configs(config: Config) -> list[Config]:
    """Returns the config of each task of `data.mixture`, the main one first, as if it were alone.

    Without a mixture it is the config itself.

    Raises:
        ConfigError: the mixture cannot be read.
    """
    if not has_tasks(config.data):
        return [config]
    tasks = [dataclasses.replace(task, temperature=0.0) for task in read_mixture(config.data)]
    main, *others = tasks
    return [dataclasses.replace(config, data=main), *(fit_task(config, each) for each in others)]


def fit_task(config: Config, task: DataConfig) -> Config:
    """Returns the config of a run for one of its tasks that is not the main one.

    The fields of the main task's translations have their defaults if it reads text alone.
    """
    if not task.is_text_alone:
        return dataclasses.replace(config, data=task)
    return dataclasses.replace(
        config,
        data=task,
        training=dataclasses.replace(config.training, translate_every=0),
        checkpoints=dataclasses.replace(config.checkpoints, best_metric="loss", keep_best=0),
    )


def _mixture_problems(config: Config) -> Iterator[str]:
    """Yields one line for each rule that the tasks of `data.mixture` break, together or alone."""
    try:
        configs = list_task_configs(config)
    except ConfigError as error:
        yield str(error)
        return
    yield from mixture_problems(config.data, [each.data for each in configs])
    names: dict[str, list[str]] = {}  # of tasks, by problem
    for each in configs:
        try:
            check_fields(each)
            problems = [*_list_problems(each)]
        except ConfigError as error:
            problems = str(error).splitlines()
        for problem in problems:
            names.setdefault(problem, []).append(each.data.task)
    for problem, own in names.items():
        # Tasks differ in fields of `data` alone, though some rules hold for pairs alone.
        is_common = len(own) == len(configs) or "data." not in problem
        yield problem if is_common else f"in data.mixture, {', '.join(own)}: {problem}"


def _list_problems(config: Config) -> list[str]:
    """Lists one line for each rule between fields that a config without a mixture breaks."""
    problems = [*_unused_problems(flatten(config)), *_kernel_problems(config.model)]
    is_rnn = config.model.kind == "rnn"
    problems += _rnn_problems(config.model) if is_rnn else _transformer_problems(config.model)
    problems += [*text_problems(config.data), *batch_problems(config.data)]
    problems += objective_problems(config)
    problems += _training_problems(config.training, config.model)
    problems += _decoding_problems(config.decoding)
    if config.model.parametrization == "mup" and not is_rnn:
        problems += _parametrization_problems(config)
    problems += _combination_problems(config)
    return problems


def check_fields(config: Config) -> None:
    """Checks each field by itself; imports plugins.

    Raises:
        ConfigError: the message has one line for each field that breaks a rule.
    """
    import_plugins(config.plugins)
    values, problems = flatten(config), list[str]()
    for name, kind in FIELD_TYPES.items():
        if name == "plugin":
            continue
        value = values[name]
        if kind.takes_registered:
            parts = value.split("+") if name == "data.source" else [value]
            unknown = [each for each in parts if each not in choices(name)]
            problems += [describe_unknown(name, each) for each in unknown]
        problems += [f"{name}={value!r} {fault}" for fault in kind.list_faults(value)]
    for name, options in config.plugin.items():
        if isinstance(options, PluginOptions):  # not while the plugin is not imported
            for field in dataclasses.fields(options):  # type: ignore[arg-type]  # it is one
                whole, value = f"plugin.{name}.{field.name}", getattr(options, field.name)
                faults = FieldType.of(field.type).list_faults(value)
                problems += [f"{whole}={value!r} {fault}" for fault in faults]
            problems += [f"plugin.{name}.{line}" for line in options.list_problems()]
    if problems:
        raise ConfigError("\n".join(problems))


def list_unused(config: Config, *, refused: bool = False) -> dict[str, str]:
    """Returns the fields that have no effect, each with the field that is the cause.

    `refused`: only those that every config is refused for changing (`Unused.remedy`).
    """
    found: dict[str, str] = {}
    for name, note in _list_holding(flatten(config)):
        if note.remedy or not refused:
            found.setdefault(name, note.cause)
    return found


def _unused_problems(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields one line for each changed field that is refused in every config."""
    defaults = flatten(Config())
    for name, note in _list_holding(values):
        if note.remedy and values[name] != defaults[name]:
            end, cause = note.remedy.format(default=defaults[name]), note.cause
            yield f"{name}={values[name]!r} is not used by {cause}={values[cause]!r}; {end}"


def _list_holding(values: Mapping[str, Any]) -> Iterator[tuple[str, Unused]]:
    """Yields each field that has no effect with these values, with each note that says so."""
    for name, kind in FIELD_TYPES.items():
        yield from ((name, note) for note in kind.unused if holds(note, values))


def check_effect(configs: Sequence[Config], given: Collection[str]) -> None:
    """Checks that changed fields have an effect.

    A recipe's field may lose its effect by a flag, as model.d_ff does by
    --config.model.feed_forward=none.

    Args:
        configs: a config with its flags, or the rows of a sweep, base first: a field has to have
            an effect on one of them.
        given: names of the fields that flags set.

    Raises:
        ConfigError: a field without effect is set by a flag, or by a recipe alone.
    """
    configs = [each for config in configs for each in list_task_configs(config)]
    values, defaults = flatten(configs[0]), flatten(Config())
    problems = [
        f"{name}={values[name]!r} has no effect with {cause}={values[cause]!r}; leave it at "
        f"{defaults[name]!r}"
        for name, cause in list_unused(configs[0]).items()
        if values[name] != defaults[name]
        and (name in given or cause not in given)
        and all(name in list_unused(config) for config in configs)
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _kernel_problems(model: ModelConfig) -> Iterator[str]:
    """Yields a line for each field that `t2t/ops/fused_norm.py` does not support."""
    if model.kernels != "fused_norm":
        return
    start, remedy = "model.kernels='fused_norm'", "use model.kernels='auto'"
    if model.kind == "rnn":
        yield f"{start} has no effect with model.kind='rnn'; {remedy}"
    elif model.norm not in ("layer", "rms"):
        yield f"{start} computes layer norm and RMS norm, not model.norm={model.norm!r}; {remedy}"
    if model.d_model & (model.d_model - 1):
        yield f"{start} needs a power of two, unlike model.d_model={model.d_model}; {remedy}"
    if not model.residual and model.norm_position == "post":
        yield f"{start} adds a residual connection, which model.residual=False leaves out; {remedy}"


def _rnn_problems(model: ModelConfig) -> Iterator[str]:
    if model.d_model % 2:
        yield (
            f"model.d_model={model.d_model} is odd, but each direction of the recurrent encoder is "
            "half as wide; use an even width"
        )
    if model.dtype == "mixed":
        yield "model.dtype='mixed' needs model.kind='transformer'; use 'float32'"


def _transformer_problems(model: ModelConfig) -> Iterator[str]:
    heads, d_model = model.num_heads, model.d_model
    if d_model % heads and (model.d_k is None or model.d_v is None):
        fits = ", ".join(str(h) for h in range(1, heads * 2) if d_model % h == 0)
        yield (
            f"model.num_heads={heads} does not divide model.d_model={d_model}; "
            f"use one of {fits}, or set model.d_k and model.d_v"
        )
    if heads % model.kv_heads:
        yield (
            f"model.num_kv_heads={model.kv_heads} does not divide model.num_heads={heads}; "
            f"use one of {', '.join(str(g) for g in range(1, heads + 1) if heads % g == 0)}"
        )
    if model.feed_forward == "moe" and model.experts_per_token > model.num_experts:
        yield (
            f"model.experts_per_token={model.experts_per_token} is more than model.num_experts="
            f"{model.num_experts}; use {model.num_experts} or less"
        )
    if model.position.startswith("sinusoidal") and d_model % 2:
        yield (
            f"model.d_model={d_model} is odd, but sinusoidal positions pair a sine with a cosine; "
            "use an even width or another model.position"
        )
    if model.position == "sinusoidal_fairseq" and d_model < 4:
        yield (
            f"model.d_model={d_model} must be 4 or more with model.position='sinusoidal_fairseq'; "
            "use a wider model, or 'sinusoidal'"
        )
    if model.position == "rotary" and model.key_width % 2:
        yield (
            f"model.d_k={model.key_width} is odd, but rotary positions rotate pairs of dimensions; "
            "use an even model.d_k or another model.position"
        )


def _parametrization_problems(config: Config) -> Iterator[str]:
    model, values = config.model, flatten(config)
    start, remedy = "model.parametrization='mup'", "use model.parametrization='standard'"
    if model.base_width is None:
        yield (
            f"{start} needs model.base_width, the d_model at which the learning rate was tuned; "
            "set it, for example to the smallest width of a ladder"
        )
    for name in (each for each in CHOICES if each.startswith("model.")):
        if values[name] not in CHOICES[name]:
            yield f"{start} has no factors for {name}={values[name]!r}; {remedy}"
    if config.training.optimizer not in ("adam", "nadamw", "muon"):
        yield (
            f"{start} has no factors for training.optimizer={config.training.optimizer!r}; use "
            "'adam', 'nadamw' or 'muon'"
        )
    if model.base_layers is None:
        return
    is_pre = model.norm_position == "pre" and model.norm != "none"
    if not (is_pre and model.residual):
        yield (
            f"model.base_layers={model.base_layers} is for residual branches of pre-norm; set "
            "model.norm_position='pre' with a norm and residuals, or leave it None"
        )
    if model.kind == "transformer" and model.depth[0] != model.depth[1]:
        yield (
            f"model.base_layers={model.base_layers} is for both stacks, but their layers are "
            f"{model.depth[0]} and {model.depth[1]}; use equal numbers, or leave it None"
        )


def _training_problems(training: TrainingConfig, model: ModelConfig) -> Iterator[str]:
    if training.rate_factors:
        yield from _rate_problems(training)
    if model.kind == "rnn" and training.optimizer == "muon":
        yield "training.optimizer='muon' needs model.kind='transformer'; use 'adam'"
    if training.optimizer == "schedule_free_adamw" and not training.adam_b1:
        yield (
            "training.adam_b1=0.0 would compute gradients without the average that training."
            "optimizer='schedule_free_adamw' evaluates; use a value above 0, such as 0.9"
        )
    yield from _peak_problems(training, model)
    start, cooldown = training.schedule_start, training.cooldown_steps
    if start >= training.steps:
        yield (
            f"training.schedule_start={start} must be less than training.steps={training.steps}; "
            "leave it at 0, or use --extend of t2t.train, which sets both"
        )
        return
    left = max(training.steps - start - training.warmup_steps, 0)
    if cooldown > left:
        yield (
            f"training.cooldown_steps={cooldown} is more than the {left} steps that "
            f"training.warmup_steps={training.warmup_steps} leaves of the {training.steps - start} "
            f"steps of the schedule; lower it to {left} or less"
        )
    if training.r_drop or training.scheduled_sampling:
        yield from _pass_problems(training, model)


def _peak_problems(training: TrainingConfig, model: ModelConfig) -> Iterator[str]:
    """A factor of noam, such as the default 1.0, is no peak of another schedule."""
    is_known = training.schedule in CHOICES["training.schedule"]  # a registered one has any rate
    is_known &= training.optimizer in CHOICES["training.optimizer"]
    if training.schedule != "noam" and is_known and training.learning_rate > HIGHEST_PEAK:
        noam = training.noam_peak(model.reference_width)
        yield (
            f"training.learning_rate={training.learning_rate:g} is a factor only with "
            f"training.schedule='noam', whose rate would rise to {noam:.2g}; with "
            f"{training.schedule!r} it is the peak itself, at most {HIGHEST_PEAK:g}; set it, for "
            f"example to {min(noam, HIGHEST_PEAK):.2g}"
        )


def _pass_problems(training: TrainingConfig, model: ModelConfig) -> Iterator[str]:
    if training.r_drop and training.loss != "cross_entropy":
        yield (
            f"training.r_drop={training.r_drop} has a cross-entropy of its own, so it does not go "
            f"with training.loss={training.loss!r}; set training.r_drop=0"
        )
    if training.scheduled_sampling and training.r_drop:
        yield (
            f"training.scheduled_sampling={training.scheduled_sampling} does not go with training."
            f"r_drop={training.r_drop}, which has two passes of its own; set one of them to 0"
        )
    rates = [model.dropout, model.attention_dropout]
    rates += [] if model.feed_forward in ("none", "moe") else [model.feed_forward_dropout]
    if training.r_drop and not any(rates):
        yield (
            f"training.r_drop={training.r_drop} compares two passes with different dropout masks, "
            "but all dropout rates of the model are 0; set model.dropout, or training.r_drop=0"
        )


def _rate_problems(training: TrainingConfig) -> Iterator[str]:
    patterns = [each.rpartition("=")[0] for each in training.rate_factors]
    for entry, pattern in zip(training.rate_factors, patterns, strict=True):
        try:
            factor = float(entry.rpartition("=")[2])
        except ValueError:
            factor = math.nan
        if not (pattern and 0 < factor < math.inf):
            yield (
                f"training.rate_factors has {entry!r}; write PATTERN=FACTOR with a positive "
                "factor, such as encoder.*=0.1, and use training.frozen for parameters without "
                "updates"
            )
    if len(set(patterns)) < len(patterns):
        yield f"training.rate_factors={training.rate_factors} names a pattern twice; name each once"


def _decoding_problems(decoding: DecodingConfig) -> Iterator[str]:
    if 0 < decoding.max_source_length < 3:
        yield (
            f"decoding.max_source_length={decoding.max_source_length} leaves no room for a sub-word"
            " between a tag and EOS; raise it to 3 or more, or set 0 for data.max_length"
        )
    if decoding.min_length > decoding.max_extra_length:
        yield (
            f"decoding.min_length={decoding.min_length} is more than decoding.max_extra_length="
            f"{decoding.max_extra_length}, so outputs of short sentences could not be that long; "
            f"raise decoding.max_extra_length to {decoding.min_length} or more"
        )
    candidates = "num_samples" if decoding.strategy == "sampling" else "beam_size"
    if decoding.mbr != "none" and getattr(decoding, candidates) == 1:
        yield (
            f"decoding.mbr={decoding.mbr!r} chooses among several candidates, but decoding."
            f"{candidates} is 1; raise it"
        )


def _combination_problems(config: Config) -> Iterator[str]:
    model, data, training = config.model, config.data, config.training
    if model.tie_embeddings in ("all", "input") and not config.tokenizer.shared:
        yield (
            f"model.tie_embeddings={model.tie_embeddings!r} needs one vocabulary, but "
            "tokenizer.shared=False; set tokenizer.shared=True or model.tie_embeddings='decoder'"
        )
    if model.own_tables and model.tie_embeddings in ("all", "input"):
        yield (
            f"model.own_tables=True needs a table for each side, but model.tie_embeddings="
            f"{model.tie_embeddings!r}; set it to 'decoder' or 'none'"
        )
    if model.own_tables and not (data.mixture or data.encoder or data.decoder):
        yield (
            "model.own_tables=True has no effect, since no task has its own encoder or decoder; "
            "set data.encoder or data.decoder, or leave it at False"
        )
    if (data.encoder or data.decoder) and training.optimizer == "schedule_free_adamw":
        yield (
            "training.optimizer='schedule_free_adamw' averages over the steps of the run, and a "
            "stack of some tasks (data.encoder, data.decoder) has fewer; use another optimiser"
        )
    for name, length in (
        ("data.max_length", data.max_length),
        ("data.packed_length", data.packed_length),
        ("decoding.min_length + EOS", config.decoding.min_length + 1),
        ("decoding.max_source_length", config.decoding.max_source_length),
    ):
        if model.position_limit is not None and model.position_limit < length:
            shared = model.max_positions // model.position_limit  # 2 if both sides share them
            yield (
                f"model.max_positions={model.max_positions}{', for both sides,' * (shared > 1)} is "
                f"less than {name}={length}{' of each' * (shared > 1)}; raise it to "
                f"{shared * length} or more"
            )
    if data.rows_multiple % training.accumulation_steps:
        yield (
            f"training.accumulation_steps={training.accumulation_steps} does not divide "
            f"data.rows_multiple={data.rows_multiple}; raise data.rows_multiple to "
            f"{data.rows_multiple * training.accumulation_steps}"
        )
    if training.translate_every % training.validate_every:
        yield (
            f"training.translate_every={training.translate_every} must be a multiple of "
            f"training.validate_every={training.validate_every}, or 0"
        )
    yield from _best_problems(config)
    sizes = dataclasses.astuple(config.mesh)
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        yield (f"mesh={sizes} must hold positive sizes, and -1 at most once")


def _best_problems(config: Config) -> Iterator[str]:
    """Problems of the score by which checkpoints are ranked, and training may stop."""
    training, best = config.training, config.checkpoints.best_metric
    kind = config.tokenizer.kind
    row = MEASURES.get(best)
    if row and not (row.takes_symbols if kind == "symbols" else row.takes_text):
        yield (
            f"checkpoints.best_metric={best!r} means nothing with tokenizer.kind={kind!r}; use "
            "exact_match"
        )
    if takes_model(best):
        yield (
            f"checkpoints.best_metric={best!r} is computed by a model, which training does not "
            f"open; use another, or t2t.watch --measure={best} beside training"
        )
    is_loss = best == "loss"
    measured = training.validate_every if is_loss else training.translate_every
    if config.checkpoints.keep_best and (not measured or config.checkpoints.every % measured):
        field = "training.validate_every" if is_loss else "training.translate_every"
        yield (
            f"checkpoints.every={config.checkpoints.every} must be a multiple of "
            f"{field}={measured}, so that checkpoints.keep_best has a {best} for each checkpoint; "
            f"change one of them, or set checkpoints.keep_best=0"
        )
    if config.checkpoints.patience and not measured:
        yield (
            f"checkpoints.patience={config.checkpoints.patience} counts validations by "
            f"checkpoints.best_metric={best!r}, but training.translate_every=0; set it"
        )
