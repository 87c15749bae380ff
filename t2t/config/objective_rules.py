"""The rules of `data.objective`, for `rules.validate`.

The pairs of an objective are made in `t2t/data/objectives.py`. Their lengths follow from the length
of a text by `count_noise`, which the rules need as well.
"""

from collections.abc import Iterator

from t2t.config.fields import Config, ConfigError, DataConfig
from t2t.config.variants import CHOICES, find_variant

TEXT_PAIR_KINDS = ("transformer", "rnn", "decoder_only")  # their sources and targets may be any
KINDS = {  # objective -> values of model.kind that can be trained with it
    "translation": TEXT_PAIR_KINDS,
    "lm": ("decoder_only",),
    "span_corruption": TEXT_PAIR_KINDS,
    "masked_lm": ("encoder_only",),
}

TEXT_MODELS = ("lm", "masked_lm")  # whose models give a text by itself a score


def count_noise(length: int, data: DataConfig) -> tuple[int, int]:
    """Returns how many sub-words of a text are corrupted, and in how many spans.

    As in T5 (Raffel et al. 2020) both numbers are rounded, and at least 1. Not all of a text is
    corrupted, unless it has only one sub-word, and spans do not touch. `length` is without EOS.
    """
    if not length:
        return 0, 0
    noise = min(max(round(length * data.noise_density), 1), max(length - 1, 1))
    spans = min(max(round(noise / data.mean_span_length), 1), noise, length - noise + 1)
    return noise, spans


def count_sentinels(data: DataConfig) -> int:
    """Returns how many sentinels the objective needs: for each span of the longest text, one.

    The longest text is that of `data.max_length`. masked_lm needs one, for the mask.
    """
    if data.objective != "span_corruption":
        return int(data.objective == "masked_lm")
    most = 0
    for length in range(1, 2 * data.max_length + 2):  # the shorter side has at least half of it
        noise, spans = count_noise(length, data)
        if max(length - noise, noise) + spans + 1 <= data.max_length:
            most = max(most, spans)
    return most


def check_translates(config: Config) -> None:
    """Raises ConfigError if the config does not train a model to translate."""
    if config.data.is_text_alone:
        use = "t2t.generate" if config.data.objective == "lm" else "t2t.generate --fill"
        raise ConfigError(
            f"data.objective={config.data.objective!r} trains no model to translate; {use} uses "
            "it, and t2t.evaluate with a split alone measures perplexity and accuracy"
        )


def check_continues(config: Config) -> None:
    """Raises ConfigError if the config trains no model to continue a text."""
    objective, kind = config.data.objective, config.model.kind
    if objective != "lm":
        use = "t2t.generate --fill" if config.data.is_text_alone else "t2t.translate"
        raise ConfigError(
            f"data.objective={objective!r} trains no model to continue a text; use {use}, or train "
            "one with data.objective='lm'"
        )
    if kind != "decoder_only":
        raise ConfigError(
            f"model.kind={kind!r} is not known to take a prompt; use model.kind='decoder_only'"
        )


def check_fills(config: Config) -> None:
    """Raises ConfigError if the config trains no model to fill gaps, or one to do so and more.

    A translation model may be an imported T5, which does both; its vocabulary tells.
    """
    if (objective := config.data.objective) not in ("span_corruption", "masked_lm", "translation"):
        use = "t2t.generate without --fill" if objective == "lm" else "t2t.evaluate"
        raise ConfigError(
            f"data.objective={objective!r} trains no model to fill gaps; use {use}, or a run of "
            "data.objective='span_corruption' or 'masked_lm'"
        )


def check_scores(config: Config) -> None:
    """Raises ConfigError if the model gives no probability to a target, token by token."""
    objective = config.data.objective
    if objective == "masked_lm" or config.model.kind == "encoder_only":
        raise ConfigError(
            f"data.objective={objective!r} trains a model that predicts masked sub-words, not a "
            "whole target, so a pair has no probability; t2t.evaluate computes their perplexity"
        )


def objective_problems(config: Config) -> Iterator[str]:
    """Yields one line for each rule about the objective that the config breaks."""
    data, objective, kind = config.data, config.data.objective, config.model.kind
    if objective in KINDS:
        trained = KINDS[objective]
    else:
        registered = find_variant("data.objective", objective)
        trained = tuple(getattr(registered, "kinds", TEXT_PAIR_KINDS))
    if kind in CHOICES["model.kind"] and kind not in trained:  # not a registered one
        objectives = ", ".join(name for name, kinds in KINDS.items() if kind in kinds)
        yield (
            f"data.objective={objective!r} cannot train model.kind={kind!r}; set model.kind to "
            f"{' or '.join(trained)}, or data.objective to one of {objectives}"
        )
    if not data.is_text_alone:
        return
    reads = f"data.objective={objective!r} reads text alone, which has no"
    if "identical" in data.filters:
        yield f"data.filters={data.filters}: {reads} sides to compare; leave out identical"
    if not config.tokenizer.shared:
        yield f"tokenizer.shared=False: {reads} second language; set tokenizer.shared=True"
    if data.subword_sampling and data.sampled_sides == "src":
        yield f"data.sampled_sides='src': {reads} sources; leave it at 'both'"
