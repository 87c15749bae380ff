"""Reads `data.stages`: how often an epoch uses each corpus, and until which step of training."""

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from t2t.config.fields import ConfigError

NO_END = sys.maxsize  # `Stage.stop` of the last stage


class Stage(NamedTuple):
    """Steps [first, stop) of training, counted from 0, and the weights of the corpora in them."""

    first: int
    stop: int
    weights: tuple[float, ...]  # how often an epoch uses each pair of each corpus; 0: never


def read_stages(texts: Sequence[str]) -> list[Stage]:
    """Reads the stages of `data.stages`.

    Raises:
        ConfigError: one of them breaks a rule.
    """
    stages: list[Stage] = []
    for number, text in enumerate(texts, start=1):
        first = stages[-1].stop if stages else 0
        border, colon, numbers = text.rpartition(":")
        try:
            stop = int(border) if colon else NO_END
            weights = tuple(map(float, numbers.split(",")))
        except ValueError:
            stop, weights = 0, ()
        if not weights or bool(colon) == (number == len(texts)):
            raise ConfigError(
                f"data.stages has {text!r} as number {number} of {len(texts)}; write each as STEP: "
                "WEIGHTS, such as '2000: 1,0.5', but the last one as WEIGHTS alone"
            )
        if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise ConfigError(
                f"data.stages has {text!r}, whose weights must be finite and not negative, and one "
                "of them positive; 0 leaves a corpus out"
            )
        if stop <= first:
            raise ConfigError(
                f"data.stages has {text!r} after step {first}; let each stage end later than the "
                "one before"
            )
        stages.append(Stage(first, stop, weights))
    return stages
