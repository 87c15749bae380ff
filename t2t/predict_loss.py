"""Predicts the loss of a size that was never trained, from a finished ladder of smaller ones.

    python -m t2t.sweep --sweep=configs/sweeps/ladder.py --config=configs/quickstart.py \
        --workdir=runs/ladder
    python -m t2t.predict_loss --ladder=runs/ladder --flops=4e13

A law is fitted to all runs at once, and its prediction has an interval that covers seeds and rungs.
It prints the rungs, the law, what each rung would have been predicted from the smaller ones, and
what speaks against the law, and writes prediction.md, prediction.json and prediction.svg.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

from t2t.config.field_types import WRITTEN, PositiveFloat, PositiveInt
from t2t.config.requests import Flag, Plugins
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionRequest(Plugins):
    """A ladder, and the size whose loss is predicted."""

    ladder: Path  # the folder of a finished sweep, such as one of configs/sweeps/ladder.py
    # predict the loss of a training with so many FLOPs; default: those of the largest rung that is
    # held out, or else four times those of the largest rung
    flops: PositiveFloat | None = None
    parameters: PositiveFloat | None = None  # in place of FLOPs: of a model with so many parameters
    # the target tokens of its training; only if the rungs have several amounts of text
    tokens: Annotated[PositiveFloat | None, Flag(needs="parameters")] = None
    seeds: PositiveInt = 1  # predict the mean loss of so many runs
    # fit only these rows or families, such as rung,rnn; a family is all rows FAMILY-...
    only: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()  # fit no law to these rows, and compare them with its prediction
    # the folder for the report; default: prediction in that of the ladder
    output: Annotated[Path | None, WRITTEN] = None


def main(request: PredictionRequest) -> None:
    """Predicts, and prints the report."""
    from t2t.api.predict_loss import predict_loss

    of_plugins = [field.name for field in dataclasses.fields(Plugins)]
    given = {name: value for name, value in vars(request).items() if name not in of_plugins}
    print(predict_loss(**given))


if __name__ == "__main__":
    command_line.run(main)
