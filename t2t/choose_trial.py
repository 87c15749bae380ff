"""Chooses the best of several runs by one half of the sentences on which they were evaluated.

    python -m t2t.choose_trial --setting=training.learning_rate --own=0.001 --output=choice \
        --trials=0.0005=runs/slow --trials=0.001=runs/usual --trials=0.002=runs/fast

The other half is for comparing what was chosen, so that choosing is no advantage (t2t.sweep does so
for rows that are tuned). It writes OUTPUT/choice.json, and OUTPUT/flags.txt for --flagfile of
t2t.train.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from t2t.config.field_types import WRITTEN
from t2t.config.requests import Flag, Measure, Plugins, RunsByName
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceRequest(Plugins):
    """Runs that differ in a setting, and how they are judged."""

    setting: str  # the field of the config in which they differ
    # each run, or the file of its evaluation, by its value of the field, a number; a run that was
    # not evaluated counts as failed
    trials: Annotated[RunsByName, Flag(is_repeated=True)]
    own: float  # the value without trials; of equal scores the one wins whose value is nearest
    measure: Measure | None = None  # default: bleu, or the one that fits the text
    # choose by the log-probability of the references, which resolves smaller differences
    by_loss: bool = False
    output: Annotated[Path, WRITTEN]  # a folder

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        if self.by_loss and self.measure:
            yield f"--by_loss chooses by no measure; leave out --measure={self.measure}"


def main(request: ChoiceRequest) -> None:
    """Chooses, and prints the curve."""
    from t2t.api.choose_trial import choose
    from t2t.config.variants import import_plugins

    import_plugins(request.plugins)  # that register measures
    print(
        choose(
            request.setting,
            request.trials,
            request.own,
            request.measure,
            request.output,
            by_loss=request.by_loss,
        )
    )


if __name__ == "__main__":
    command_line.run(main)
