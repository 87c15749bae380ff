"""Rules for new runs only: runs of earlier versions that break them can still be opened.

`rules.py` has those that every config must satisfy.
"""

from collections.abc import Collection, Sequence

from t2t.config.fields import Config, ConfigError, flatten
from t2t.config.unused_fields import list_unused
from t2t.config.variants import CHOICES

HIGHEST_PEAK = 0.1  # no built-in optimiser learns at a higher rate


def check_new_run(config: Config) -> None:
    """Checks the peak of the schedule, and the relative positions of a causal model.

    A factor of noam, such as the default 1.0, is no peak of another schedule; a registered schedule
    or optimiser may have any rate. Of text alone without a prefix, half of the buckets of a prefix
    LM would never be used; T5's decoder has all of them for the past.

    Raises:
        ConfigError: one of them is wrong.
    """
    model, training = config.model, config.training
    is_causal = config.data.objective == "lm" and model.kind == "decoder_only"
    if is_causal and model.position == "relative" and model.prefix:
        raise ConfigError(
            "model.prefix=True would keep half of the buckets of model.position='relative' for "
            "tokens on the right, which data.objective='lm' never sees; set model.prefix=False"
        )
    is_known = training.schedule in CHOICES["training.schedule"]
    is_known &= training.optimizer in CHOICES["training.optimizer"]
    if training.schedule != "noam" and is_known and training.learning_rate > HIGHEST_PEAK:
        noam = training.noam_peak(config.model.d_model)
        raise ConfigError(
            f"training.learning_rate={training.learning_rate:g} is a factor only with "
            f"training.schedule='noam', whose rate would rise to {noam:.2g}; with "
            f"{training.schedule!r} it is the peak itself, at most {HIGHEST_PEAK:g}; set it, for "
            f"example to {min(noam, HIGHEST_PEAK):.2g}"
        )


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
