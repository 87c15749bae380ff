"""Variants that a config chooses by name: the library's own and registered ones.

A module outside t2t registers one with a decorator, and the config names that module in `plugins`:

    @register("training.schedule", "linear")
    def linear(training: TrainingConfig, d_model: int) -> optax.Schedule:
        return optax.linear_schedule(training.learning_rate, 0.0, training.steps)

`plugins` is saved in a run's `config.json`. A program that opens the run imports these modules only
if the user names them by --plugins, or trusts the run's own copies by --trust_plugins.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import re
import sys
import time
import traceback
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from t2t.config.field_types import FieldType, Role
from t2t.config.fields import FIELD_TYPES, ConfigError, PluginOptions, list_types, show
from t2t.config.measures import MEASURE_FIELD, MEASURES

GATED = ("swiglu", "geglu")  # feed-forwards with two inner projections, of which one is a gate
# The library's own variants by field, each chosen by a `match` on it.
CHOICES = {name: kind.names for name, kind in FIELD_TYPES.items() if kind.names} | {
    "training.writer": ("json_lines", "tensorboard"),  # no field: --writers of t2t.train
    MEASURE_FIELD: (*MEASURES,),  # no field of the config: --measures of t2t.evaluate
}


class Form(NamedTuple):
    """The form of a registered function or class, for checks and as errors show it."""

    arguments: str  # of a call; empty: `_check_variant` has several forms
    result: str
    call: str = ""  # the arguments with which its result is called

    def __str__(self) -> str:
        """Shows a signature, such as "(ModelConfig, Policy) -> nnx.Module, called as (x)"."""
        given = f"({self.arguments}) -> " if self.arguments else ""
        return f"{given}{self.result}{f', called as ({self.call})' if self.call else ''}"


# Fields that accept registered variants. The Config or section that a variant gets holds the typed
# options of plugins in `plugin`.
EXTENSIBLE = {
    "model.kind": Form("ModelConfig, Policy, src_vocab_size, tgt_vocab_size, key", "Model"),
    # A function; or a class of modules with parameters, of which each MultiHeadAttention has one.
    "model.attention": Form(
        "",
        "as t2t.model.attention.dot_product_attention, or an nnx.Module class (ModelConfig, "
        "Policy, key) of modules called so, or a subclass of MultiHeadAttention",
    ),
    # May also return (y, auxiliary), see t2t.model.stack.Auxiliary. `is_token` is False at padding,
    # or None.
    "model.feed_forward": Form("ModelConfig, Policy, key", "nnx.Module", "x, key, is_token"),
    "model.norm": Form("ModelConfig, Policy", "nnx.Module", "x"),
    "model.position": Form("ModelConfig, Policy, key, causal", "t2t.model.position.Position"),
    # Makes the pairs of text alone; a class derived from `Objective`.
    "data.objective": Form("DataConfig, sentinels, words", "t2t.data.objectives.Objective"),
    # Returns the corpus of one split, or None if the source has no such split. Training asks for
    # train, validation and test; any other split can be evaluated.
    "data.source": Form("DataConfig, split: str", "Corpus | None"),
    # Gradients are clipped (`training.clip_norm`) before they reach it. It may also return a
    # t2t.training.optimizer.Optimizer, which says at which parameters it is evaluated. The third
    # argument maps each name to a t2t.ops.build_model.Parameter.
    "training.optimizer": Form(
        "Config, optax.Schedule, parameters", "optax.GradientTransformation"
    ),
    # Of training alone, not of validation. A function, or a class (Config) whose instances are
    # called so. With an attribute `teachers`, names of runs, their models follow the key.
    "training.loss": Form(
        "model, batch, key",
        "(sum of losses, sum of weights[, auxiliary[, {figure: sum}]]), which begins with hidden, "
        "table, targets, weights, auxiliary = model.predict(batch, key)",
    ),
    # Maps the number of updates so far to the learning rate; does its own warm-up.
    "training.schedule": Form("TrainingConfig, d_model", "optax.Schedule"),
    # Called once, by the first process, before the first step.
    "training.writer": Form("Config, workdir", "t2t.training.metric_writers.MetricWriter"),
    # Typed fields of the config, --config.plugin.NAME.FIELD.
    "plugin": Form(
        "", "a dataclass derived from t2t.config.PluginOptions, whose fields have defaults"
    ),
    # The language is one of `normalize_language`, or "" if it is unknown. With a further argument
    # `model` it gets the run directory that --measure_model names.
    MEASURE_FIELD: Form(
        "tgt_language, num_references",
        "t2t.evaluation.measure.Measure with segments(sources, hypotheses, references) -> finite "
        "array [sentences, statistics]",
    ),
}

Variant = TypeVar("Variant", bound=Callable[..., Any])
BEGAN = time.time()  # when this process imported t2t
_registered: dict[tuple[str, str], Callable[..., Any]] = {}
_imported: set[str] = set()  # modules that were imported as plugins
_trusted: set[str] = set()  # modules that a run's config may name (`trust_plugins`)
_trusts_copies = False
# In JAX's messages: a word, or a type such as float32[8@data,16].
_SHARDING = re.compile(r"shard(ing|ed)|PartitionSpec|unreduced|\d@", re.IGNORECASE)
COPIES = "plugins"  # folder of a run directory with copies of its plugins


def register(field: str, name: str) -> Callable[[Variant], Variant]:
    """Returns a decorator that makes `name` a value of a config field.

    A function may be registered again, for example when a notebook cell is run twice.

    Raises:
        ConfigError: the field accepts no variants, the name is taken, or the function does not take
            the arguments that `EXTENSIBLE` names.
    """
    if field not in EXTENSIBLE:
        raise ConfigError(
            f"{field} accepts no registered variants; these fields do: {', '.join(EXTENSIBLE)}"
        )
    if name in CHOICES.get(field, ()):
        raise ConfigError(f"{field}={name!r} is one of t2t's own variants; choose another name")

    def add(variant: Variant) -> Variant:
        owner = _qualified_name(_registered.get((field, name), variant))
        if owner != _qualified_name(variant):
            raise ConfigError(f"{field}={name!r} is registered by {owner}; choose another name")
        before = _registered.get((field, name))
        _registered[field, name] = variant
        try:
            _check_variant(field, name, variant)
        except ConfigError:
            del _registered[field, name]
            if before is not None:
                _registered[field, name] = before
            raise
        return variant

    return add


def find_variant(field: str, name: str) -> Callable[..., Any]:
    """Returns the registered variant; an unknown name raises ConfigError with the known names."""
    if (field, name) not in _registered:
        raise ConfigError(describe_unknown(field, name))
    return _registered[field, name]


def has_registered(section: str) -> bool:
    """Returns whether a variant has been registered for a field of this section of the config."""
    return any(field.startswith(f"{section}.") for field, _ in _registered)


def list_plugins() -> list[str]:
    """Returns the plugins of this process: the modules outside t2t whose code decides its results.

    A config or --plugins has named them, or they have registered a variant after an import by the
    user, for example in a notebook.
    """
    registered = {variant.__module__ for variant in _registered.values()}
    found = _imported | {name for name in registered if not name.startswith("t2t.")}
    return sorted(found & sys.modules.keys())


def _check_variant(field: str, name: str, variant: Any) -> None:
    """Raises ConfigError if a function, or a class and its instances, take other arguments."""
    call: Any = variant.__call__ if isinstance(variant, type) and callable(variant) else None
    match field:
        case "plugin":
            _check_options(name, variant)
        case "model.attention" if call is None:
            check_call(field, name, variant, *[None] * 6, scaled=True)
        case "model.attention" if "MultiHeadAttention" in [
            kind.__name__ for kind in variant.__mro__
        ]:
            check_call(field, name, variant, *[None] * 3, over_memory=True)
            check_call(field, name, call, *[None] * 5)  # self, and four arguments
        case "model.attention":
            check_call(field, name, variant, *[None] * 3)
            check_call(field, name, call, *[None] * 7, scaled=True)
        case "training.loss" if call:
            check_call(field, name, variant, None)  # its teachers are known when it is created
        case "training.loss":
            check_call(field, name, variant, *[None] * 3, *list_teachers(name, variant))
        case "evaluation.measure" if takes_model(name):
            check_call(field, name, variant, None, None, model=None)
        case _:
            form = EXTENSIBLE[field]
            check_call(field, name, variant, *form.arguments.split(", "))
            if call is not None and form.call:
                check_call(field, name, call, None, *form.call.split(", "))


def _check_options(name: str, kind: Any) -> None:
    """Raises ConfigError if a class declares no options; evaluates annotations that are texts."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
        kind()
        for field in dataclasses.fields(kind):
            field.type = hints[field.name]  # which may have been a text
        is_valid = issubclass(kind, PluginOptions) and name.isidentifier()
    except TypeError:
        is_valid = False
    if not is_valid:
        raise make_variant_error("plugin", name, "declares no options under a name of its own")


def find_options(name: str) -> type[PluginOptions] | None:
    """Returns the class of a plugin's options, or None if no module has registered them."""
    kind: Any = _registered.get(("plugin", name))
    return kind


def find_type(name: str) -> FieldType | None:
    """Returns the type of a field of the config, such as "data.source" or "plugin.own.mix".

    It is None if there is no such field, or if the plugin is not imported.
    """
    section, _, _ = name.rpartition(".")
    if not section.startswith("plugin."):
        return FIELD_TYPES.get(name)
    options = find_options(section.partition(".")[2])
    return dict(list_types(options, section)).get(name) if options else None


def find_role(name: str) -> Role:
    """Returns the role of a field; an unknown one counts as an option of a plugin, or as code."""
    kind = find_type(name)
    unknown = Role.OPTIONS if name.startswith("plugin.") else Role.CODE
    return (kind and kind.role) or unknown


def list_options(modules: Collection[str]) -> list[str]:
    """Returns the names under which these modules, or a notebook, have registered options."""
    return [
        name
        for (field, name), kind in _registered.items()
        if field == "plugin"
        and any(f"{kind.__module__}.".startswith(f"{own}.") for own in (*modules, "__main__"))
    ]


def describe_options(name: str) -> str:
    """Explains the fields of a plugin's options, or says that there are none.

    `name` is a plugin or one of its fields, such as "distillation.mix".
    """
    name = name.partition(".")[0]
    kind = find_options(name)
    if kind is None:
        return (
            f"plugin.{name}: no module of plugins has such options; name the module that registers "
            "them in plugins"
        )
    return f"plugin.{name} has " + "; ".join(
        f"{field.name} ({FieldType.of(field.type)}, by default {field.default!r}): "
        f"{field.metadata.get('help', '')}"
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]  # it is a dataclass
    )


def call_variant(
    field: str, name: str, *arguments: Any, is_valid: Callable[[Any], bool], **named: Any
) -> Any:
    """Calls the registered variant of a field in `EXTENSIBLE`, and returns its result.

    It is the last case of each `match` that chooses among the library's own variants.

    Raises:
        ConfigError: the variant is not registered, or its result is not valid.
    """
    result = find_variant(field, name)(*arguments, **named)
    if not is_valid(result):
        raise make_variant_error(field, name, f"returned {describe_value(result)}")
    if form := EXTENSIBLE[field].call:
        check_call(field, name, result, *form.split(", "))
    return result


def check_call(
    field: str, name: str, function: Callable[..., Any], *arguments: Any, **named: Any
) -> None:
    """Raises ConfigError if a function of a variant does not take these arguments."""
    if isinstance(function, type):  # whose arguments the metaclass of nnx.Module hides
        init = function.__init__  # type: ignore[misc]  # its arguments are what is checked
        function = (lambda: None) if init is object.__init__ else functools.partial(init, None)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in function may have none
        return
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        raise make_variant_error(field, name, f"has the arguments {signature} ({error})") from None


def takes_model(name: str) -> bool:
    """Returns whether a registered measure has the argument `model`, a run directory."""
    variant = _registered.get((MEASURE_FIELD, name))
    return variant is not None and "model" in inspect.signature(variant).parameters


def list_teachers(name: str, loss: object) -> tuple[str, ...]:
    """Returns the runs that a registered loss has in `teachers`; ConfigError: they are not runs."""
    found = getattr(loss, "teachers", ())
    if isinstance(found, tuple | list) and all(isinstance(x, str | os.PathLike) for x in found):
        return tuple(map(os.fspath, found))
    fault = f"has teachers={show(found)}; write a tuple of runs, such as ('runs/a',)"
    raise make_variant_error("training.loss", name, fault)


def make_variant_error(field: str, name: str, fault: str) -> ConfigError:
    """Returns the error for a registered function that is not as `EXTENSIBLE` says."""
    owner = _qualified_name(_registered[field, name])
    return ConfigError(f"{field}={name!r}: {owner} {fault}; expected {EXTENSIBLE[field]}")


def describe_value(value: Any) -> str:
    """Names an array's shape, or another value's type."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"an array of shape {tuple(shape)}"


def describe_unknown(field: str, name: str) -> str:
    """Returns the error message for an unknown value of a field; it lists the known values."""
    kind = FIELD_TYPES.get(field)
    takes_registered = kind.takes_registered if kind else field in EXTENSIBLE
    remedy = ", or name the module that registers it in plugins" if takes_registered else ""
    return f"{field}={name!r} is unknown; use one of {', '.join(choices(field))}{remedy}"


def choices(field: str) -> tuple[str, ...]:
    """Returns all values that a field can have: the library's own, then the registered ones."""
    takes_registered = field in FIELD_TYPES and FIELD_TYPES[field].takes_registered
    # Such as the utility of minimum Bayes risk.
    is_measure = takes_registered and field not in EXTENSIBLE
    kind = MEASURE_FIELD if is_measure else field
    return CHOICES.get(field, ()) + tuple(name for owner, name in _registered if owner == kind)


def import_plugins(modules: Sequence[str]) -> None:
    """Imports the modules that register variants.

    Raises:
        ConfigError: one of them cannot be found.
    """
    for module in modules:
        if "" in module.split("."):
            raise ConfigError(
                f"plugins: {module!r} is not the name of a module; write one as PACKAGE.MODULE, "
                "or leave it out"
            )
        try:
            importlib.import_module(module)
            _imported.add(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise  # the module was found, but one that it imports was not
            raise ConfigError(
                f"plugins: the module {module} cannot be imported ({error}); start the program "
                "in the folder that contains it, or add that folder to PYTHONPATH"
            ) from None


def trust_plugins(modules: Collection[str] = (), *, copies: bool = False) -> None:
    """Allows `open_plugins` to import modules that the config of a run names.

    These are `modules` on the path and, with `copies`, those in the folder plugins/ of a run.
    """
    global _trusts_copies
    _trusted.update(modules)
    _trusts_copies = copies


def open_plugins(modules: Sequence[str], workdir: Path) -> None:
    """Imports the modules that the config of a run names, as far as the user allows it.

    A run directory is data: it may come from somebody else. What the user has imported, or named by
    --plugins, is taken from the user's path; the copies that the run keeps need --trust_plugins.

    Raises:
        ConfigError: a module is not allowed, or there is none.
    """
    folder = workdir / COPIES
    for module in modules:
        if module in sys.modules:
            _imported.add(module)
        elif module in _trusted:
            import_plugins([module])
        elif _trusts_copies and _has_copy(folder, module):
            _import_copy(folder, module)
        else:
            own = ", or --trust_plugins, which runs the copy in the run directory"
            raise ConfigError(
                f"plugins: {workdir} names the module {module}, which is not imported unless you "
                f"ask for it: give --plugins={module}, which runs it from your path"
                f"{own if _has_copy(folder, module) else ''}; in Python import it before"
            )


def _has_copy(folder: Path, module: str) -> bool:
    # Python imports nothing from a bucket, and this is False there: no local folder is named "gs:".
    path = Path(str(folder)) / module.replace(".", "/")
    places = path.with_name(f"{path.name}.py"), path / "__init__.py"
    return any(place.is_file() for place in places)


def _import_copy(folder: Path, module: str) -> None:
    """Imports a module from this folder, which is on `sys.path` during the import alone."""
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        import_plugins([module])
    finally:
        sys.path.remove(str(folder))


def _qualified_name(variant: Callable[..., Any]) -> str:
    return f"{variant.__module__}.{getattr(variant, '__qualname__', repr(variant))}"


@contextlib.contextmanager
def explain_shardings() -> Iterator[None]:
    """Replaces errors of JAX's shardings in the code of a registered variant by one line.

    Raises:
        ConfigError: names the line of the variant's module, and the page that says what to do.
    """
    try:
        yield
    except Exception as error:
        fault = " ".join(str(error).split())
        modules = {variant.__module__ for variant in _registered.values()}
        lines = [
            (frame.f_globals["__name__"], line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__") in modules
        ]
        if isinstance(error, ConfigError) or not (lines and _SHARDING.search(fault)):
            raise
        module, line = lines[-1]
        raise ConfigError(
            f"plugins: {module}, line {line}: {fault[:300]}; docs/extending.md#on-a-mesh shows how "
            "new arrays, concatenations and gathers are sharded; reshard(x) puts x on every device"
        ) from error
