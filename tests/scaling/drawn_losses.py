"""Losses of ladders that are drawn from known laws, with the noise of seeds."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from t2t.scaling.law import Losses

FLOPS = (1e12, 3e12, 9e12, 27e12)  # of four rungs
Law = Callable[[float], float]


def make_law(floor: float, part: float, exponent: float) -> Law:
    """L = floor + part (C / 1e12)^-exponent."""
    return lambda flops: floor + part * (flops / FLOPS[0]) ** -exponent


def bend(before: Law, at: float, exponent: float) -> Law:
    """The law, and from `at` on a straight line in logarithms with another exponent."""
    return lambda flops: before(flops) if flops < at else before(at) * (flops / at) ** -exponent


def draw(
    random: np.random.Generator,
    law: Law,
    noise: float,
    flops: Sequence[float] = FLOPS,
    seeds: int = 3,
) -> Losses:
    """Each run has the loss of the law times exp(noise * z)."""
    rungs = np.repeat(np.arange(len(flops)), seeds)
    sizes = np.asarray(flops, float)[rungs]
    logs = np.array([math.log(law(each)) for each in sizes.tolist()])
    losses = np.exp(logs + noise * random.normal(size=len(rungs)))
    return Losses(sizes[:, None], losses, rungs)
