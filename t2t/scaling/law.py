"""The law of losses over sizes, fitted to all runs of a ladder, with intervals.

    L = E + A (N / N_0)^-a + B (D / D_0)^-b        two sizes: parameters N and target tokens D
    L = E + A (C / C_0)^-a                         one size, such as training FLOPs C

E is the floor that no size passes. Sizes are divided by those of the smallest rung, so A and B are
losses above the floor there. The form is that of Hoffmann et al. (2022, section 3.3), and so is the
fit on the logarithm of the loss. Theirs minimises Huber's loss with a threshold of 1e-3, for single
runs of many sizes. Here several seeds show how much runs of a rung differ, and least squares uses
them best; Besiroglu et al. (2024, arXiv 2404.10102) show what a fit that stops early and intervals
that are not checked lead to. `benchmarks/law_intervals.py` compares both by simulation.

Intervals are those of the profile: a value belongs to one if the law that is bound to it raises the
sum of squares by no more than Student's t allows (Bates and Watts 1988, section 6.1). For a
prediction the value is a further run at its size, so the interval holds the noise of that run, too.
For a law that is linear in its parameters these intervals are exact.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize, special

from t2t.evaluation.measure import LEVEL, Interval

MANY_SEEDS = 10_000  # so many that the mean of their losses is the law's own value
_SHARES = 0.4, 0.8, 0.97  # of the smallest loss: floors at which a fit starts
_EXPONENTS = (0.3, 0.3), (0.1, 0.6), (0.6, 0.1)  # of two terms, at which a fit starts
_GRID = 25  # sizes at which two laws are compared
_LARGEST = 5.0  # the logarithm of an exponent, from which on the first step takes all
_NONE = -30.0  # the logarithm of a part of the loss that is none


class LawError(ValueError):
    """Raised if losses show no law; the message has the reason and a remedy."""


class Losses(NamedTuple):
    """The final losses of runs at several sizes."""

    sizes: Float[np.ndarray, "n k"]  # of each run: FLOPs, or parameters and tokens
    losses: Float[np.ndarray, "n"]
    rungs: Int[np.ndarray, "n"]  # the number of each run's rung, from 0, by size

    @property
    def num_rungs(self) -> int:
        """The number of different rungs."""
        return len(np.unique(self.rungs))

    def up_to(self, rung: int) -> "Losses":
        """Returns the runs of the rungs below this one."""
        kept = self.rungs < rung
        return Losses(self.sizes[kept], self.losses[kept], self.rungs[kept])


class Forecast(NamedTuple):
    """A loss that the law predicts."""

    loss: float
    interval: Interval  # 95%, of the mean of the given number of runs

    def covers(self, loss: float) -> bool:
        """Returns whether a loss lies in the interval."""
        return self.interval[0] <= loss <= self.interval[1]


class Backtest(NamedTuple):
    """A rung, and its prediction from the smaller ones."""

    rung: int
    forecast: Forecast  # of the mean of its runs
    loss: float  # the mean of its runs
    p_value: float  # of a deviation as large as this one, if the law holds


@dataclasses.dataclass(frozen=True)
class _Fit:
    """Logarithms of E, A, B, a and b: all are positive, so no loss rises with size."""

    params: Float[np.ndarray, "p"]
    squares: float  # sum of the squared residuals of the logarithm of the loss


@dataclasses.dataclass(frozen=True)
class LossLaw:
    """A fitted law; `fit_law` makes it."""

    runs: Losses
    fit: _Fit

    @property
    def num_terms(self) -> int:
        """The number of sizes."""
        return self.runs.sizes.shape[1]

    @property
    def floor(self) -> float:
        """E; 0 if the law fits best without one."""
        return math.exp(self.fit.params[0]) if self._has_floor else 0.0

    @property
    def amplitudes(self) -> tuple[float, ...]:
        """A, and B: the parts above the floor at the smallest sizes."""
        return tuple(map(math.exp, self.fit.params[1 : 1 + self.num_terms]))

    @property
    def exponents(self) -> tuple[float, ...]:
        """The exponents a, and b."""
        return tuple(map(math.exp, self.fit.params[1 + self.num_terms :]))

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the noise: runs without parameters; of rungs after a misfit."""
        count = self.runs.num_rungs if self.is_misfit else len(self.runs.losses)
        return count - self._num_params

    @property
    def noise(self) -> float:
        """Relative standard deviation of a run: of seeds, and of rungs about the law.

        If the means of rungs lie further from the law than seeds explain, then it is that of the
        rungs (`misfit`), whose few degrees of freedom make wide intervals.
        """
        squares = self._between if self.is_misfit else self.fit.squares
        return math.sqrt(squares / self.freedom)

    @functools.cached_property
    def misfit(self) -> float | None:
        """p-value of the F-test for lack of fit; None if as many rungs as parameters.

        It compares the deviations of the rungs' means from the law with those of runs from them.
        """
        freedom = self.runs.num_rungs - self._num_params
        if freedom < 1:
            return None
        of_seeds = len(self.runs.losses) - self.runs.num_rungs
        scatter = self.noise_of_seeds**2
        ratio = self._between / freedom / scatter if scatter else math.inf
        return float(special.fdtrc(freedom, of_seeds, ratio))

    @property
    def noise_of_seeds(self) -> float:
        """Relative standard deviation of a run about the mean of its rung."""
        return math.sqrt(self._within / (len(self.runs.losses) - self.runs.num_rungs))

    @property
    def is_misfit(self) -> bool:
        """Returns whether the rungs lie further from the law than their seeds explain."""
        return self.misfit is not None and self.misfit < LEVEL

    @property
    def _has_floor(self) -> bool:
        return bool(self.fit.params[0] > math.log(self.runs.losses.min()) + math.log(1e-3))

    @property
    def _num_params(self) -> int:
        return len(self.fit.params) - (not self._has_floor)

    @functools.cached_property
    def _within(self) -> float:
        """Squares of runs about the mean of their rung."""
        logs = np.log(self.runs.losses)
        means = [logs[self.runs.rungs == rung].mean() for rung in self.runs.rungs]
        return float(((logs - means) ** 2).sum())

    @property
    def _between(self) -> float:
        return max(self.fit.squares - self._within, 0.0)

    @property
    def _allowed(self) -> float:
        """The increase of the squares at the edge of an interval."""
        quantile = float(special.stdtrit(self.freedom, 1 - LEVEL / 2))
        return (quantile * self.noise) ** 2

    def compute(self, size: Sequence[float]) -> float:
        """Returns the law's loss at a size."""
        parts = _list_parts(self.fit.params, self._scale(size))
        return float(np.exp(np.logaddexp.reduce(parts, axis=1)[0]))

    def find_p_value(self, size: Sequence[float], loss: float, seeds: int = 1) -> float:
        """Returns the p-value of a mean loss of so many runs at a size, if the law holds."""
        ratio = math.sqrt(self._find_increase(size, math.log(loss), seeds)) / self.noise
        return float(2 * special.stdtr(self.freedom, -ratio))

    def predict(self, size: Sequence[float], seeds: int = 1) -> Forecast:
        """Predicts the mean loss of so many runs at a size, with its 95% interval.

        `MANY_SEEDS` gives the interval of the law itself.
        """
        loss = self.compute(size)

        def exceed(log_loss: float) -> float:
            return self._find_increase(size, log_loss, seeds) - self._allowed

        middle, step = math.log(loss), math.sqrt(self._allowed) or 1e-9
        low, high = (_find_edge(exceed, middle, sign * step) for sign in (-1, 1))
        return Forecast(loss, (math.exp(low), math.exp(high)))

    def estimate_mean(self, rung: int) -> Forecast:
        """Returns the mean loss of a rung, with its 95% interval by the noise of all seeds."""
        losses = self.runs.losses[self.runs.rungs == rung]
        freedom = len(self.runs.losses) - self.runs.num_rungs
        mean = float(np.log(losses).mean())
        half = float(special.stdtrit(freedom, 1 - LEVEL / 2)) * self.noise_of_seeds
        half /= math.sqrt(len(losses))
        return Forecast(math.exp(mean), (math.exp(mean - half), math.exp(mean + half)))

    @functools.cached_property
    def floor_interval(self) -> Interval:
        """The 95% interval of E. It begins with 0 if the losses show no floor."""
        exceed = self._bind(0)
        shown = self.floor / 2 or self.runs.losses.min() * 1e-3
        high = _find_edge(lambda e: exceed(math.log(e)), max(self.floor, shown), shown)
        if exceed(-math.inf) <= 0:
            return 0.0, high
        low = _find_edge(exceed, math.log(self.floor), -0.1)
        return math.exp(low), high

    @functools.cached_property
    def amplitude_intervals(self) -> tuple[Interval, ...]:
        """The 95% intervals of A, and B."""
        found = [self._profile(1 + term) for term in range(self.num_terms)]
        return tuple((math.exp(low), math.exp(min(high, 700))) for low, high in found)

    @functools.cached_property
    def exponent_intervals(self) -> tuple[Interval, ...]:
        """The 95% intervals of a, and b; infinite where any larger one fits, too."""
        count = self.num_terms
        found = [self._profile(1 + count + term) for term in range(count)]
        largest = math.exp(_LARGEST)
        edges = [(math.exp(low), math.exp(min(high, _LARGEST))) for low, high in found]
        return tuple((low, high if high < largest else math.inf) for low, high in edges)

    @property
    def has_floor(self) -> bool:
        """Returns whether the losses show a floor: the interval of E does not reach 0."""
        return self.floor_interval[0] > 0

    def _profile(self, index: int) -> Interval:
        exceed, middle = self._bind(index), float(self.fit.params[index])
        return _find_edge(exceed, middle, -0.1), _find_edge(exceed, middle, 0.1)

    def _bind(self, index: int) -> Callable[[float], float]:
        """Returns by how much the squares exceed what is allowed with one parameter bound."""
        logs, sizes = np.log(self.runs.losses), self._scale(self.runs.sizes)
        weights = np.ones_like(logs)

        def exceed(value: float) -> float:
            found = _minimise(sizes, logs, weights, [self.fit.params], {index: value})
            return found.squares - self.fit.squares - self._allowed

        return exceed

    def _find_increase(self, size: Sequence[float], log_loss: float, seeds: int) -> float:
        """Returns the increase of the squares by a further loss, the mean of so many runs."""
        sizes = np.concatenate([self._scale(self.runs.sizes), self._scale(size)])
        logs = np.append(np.log(self.runs.losses), log_loss)
        weights = np.append(np.ones(len(logs) - 1), math.sqrt(seeds))
        found = _minimise(sizes, logs, weights, [self.fit.params])
        return max(found.squares - self.fit.squares, 0.0)

    def _scale(self, sizes: Sequence[float] | Float[np.ndarray, "_ k"]) -> Float[np.ndarray, "_ k"]:
        """Returns the logarithms of sizes, divided by the smallest ones."""
        return np.log(np.reshape(sizes, (-1, self.num_terms)) / self.runs.sizes.min(axis=0))


def fit_law(runs: Losses) -> LossLaw:
    """Fits the law to the losses of all runs at once.

    Raises:
        LawError: there are fewer rungs than parameters, no rung has two seeds, a loss is not finite
            or not positive, seeds do not differ, or losses do not fall with size.
    """
    check_losses(runs)
    sizes = np.log(runs.sizes / runs.sizes.min(axis=0))
    logs = np.log(runs.losses)
    return LossLaw(runs, _minimise(sizes, logs, np.ones_like(logs)))


def check_losses(runs: Losses) -> None:
    """Raises `LawError` as `fit_law`."""
    count, params = runs.num_rungs, count_params(runs.sizes.shape[1])
    if count < params:
        raise LawError(
            f"{count} rung{'s' * (count != 1)}, and the law has {params} parameters; train at "
            f"least {params} rungs, or better {params + 1}, so that one of them can contradict it"
        )
    if len(runs.losses) == count:
        raise LawError(
            "each rung has one seed, which does not show how much runs differ; train two or more, "
            "with --seeds of t2t.sweep"
        )
    if not (np.isfinite(runs.losses) & (runs.losses > 0)).all():
        wrong = next(loss for loss in runs.losses if not (math.isfinite(loss) and loss > 0))
        raise LawError(f"a loss is {wrong}; all have to be finite and positive")
    logs = np.log(runs.losses)
    if not any(np.ptp(logs[runs.rungs == rung]) for rung in np.unique(runs.rungs)):
        raise LawError(
            "all seeds of a rung have one loss, so they are one run; train them with other seeds"
        )
    order = np.argsort(runs.rungs)
    first, last = (runs.losses[runs.rungs == runs.rungs[order[end]]].mean() for end in (0, -1))
    if last >= first:
        raise LawError(
            f"the largest rung has the loss {last:.4g}, and the smallest one {first:.4g}: losses "
            "do not fall with size, so there is no law to predict by; tune rates, or train longer"
        )


def count_params(num_terms: int) -> int:
    """Returns the number of parameters of a law of so many sizes."""
    return 1 + 2 * num_terms


def backtest(runs: Losses) -> list[Backtest]:
    """Predicts each rung from the smaller ones, as far as these are enough for a law."""
    found = []
    for rung in range(count_params(runs.sizes.shape[1]), runs.num_rungs):
        own = runs.rungs == rung
        losses, [size, *_] = runs.losses[own], runs.sizes[own]
        try:
            law = fit_law(runs.up_to(rung))
        except LawError:
            continue
        mean, count = float(np.exp(np.log(losses).mean())), len(losses)
        p_value = law.find_p_value(size.tolist(), mean, count)
        found.append(Backtest(rung, law.predict(size.tolist(), count), mean, p_value))
    return found


def subtract(first: Forecast, second: Forecast) -> Forecast:
    """Returns second minus first with its interval, of independent forecasts.

    The interval has each side from that of the two (Zou and Donner 2008, MOVER), since neither is
    symmetric.
    """
    difference = second.loss - first.loss
    (low, high), (other_low, other_high) = first.interval, second.interval
    below = math.hypot(second.loss - other_low, high - first.loss)
    above = math.hypot(other_high - second.loss, first.loss - low)
    return Forecast(difference, (difference - below, difference + above))


class Crossing(NamedTuple):
    """Where the laws of two families have equal losses."""

    value: float | None  # in the range; None if one is better all over it
    interval: Interval | None  # sizes at which neither is known to be better; None: cannot be said


def find_crossing(first: LossLaw, second: LossLaw, low: float, high: float) -> Crossing:
    """Finds the size at which two laws of one size have equal losses, between two sizes.

    The interval has all sizes at which the 95% interval of the difference of the laws holds 0
    (Fieller 1954). It can be said if one family is better at one end, and the other at the other.
    """
    grid = np.geomspace(low, high, _GRID)
    found = [
        subtract(first.predict([size], MANY_SEEDS), second.predict([size], MANY_SEEDS))
        for size in grid.tolist()
    ]
    signs = np.sign([each.loss for each in found])
    changes = np.flatnonzero(signs[1:] != signs[:-1])
    if not changes.size:
        return Crossing(None, None)
    place = int(changes[0])
    value = optimize.brentq(
        lambda size: second.compute([size]) - first.compute([size]), grid[place], grid[place + 1]
    )
    unknown = [n for n, each in enumerate(found) if each.interval[0] <= 0 <= each.interval[1]]
    unknown += [place, place + 1]
    edges = min(unknown) - 1, max(unknown) + 1
    is_known = edges[0] >= 0 and edges[1] < _GRID and signs[edges[0]] != signs[edges[1]]
    interval = (float(grid[edges[0]]), float(grid[edges[1]])) if is_known else None
    return Crossing(float(value), interval)


def _list_parts(params: Any, sizes: Any) -> Any:
    """Returns the logarithms of E and of each term of the law, a column each; [n, 1 + k]."""
    count = sizes.shape[1]
    exponents = np.exp(np.minimum(params[1 + count :], _LARGEST))
    terms = params[1 : 1 + count] - exponents * sizes
    return np.column_stack([np.full(len(sizes), params[0]), terms])


def _differentiate(params: Any, sizes: Any) -> Any:
    """Returns the derivatives of the logarithm of the law's loss by the parameters; [n, p]."""
    parts = _list_parts(params, sizes)
    shares = np.exp(parts - np.logaddexp.reduce(parts, axis=1)[:, None])
    # A term is A x^-a, and its derivative by the logarithm of a has the factor -a log x.
    exponents = np.exp(np.minimum(params[1 + sizes.shape[1] :], _LARGEST))
    return np.column_stack([shares, -shares[:, 1:] * exponents * sizes])


def _minimise(
    sizes: Float[np.ndarray, "n k"],
    logs: Float[np.ndarray, "n"],
    weights: Float[np.ndarray, "n"],
    starts: Sequence[Float[np.ndarray, "p"]] = (),
    bound: Mapping[int, float] = {},
) -> _Fit:
    """Returns the best of fits from several starts, with a floor and without one.

    `sizes` and `logs` are logarithms, and `bound` holds parameters that are fixed, by index.
    `starts` are those of a fit that differs little; there are more without one.
    """
    known = [*_list_starts(sizes, logs)]
    chosen = [*starts, known[1]] if len(starts) else known
    fits = [_descend(sizes, logs, weights, start, bound) for start in chosen]
    if 0 not in bound:
        best = min(fits, key=lambda each: each.squares)
        fits.append(_descend(sizes, logs, weights, best.params, {**bound, 0: -math.inf}))
    return min(fits, key=lambda each: each.squares)


def _list_starts(
    sizes: Float[np.ndarray, "n k"], logs: Float[np.ndarray, "n"]
) -> Iterator[Float[np.ndarray, "p"]]:
    """Yields parameters at which a fit starts: for some floors the line through the rest."""
    count = sizes.shape[1]
    for share in _SHARES:
        floor = logs.min() + math.log(share)
        rest = np.log(np.exp(logs) - math.exp(floor))
        if count == 1:
            slope, level = np.polyfit(sizes[:, 0], rest, 1)
            yield np.array([floor, level, math.log(max(-slope, 1e-3))])
            continue
        level = rest[np.argmin(sizes.sum(axis=1))] - math.log(count)
        for exponents in _EXPONENTS:
            yield np.array([floor, *[level] * count, *map(math.log, exponents)])


def _descend(
    sizes: Float[np.ndarray, "n k"],
    logs: Float[np.ndarray, "n"],
    weights: Float[np.ndarray, "n"],
    start: Float[np.ndarray, "p"],
    bound: Mapping[int, float],
) -> _Fit:
    """Minimises the weighted squares from one start, by Levenberg and Marquardt (MINPACK)."""
    full = np.maximum(start, _NONE)
    for index, value in bound.items():
        full[index] = max(value, -1e300)
    free = [index for index in range(len(full)) if index not in bound]
    places = np.eye(len(full))[free]  # puts free parameters at their places
    fixed = np.where(places.any(axis=0), 0.0, full)
    with np.errstate(over="ignore", invalid="ignore"):
        params, _, info, _, _ = optimize.leastsq(
            lambda own: (
                weights
                * (np.logaddexp.reduce(_list_parts(fixed + own @ places, sizes), axis=1) - logs)
            ),
            full[free],
            Dfun=lambda own: (
                weights[:, None] * _differentiate(fixed + own @ places, sizes)[:, free]
            ),
            full_output=True,
            ftol=1e-10,
            xtol=1e-10,
        )
    return _Fit(fixed + params @ places, float((info["fvec"] ** 2).sum()))


def _find_edge(exceed: Callable[[float], float], middle: float, step: float) -> float:
    """Returns where `exceed` becomes positive on one side of the middle; infinite if nowhere."""
    inside, outside = middle, middle + step
    if exceed(middle) > 0:
        return middle
    for _ in range(25):
        if exceed(outside) > 0:
            return float(optimize.brentq(exceed, inside, outside, rtol=1e-6))
        inside, step = outside, 2 * step
        outside = outside + step
    return math.copysign(math.inf, step)
