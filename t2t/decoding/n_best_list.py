"""Lists of translations as text: a line each, with the number of the source line and the score."""

from collections.abc import Iterable, Iterator, Sequence

from t2t.config.fields import ConfigError
from t2t.decoding.translation import Translation


def format_lines(
    number: int, translations: Sequence[Translation], numbered: bool, scored: bool
) -> str:
    """Formats the translations of source line `number`: number, score, text and alignment."""

    def format_line(found: Translation) -> str:
        columns = [str(number)] * numbered + [f"{found.score:.4f}"] * scored + [found.text]
        columns += [] if found.alignment is None else [found.alignment]
        return "\t".join(columns) + "\n"

    return "".join(map(format_line, translations))


def order_by_number(entries: Iterable[tuple[int, float, str]]) -> list[int]:
    """Returns the places of a list's entries by source line, as in a list that is not joined.

    Lists of one source may have been concatenated.
    """
    numbers = [number for number, _, _ in entries]
    return sorted(range(len(numbers)), key=numbers.__getitem__)


def read_list(lines: Iterable[str], num_sources: int) -> Iterator[tuple[int, float, str]]:
    """Yields number, score and text of each line of a list with numbers and scores.

    Raises:
        ConfigError: a line has another form, or its number is not that of a source line.
    """
    for place, line in enumerate(lines, start=1):
        number, score, text = [*line.split("\t", 2), "", ""][:3]
        try:
            value = float(score)
        except ValueError:
            value = None
        if value is None or not number.isdecimal() or line.count("\t") != 2:
            raise ConfigError(
                f"--n_best_list, line {place}: {line[:40]!r} is not a number, a score and a text "
                "with tabs between; make the list with t2t.translate --n_best=N --scores, without "
                "--alignments"
            )
        if not 1 <= int(number) <= num_sources:
            raise ConfigError(
                f"--n_best_list, line {place}: there is no line {number} in --src, which has "
                f"{num_sources}; give the source of this list"
            )
        yield int(number), value, text
