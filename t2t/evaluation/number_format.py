"""Formats scores, differences, p-values and perplexities: a number has one precision everywhere.

- A score has two decimals, or four if it is below 1, as scores from 0 to 1 are. So has a
  perplexity. Its interval has the decimals of the score.
- A difference has at least the decimals of the larger score, and two significant digits of half the
  width of its interval. The interval has the decimals of the difference.
- A p-value has three significant digits, a standard error two.
"""

import math
from collections.abc import Sequence

_MOST_DECIMALS = 6
_LARGE = 1e6  # from here on numbers have an exponent
_SMALL = 1e-9  # half the width of an interval that only rounding makes


def format_score(value: float) -> str:
    """Formats a score or a perplexity, such as "38.10" or "0.8417"."""
    return f"{value:.3g}" if abs(value) >= _LARGE else f"{value:.{_count_decimals(value)}f}"


def format_interval(interval: Sequence[float] | None, value: float) -> str:
    """Formats the interval of a score, like "[36.60, 39.71]"; empty for None."""
    decimals = _count_decimals(value)
    return f"[{', '.join(f'{edge:.{decimals}f}' for edge in interval)}]" if interval else ""


def format_difference(
    values: tuple[float, float], interval: Sequence[float] | None
) -> tuple[str, str]:
    """Formats the second value minus the first, and its interval, like ("-1.76", "[-3.97, +0.46]").

    The interval is empty if there is none.
    """
    decimals = _count_decimals(*values)
    half = (interval[1] - interval[0]) / 2 if interval else 0.0
    if _SMALL < half < math.inf:
        decimals = max(decimals, min(1 - math.floor(math.log10(half)), _MOST_DECIMALS))
    first, second = values
    difference, *edges = (f"{x:+.{decimals}f}" for x in (second - first, *(interval or ())))
    return difference, f"[{', '.join(edges)}]" if edges else ""


def format_p_value(p_value: float, sign: bool = False) -> str:
    """Formats a p-value, like "0.0922" or "< 1e-6"; with `sign` like "= 0.0922" or "< 1e-6"."""
    if p_value < 1e-6:
        return "< 1e-6"
    return f"{'= ' * sign}{p_value:.3g}"


def format_error(error: float) -> str:
    """Formats a standard error, such as "0.81"."""
    return f"{error:.2g}"


def _count_decimals(*values: float) -> int:
    largest = max(map(abs, values))
    return 4 if 0 < largest < 1 else 2
