"""Adds scores of another program, such as COMET, to a saved evaluation.

    python -m t2t.add_scores RUN --split=test --segment_scores=comet=comet.txt

RUN is a run directory, or the .json file of an evaluation. Nothing is translated. The score of the
corpus is the mean; it gets an interval, and `t2t.compare --measure=comet` gives verdicts.
"""

import dataclasses
from typing import Annotated

from t2t.config.field_types import InputPaths, Rule
from t2t.config.requests import Flag
from t2t.evaluation.requests import SavedChoice
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddScoresRequest(SavedChoice):
    """The evaluation, and the scores of its sentences."""

    places: Annotated[
        tuple[str, ...],
        Flag(operands="RUN"),
        Rule("be one run or evaluation", lambda places: len(places) == 1 and places[0]),
    ]
    # NAME=FILE: the scores of the hypotheses, one number a line, or JSON lines with score,
    # definition and higher_is_better; repeat for several
    segment_scores: Annotated[InputPaths, Flag(is_repeated=True)]


def main(request: AddScoresRequest) -> None:
    """Adds the scores, and prints all scores of the evaluation."""
    from t2t.evaluation.segment_scores import add_segment_scores
    from t2t.storage.paths import make_path

    chosen = request.split, request.evaluation, request.checkpoint, request.task
    [place] = request.places
    print(add_segment_scores(make_path(place), *chosen, request.segment_scores))


if __name__ == "__main__":
    command_line.run(main, alone="it only reads and writes files")
