"""Rules for new runs only: runs of earlier versions that break them can still be opened.

`rules.py` has those that every config must satisfy.
"""

from t2t.config.fields import Config, ConfigError
from t2t.config.variants import CHOICES

HIGHEST_PEAK = 0.1  # no built-in optimiser learns at a higher rate


def check_new_run(config: Config) -> None:
    """Checks what `validate` leaves to this module.

    Raises:
        ConfigError: the config breaks rules; the message has one line for each.
    """
    if problems := _rate_problems(config):
        raise ConfigError("\n".join(problems))


def _rate_problems(config: Config) -> list[str]:
    """Finds a factor of noam, such as the default 1.0, that another schedule takes for a peak."""
    training = config.training
    is_factor = training.schedule == "noam"
    is_known = training.schedule in CHOICES["training.schedule"]
    is_known &= training.optimizer in CHOICES["training.optimizer"]
    if is_factor or not is_known or training.learning_rate <= HIGHEST_PEAK:
        return []
    noam = training.noam_peak(config.model.d_model)
    return [
        f"training.learning_rate={training.learning_rate:g} is a factor only with training.schedule"
        f"='noam', whose rate would rise to {noam:.2g}; with {training.schedule!r} it is the peak "
        f"itself, at most {HIGHEST_PEAK:g}; set it, for example to {min(noam, HIGHEST_PEAK):.2g}"
    ]
