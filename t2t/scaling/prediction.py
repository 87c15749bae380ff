"""Predicts the loss of a size that was never trained, from the rungs of a ladder."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from t2t.evaluation.plots import LawCurve
from t2t.scaling.ladder import Ladder, Rung
from t2t.scaling.law import (
    Backtest,
    Crossing,
    Forecast,
    LawError,
    LossLaw,
    backtest,
    find_crossing,
    fit_law,
    subtract,
)

FACTOR = 4.0  # the target's FLOPs, in those of the largest rung, if none is given
_GRID = 25  # points of a curve


class Target(NamedTuple):
    """The size whose loss is predicted; values that are not given are None."""

    flops: float | None = None
    parameters: float | None = None
    tokens: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The sizes that are given."""
        return tuple(name for name, value in self._asdict().items() if value is not None)

    @property
    def values(self) -> list[float]:
        """Their values."""
        return [float(getattr(self, name)) for name in self.names]

    def describe(self) -> str:
        """Describes the size, such as "4.05e+13 training FLOPs"."""
        shown = {
            "flops": "{:.3g} training FLOPs",
            "parameters": "{:,.0f} parameters",
            "tokens": "{:.3g} target tokens",
        }
        parts = (shown[name].format(getattr(self, name)) for name in self.names)
        return " and ".join(parts)


class HeldOut(NamedTuple):
    """A rung to which no law was fitted, with its prediction."""

    rung: Rung
    forecast: Forecast  # of the mean of its runs


@dataclasses.dataclass(frozen=True)
class FamilyForecast:
    """The law of a family, what it would have predicted, and what it predicts."""

    name: str
    rungs: Sequence[Rung]
    law: LossLaw
    tested: Sequence[Backtest]
    forecast: Forecast  # at the target
    held_out: Sequence[HeldOut]
    factor: float  # of the target to the largest rung, in FLOPs or what stands for them


class FamilyDifference(NamedTuple):
    """A family against the first one; negative differences favour the second."""

    first: str
    second: str
    forecast: Forecast  # second minus first at the target
    at_rungs: Mapping[str, Forecast]  # second minus first at rungs that both have, by label
    crossing: Crossing | None  # None: the law has two sizes


@dataclasses.dataclass(frozen=True)
class LadderForecast:
    """The predictions of all families at one size."""

    ladder: Ladder
    target: Target
    seeds: int  # whose mean is predicted
    families: Mapping[str, FamilyForecast]
    differences: Sequence[FamilyDifference]

    @property
    def size_name(self) -> str:
        """The name of the size against which losses are drawn."""
        names = {"flops": "training FLOPs", "parameters": "parameters"}
        if len(self.target.names) > 1:
            return "parameters x target tokens"
        return names[self.target.names[0]]

    @property
    def loss_name(self) -> str:
        """The name and unit of the loss."""
        return f"loss, nats per {self.ladder.token}"

    def list_curves(self) -> dict[str, LawCurve]:
        """Returns points, law and band of each family, for `plots.draw_laws`."""
        found = {}
        for name, family in self.families.items():
            start = family.rungs[0].size.pick(self.target.names)
            path = np.geomspace(start, self.target.values, _GRID)
            forecasts = [family.law.predict(size, self.seeds) for size in path.tolist()]
            found[name] = LawCurve(
                points=[(x, y) for rung in family.rungs for x, y in self._list_points(rung)],
                held_out=[
                    (x, y) for each in family.held_out for x, y in self._list_points(each.rung)
                ],
                sizes=np.prod(path, axis=1).tolist(),
                losses=[each.loss for each in forecasts],
                band=[each.interval for each in forecasts],
            )
        return found

    def _list_points(self, rung: Rung) -> list[tuple[float, float]]:
        size = math.prod(rung.size.pick(self.target.names))
        return [(size, loss) for loss in rung.losses.values()]


def predict(ladder: Ladder, target: Target, seeds: int = 1) -> LadderForecast:
    """Fits the law of each family, and predicts the mean loss of so many runs at the target.

    Without a target it is the FLOPs of the largest rung that is held out, or else `FACTOR` times
    those of the largest rung.

    Raises:
        LawError: as `fit_law`; the target lies below the smallest rung; or the rungs do not show
            what its sizes ask for.
    """
    target = target if target.names else _choose_target(ladder)
    if target.names not in (("flops",), ("parameters",), ("parameters", "tokens")):
        raise LawError(
            f"the target is {' and '.join(target.names)}; give --flops, --parameters, or "
            "--parameters with --tokens"
        )
    found = {name: _forecast(ladder, name, target, seeds) for name in ladder.families}
    first, *others = found.values()
    return LadderForecast(
        ladder, target, seeds, found, [_compare(first, other, target) for other in others]
    )


def _choose_target(ladder: Ladder) -> Target:
    held_out = [rung.size.flops for own in ladder.held_out.values() for rung in own]
    largest = max(own[-1].size.flops for own in ladder.families.values())
    return Target(flops=max(held_out) if held_out else FACTOR * largest)


def _forecast(ladder: Ladder, name: str, target: Target, seeds: int) -> FamilyForecast:
    rungs, names = ladder.families[name], target.names
    _check_sizes(ladder, name, target)
    runs = ladder.collect(name, names)
    try:
        law = fit_law(runs)
    except LawError as error:
        raise LawError(f"{ladder.folder}, {name}: {error}") from None
    small, large = (rungs[end].size.pick(names) for end in (0, -1))
    if any(own < least for own, least in zip(target.values, small, strict=True)):
        raise LawError(
            f"the target, {target.describe()}, is below the smallest rung of {name}, "
            f"{Target(**dict(zip(names, small, strict=True))).describe()}; a law does not hold "
            "there, so name a larger one"
        )
    held_out = [
        HeldOut(rung, law.predict(rung.size.pick(names), len(rung.losses)))
        for rung in ladder.held_out.get(name, ())
    ]
    return FamilyForecast(
        name,
        rungs,
        law,
        backtest(runs),
        law.predict(target.values, seeds),
        held_out,
        math.prod(target.values) / math.prod(large),
    )


def _check_sizes(ladder: Ladder, name: str, target: Target) -> None:
    """Raises `LawError` if the rungs cannot tell the target's sizes apart, or have more of them."""
    has_one_rule = ladder.has_one_rule(name)
    if has_one_rule and "tokens" in target.names:
        raise LawError(
            f"{name}: the tokens of its rungs follow from their parameters, so a law cannot tell "
            "the two apart; give --parameters alone, with tokens by that rule, or --flops; or "
            "train rungs with several amounts of text (multiples of t2t.scaling.rungs)"
        )
    if not has_one_rule and "tokens" not in target.names:
        raise LawError(
            f"{name}: its rungs have several amounts of text for one size, so a prediction needs "
            "both: give --parameters and --tokens"
        )


def _compare(first: FamilyForecast, second: FamilyForecast, target: Target) -> FamilyDifference:
    own = {rung.label: number for number, rung in enumerate(first.rungs)}
    at_rungs = {
        rung.label: subtract(
            first.law.estimate_mean(own[rung.label]), second.law.estimate_mean(number)
        )
        for number, rung in enumerate(second.rungs)
        if rung.label in own
    }
    crossing = None
    if len(target.names) == 1:
        low = max(each.law.runs.sizes.min() for each in (first, second))
        crossing = find_crossing(first.law, second.law, float(low), target.values[0])
    return FamilyDifference(
        first.name, second.name, subtract(first.forecast, second.forecast), at_rungs, crossing
    )
