"""Writes the text of a recipe as files: `python -m t2t.write_pairs --config=RECIPE --output=DIR`.

DIR/train.src and DIR/train.tgt have the training pairs that the recipe's corpora and filters give,
line by line. DIR/origin.tsv has the corpus and the line that each pair is from. Other splits become
DIR/validation.src, DIR/test.tgt and so on. So t2t.translate and t2t.score read any corpus.

--scores=FORWARD,BACKWARD --keep=0.8 keeps the best pairs by dual conditional cross-entropy
(Junczys-Dowmunt 2018). The files are what t2t.score --tokens printed of these pairs: by a model of
this direction, and by one of the other direction with both sides exchanged.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from t2t.config.config_flag import read_config
from t2t.config.field_types import InputPaths, PositiveInt, Rule
from t2t.config.requests import Request
from t2t.runtime import command_line
from t2t.storage.paths import make_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairsRequest(Request):
    """The pairs of a recipe, and which of them are written."""

    config: str
    output: Path  # a new folder for the text
    # two files of scores, by models of both directions, by which the best pairs are kept
    scores: InputPaths = ()
    # the share of pairs that is kept; the score of each is in origin.tsv
    keep: Annotated[float, Rule("lie in (0, 1]", lambda value: 0 < value <= 1)] = 1.0
    first: PositiveInt | None = None  # read only so many pairs of each corpus
    # a word in front of each source, such as <bt> for back-translations (Caswell et al. 2019); to
    # the vocabulary it is text
    src_tag: str = ""

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        if len(self.scores) not in (0, 2):
            yield f"--scores={','.join(self.scores)}: name two files, of both directions"
        if self.keep < 1 and not self.scores:
            yield f"--keep={self.keep:g} keeps the pairs with the best --scores; add them"
        if {*"\r\n"} & {*self.src_tag}:
            yield f"--src_tag={self.src_tag!r} has a line break; write one line"


def main(request: PairsRequest) -> None:
    """Writes the pairs, and prints their number."""
    from t2t.api.write_pairs import write_pairs

    scores = [make_path(each) for each in request.scores]
    kept, count = write_pairs(
        read_config(), request.output, scores=scores, keep=request.keep, first=request.first,
        src_tag=request.src_tag,
    )  # fmt: skip
    print(f"{kept:,} of {count:,} pairs in {request.output}")


if __name__ == "__main__":
    command_line.run(main)
