"""Prints a run's config, history, progress and scores: `python -m t2t.show RUN ...`.

--plot=FILE draws a figure of all these runs by step. It reads only the run directories and uses no
device.
"""

import dataclasses
from typing import Annotated

from t2t.config.requests import Flag, Request, RunPaths
from t2t.runtime import command_line
from t2t.storage.paths import make_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowRequest(Request):
    """The runs, and the plot."""

    runs: Annotated[RunPaths, Flag(operands="RUN")]
    plot: str = ""  # plot --figure by step to this file: .svg, .png or .pdf
    # the figure of metrics.jsonl to plot, such as train/loss or validation/bleu
    figure: Annotated[str, Flag(needs="plot")] = "validation/loss"


def main(request: ShowRequest) -> None:
    """Prints a description of each run, and the path of the plot if one was drawn."""
    from t2t.api.run_summary import describe_run, plot_runs

    for number, run in enumerate(request.runs):
        print("\n" * bool(number) + describe_run(run))
    if request.plot:
        plot_runs(request.runs, request.figure, make_path(request.plot))
        print(f"\n{request.plot}")


if __name__ == "__main__":
    command_line.run(main, alone="it only reads files")
