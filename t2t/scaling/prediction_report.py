"""The report of a prediction: a sentence, tables of rungs, laws and predictions, and remarks."""

import math
from collections.abc import Iterator
from typing import Any

from t2t.evaluation.measure import Interval
from t2t.evaluation.number_format import format_p_value
from t2t.runtime.text_tables import Table, list_items, wrap_text
from t2t.scaling.ladder import Rung
from t2t.scaling.law import Crossing, Forecast, LossLaw, count_params
from t2t.scaling.prediction import FamilyDifference, FamilyForecast, LadderForecast

_FAR = 10.0  # times the largest rung: beyond it a prediction is said to be far
_SYMBOLS = {
    "flops": ("C", "training FLOPs"), "parameters": ("N", "parameters"),
    "tokens": ("D", "target tokens"),
}  # fmt: skip
_NOTE = (
    "Parameters: trained ones, tables included, tied tables once. Tokens (of the target) and "
    "FLOPs: of the whole training by formula, with full batches."
)


def describe(prediction: LadderForecast) -> str:
    """Describes what is predicted, with its interval, and what that covers, in one sentence."""
    unit = f"nats per {prediction.ladder.token}"
    first = next(iter(prediction.families.values()))
    runs = "one run" if prediction.seeds == 1 else f"the mean of {prediction.seeds} runs"
    parts = []
    for family in prediction.families.values():
        shown = f"{format_loss(family.forecast.loss)} {format_range(family.forecast.interval)}"
        parts.append(f"{shown} for {family.name}" if len(prediction.families) > 1 else shown)
    factor = f"{first.factor:.3g} times the largest rung"
    if len({f"{each.factor:.3g}" for each in prediction.families.values()}) > 1:
        factor += f" of {first.name}"
    doubted = [name for name, each in prediction.families.items() if each.law.is_misfit]
    doubt = f"; the rungs of {' and '.join(doubted)} contradict this law" if doubted else ""
    return (
        f"With {prediction.target.describe()}, {factor}, the loss of {runs} is predicted to be "
        f"{' and '.join(parts)} {unit}; the 95% interval covers the seeds of the rungs and of what "
        "is predicted, and how far rungs lie from the law, but no other sentences, and no law that "
        f"changes beyond the largest rung{doubt}."
    )


def list_remarks(prediction: LadderForecast) -> list[str]:
    """Returns what a reader has to know before the numbers are used."""
    found = []
    for name, family in prediction.families.items():
        found += [f"{name}: {remark}" for remark in _list_remarks(family)]
        if name in prediction.ladder.of_one_rate:
            found.append(
                f"{name}: its rungs have one rate, and nothing adapts it to their widths (as "
                "model.parametrization=mup does). If it is too high for a wider one, that comes "
                "out worse than predicted."
            )
    for each in prediction.differences:
        found.append(_describe_difference(each, prediction))
    return found


def _list_remarks(family: FamilyForecast) -> Iterator[str]:
    law, spare = family.law, len(family.rungs) - count_params(family.law.num_terms)
    if law.is_misfit:
        yield (
            f"the law does not hold for these rungs (lack of fit, p "
            f"{format_p_value(law.misfit or 0.0, sign=True)}). Their means lie further from it "
            "than seeds explain: a bend, or a rate or length that does not suit a rung. The "
            f"interval is by the {law.freedom} degree{'s' * (law.freedom != 1)} of freedom that "
            "the rungs leave."
        )
    if spare == 0:
        yield (
            f"there are as many rungs as parameters of the law ({len(family.rungs)}), so none can "
            "contradict it; train another one."
        )
    if spare == 1 and not law.is_misfit:
        yield "with one rung more than the law has parameters, only a strong bend would show."
    missed = [each for each in family.tested if not each.forecast.covers(each.loss)]
    if missed and not law.is_misfit:
        names = ", ".join(family.rungs[each.rung].name for each in missed)
        yield f"the smaller rungs would not have predicted {names}; see the table of rungs."
    if not law.has_floor:
        high = law.floor_interval[1]
        yield (
            f"the floor E is not identified: any from 0 to {format_loss(high)} fits. The "
            "prediction covers them all."
        )
    if family.factor > _FAR:
        yield (
            f"the target is {family.factor:.3g} times the largest rung; nothing here shows that "
            f"the law holds so far beyond it."
        )
    if family.factor < 1 and not family.held_out:
        yield "the target is smaller than the largest rung."
    for each in family.held_out:
        where = "inside" if each.forecast.covers(each.rung.loss) else "outside"
        yield (
            f"{each.rung.name}, held out, came out at {format_loss(each.rung.loss)}, {where} its "
            f"interval {format_range(each.forecast.interval)}."
        )


def _describe_difference(each: FamilyDifference, prediction: LadderForecast) -> str:
    low, high = each.forecast.interval
    verdict = "not distinguishable"
    if low > 0 or high < 0:
        verdict = f"{each.second} is {'worse' if low > 0 else 'better'}"
    text = (
        f"{each.second} minus {each.first} at the target: {_format_difference(each.forecast)}, "
        f"{verdict}."
    )
    if each.crossing:
        text += f" {_describe_crossing(each.crossing, prediction.size_name)}"
    return text


def _describe_crossing(crossing: Crossing, size: str) -> str:
    if crossing.interval:
        low, high = crossing.interval
        return (
            f"Their laws cross at {crossing.value:.3g} {size}, 95% interval {low:.3g} to "
            f"{high:.3g}."
        )
    if crossing.value:
        return (
            f"Their laws cross at {crossing.value:.3g} {size} by the fits, but it cannot be said "
            "where: at one end of the range neither is known to be better."
        )
    return "Their laws do not cross between the smallest rung and the target, by the fits."


def make_rung_table(prediction: LadderForecast) -> Table:
    """Makes the table of the rungs, with the prediction of each from the smaller ones."""
    rows = []
    for family in prediction.families.values():
        tested = {each.rung: each for each in family.tested}
        for number, rung in enumerate(family.rungs):
            shown = tested.get(number)
            rows.append(_make_row(rung, shown.forecast if shown else None))
        rows += [_make_row(each.rung, each.forecast, " (held out)") for each in family.held_out]
    header = [
        "rung", "parameters", "tokens", "FLOPs", "seeds", "loss", "sd of seeds",
        "from smaller rungs", "core-minutes",
    ]  # fmt: skip
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return Table(header, rows, "lrrrrrrlr")


def _make_row(rung: Rung, forecast: Forecast | None, end: str = "") -> list[str]:
    losses = [*rung.losses.values()]
    spread = ""
    if len(losses) > 1:
        mean = math.fsum(losses) / len(losses)
        spread = f"{math.sqrt(sum((x - mean) ** 2 for x in losses) / (len(losses) - 1)):.2g}"
    shown = ""
    if forecast:
        miss = "" if forecast.covers(rung.loss) else ", missed"
        shown = f"{format_loss(forecast.loss)} {format_range(forecast.interval)}{miss}"
    return [
        f"{rung.name}{end}",
        f"{rung.size.parameters / 1e6:.3g}M",
        f"{rung.size.tokens:.3g}",
        f"{rung.size.flops:.3g}",
        str(len(losses)),
        format_loss(rung.loss),
        spread,
        shown,
        "" if rung.minutes is None else f"{rung.minutes:.1f}",
    ]


def make_law_table(prediction: LadderForecast) -> Table:
    """Makes the table of the laws: parameters with their intervals, and how they fit."""
    rows = []
    for name, family in prediction.families.items():
        law = family.law
        misfit = "cannot be tested" if law.misfit is None else format_p_value(law.misfit)
        cells = [name, *_format_parameters(law), f"{law.noise_of_seeds:.2%}", misfit]
        rows.append(cells)
    names = ["A", "B"][: len(prediction.target.names)]
    header = ["law", "E", *names, *map(str.lower, names), "noise of a seed", "lack of fit, p"]
    return Table(header, rows, "l" * len(header))


def _format_parameters(law: LossLaw) -> list[str]:
    floor = f"{format_loss(law.floor)} {format_range(law.floor_interval)}"
    if not law.has_floor:
        floor = f"not identified: 0 to {format_loss(law.floor_interval[1])}"
    pairs = [
        *zip(law.amplitudes, law.amplitude_intervals, strict=True),
        *zip(law.exponents, law.exponent_intervals, strict=True),
    ]
    return [floor, *(f"{value:.3g} {_format_edges(edges)}" for value, edges in pairs)]


def describe_law(prediction: LadderForecast) -> str:
    """Writes the law that is fitted, and where its parts are counted."""
    symbols = [_SYMBOLS[name][0] for name in prediction.target.names]
    exponents = zip(symbols, "AB", "ab", strict=False)
    terms = [f"{big} ({symbol} / {symbol}_0)^-{small}" for symbol, big, small in exponents]
    sizes = " and ".join(" ".join(_SYMBOLS[name]) for name in prediction.target.names)
    text = (
        f"L = E + {' + '.join(terms)}, with {sizes}, and {' and '.join(f'{s}_0' for s in symbols)} "
        "of the smallest rung. Least squares of log L over all runs; intervals by profile (95%)."
    )
    if len(symbols) == 1:
        text += " Tokens follow from parameters in these rungs, so one size is all they identify."
    return text


def make_difference_table(prediction: LadderForecast) -> Table:
    """Makes the table of the differences at each rung; empty for one family."""
    labels = dict.fromkeys(label for each in prediction.differences for label in each.at_rungs)
    header = ["rung", *(f"{each.second} minus {each.first}" for each in prediction.differences)]
    rows = [
        [
            label,
            *(
                _format_difference(each.at_rungs[label]) if label in each.at_rungs else ""
                for each in prediction.differences
            ),
        ]
        for label in labels
    ]
    return Table(header, rows if prediction.differences else [])


def write_text(
    prediction: LadderForecast, *, markdown: bool, title: str = "", figure: str = ""
) -> str:
    """Writes the report for a terminal, or in Markdown with a title and the name of a figure."""
    remarks, scored = list_remarks(prediction), prediction.ladder.text
    tables = [
        make_rung_table(prediction), make_law_table(prediction), make_difference_table(prediction),
    ]  # fmt: skip
    notes = [
        f"Loss: nats per {prediction.ladder.token}, without smoothing, of {scored}.",
        _NOTE,
        describe_law(prediction),
    ]
    if prediction.differences:
        notes.append(
            "Differences: of independent predictions (MOVER), each with its own 95% interval; "
            "several are not corrected."
        )
    opening = describe(prediction)
    if not markdown:
        parts = [wrap_text(opening), list_items(remarks) if remarks else ""]
        parts += [table.format() for table in tables if table.rows]
        return "\n\n".join([*filter(None, parts), list_items(notes)])
    parts = [f"# {title}", opening, "\n".join(f"- {remark}" for remark in remarks)]
    parts += [f"![Loss against {prediction.size_name}]({figure})"]
    parts += [table.format_markdown() for table in tables if table.rows]
    parts += ["\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def record(prediction: LadderForecast) -> dict[str, Any]:
    """Returns the content of prediction.json."""
    return {
        "opening": describe(prediction),
        "remarks": list_remarks(prediction),
        "loss": f"nats per {prediction.ladder.token}",
        "scored": prediction.ladder.text,
        "target": {name: getattr(prediction.target, name) for name in prediction.target.names},
        "seeds": prediction.seeds,
        "families": {name: _record(each) for name, each in prediction.families.items()},
        "differences": [
            {
                "first": each.first,
                "second": each.second,
                **_record_forecast(each.forecast),
                "at_rungs": {label: _record_forecast(one) for label, one in each.at_rungs.items()},
                "crossing": each.crossing and each.crossing._asdict(),
            }
            for each in prediction.differences
        ],
    }


def _record(family: FamilyForecast) -> dict[str, Any]:
    law = family.law
    return {
        **_record_forecast(family.forecast),
        "factor": family.factor,
        "law": {
            "floor": law.floor if law.has_floor else None,  # None: not identified
            "floor_interval": _list_edges(law.floor_interval),
            "amplitudes": law.amplitudes,
            "amplitude_intervals": [*map(_list_edges, law.amplitude_intervals)],
            "exponents": law.exponents,
            "exponent_intervals": [*map(_list_edges, law.exponent_intervals)],
            "noise_of_seeds": law.noise_of_seeds,
            "misfit": law.misfit,
        },
        "rungs": [_record_rung(rung) for rung in family.rungs],
        "from_smaller_rungs": [
            {
                "rung": family.rungs[each.rung].name,
                **_record_forecast(each.forecast),
                "came_out": each.loss,
                "p_value": each.p_value,
            }
            for each in family.tested
        ],
        "held_out": [
            {
                **_record_rung(each.rung),
                "predicted": _record_forecast(each.forecast),
                "is_inside": each.forecast.covers(each.rung.loss),
            }
            for each in family.held_out
        ],
    }


def _record_rung(rung: Rung) -> dict[str, Any]:
    return {
        "rung": rung.name,
        **rung.size._asdict(),
        "core_minutes": rung.minutes,
        "losses": {str(seed): loss for seed, loss in rung.losses.items()},
    }


def _record_forecast(forecast: Forecast) -> dict[str, Any]:
    return {"loss": forecast.loss, "interval": _list_edges(forecast.interval)}


def _list_edges(interval: Interval) -> list[float | None]:
    """JSON has no infinity: None is an edge that there is not."""
    return [edge if math.isfinite(edge) else None for edge in interval]


def format_loss(loss: float) -> str:
    """Formats a loss with four significant digits."""
    return f"{loss:#.4g}".rstrip(".")


def format_range(interval: Interval) -> str:
    """Formats the interval of a loss, like "[1.203, 1.310]"."""
    return f"[{', '.join(map(format_loss, interval))}]"


def _format_edges(interval: Interval) -> str:
    return f"[{', '.join(f'{edge:.3g}' for edge in interval)}]"


def _format_difference(forecast: Forecast) -> str:
    low, high = forecast.interval
    return f"{forecast.loss:+.4f} [{low:+.4f}, {high:+.4f}]"
