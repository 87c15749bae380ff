"""Variants that a config chooses by name: those of the library, and those that others add.

A module outside t2t adds one with a decorator, and the config names that module in `plugins`:

    @register("training.schedule", "linear")
    def linear(training: TrainingConfig, d_model: int) -> optax.Schedule:
        return optax.linear_schedule(training.learning_rate, 0.0, training.steps)

Runs keep `plugins` in their `config.json`, so every program that reads a run finds its variants.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from t2t.config.fields import ConfigError

# The library's own variants, each chosen by a `match` on the field.
CHOICES = {
    "model.kind": ("transformer", "rnn"),
    "model.attention": ("dot_product",),
    "model.position": ("sinusoidal", "learned", "rotary", "relative", "alibi", "none"),
    "model.norm": ("layer", "rms", "none"),
    "model.norm_position": ("post", "pre"),
    "model.feed_forward": ("relu", "gelu", "swiglu", "geglu", "none"),
    "model.rnn_cell": ("gru", "lstm"),
    "model.tie_embeddings": ("all", "decoder", "none"),
    "model.dtype": ("auto", "float32", "bfloat16", "mixed"),
    "model.kernels": ("auto", "textbook"),
    "data.source": ("phrasebook", "multi30k", "tfds", "text"),
    "tokenizer.kind": ("bpe", "unigram"),
    "training.schedule": ("noam", "inverse_sqrt", "cosine", "constant"),
    "checkpoints.best_metric": ("loss", "bleu"),
}

# Fields that take variants from outside, and what has to be registered for each.
EXTENSIBLE = {
    "model.attention": "as t2t.model.attention.dot_product_attention",
    "model.feed_forward": "(ModelConfig, Policy, key) -> nnx.Module, called as (x, key)",
    "training.schedule": "(TrainingConfig, d_model) -> optax.Schedule",
}

Variant = TypeVar("Variant", bound=Callable[..., Any])
_registered: dict[tuple[str, str], Callable[..., Any]] = {}


def register(field: str, name: str) -> Callable[[Variant], Variant]:
    """Returns a decorator that makes `name` a value of a config field.

    Raises:
        ConfigError: the field takes no variants, or the library itself has one of this name.
    """
    if field not in EXTENSIBLE:
        raise ConfigError(
            f"{field} takes no variants from outside; these fields do: {', '.join(EXTENSIBLE)}"
        )
    if name in CHOICES[field]:
        raise ConfigError(f"{field}={name!r} is the library's own; choose another name")

    def add(variant: Variant) -> Variant:
        _registered[field, name] = variant
        return variant

    return add


def find_variant(field: str, name: str) -> Callable[..., Any]:
    """The registered variant; `ConfigError` lists what there is instead."""
    if (field, name) not in _registered:
        raise ConfigError(f"{field}={name!r} is unknown; use one of {', '.join(choices(field))}")
    return _registered[field, name]


def choices(field: str) -> tuple[str, ...]:
    """All values of a field: the library's own, then the registered ones."""
    return CHOICES[field] + tuple(name for owner, name in _registered if owner == field)


def import_plugins(modules: Sequence[str]) -> None:
    """Imports the modules that register variants.

    Raises:
        ConfigError: one of them cannot be found.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"plugins: the module {module} cannot be imported ({error}); start the program "
                "where it lies, or set PYTHONPATH"
            ) from None
