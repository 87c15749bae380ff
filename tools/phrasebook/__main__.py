"""Writes the phrasebook: `python -m tools.phrasebook`."""

import gzip
from pathlib import Path

from tools.phrasebook.generation import SIZES, generate
from tools.phrasebook.noun_alignments import find_links

OUTPUT = Path(__file__).parents[2] / "t2t" / "data" / "phrasebook.tsv.gz"


def make_rows(split: str, size: int) -> list[str]:
    """The first rows of a split; `t2t.data.phrasebook` describes the columns."""
    rows = []
    for pair in generate(split, size):
        links = " ".join(f"{source}-{target}" for source, target in sorted(find_links(*pair)))
        rows.append("\t".join((split, *pair, links)) + "\n")
    return rows


if __name__ == "__main__":
    rows = [row for split, size in SIZES.items() for row in make_rows(split, size)]
    # Without a time stamp, so that the same rows are the same bytes.
    OUTPUT.write_bytes(gzip.compress("".join(rows).encode(), mtime=0))
