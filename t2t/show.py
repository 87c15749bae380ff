"""Prints a run's config, history, progress and scores: `python -m t2t.show RUN ...`.

--plot=FILE draws a figure of all these runs by step. It reads only the run directories and uses no
device.
"""

from collections.abc import Sequence

from absl import flags

from t2t.config.fields import ConfigError
from t2t.runtime import command_line
from t2t.storage.paths import make_path, make_run_path


def main(operands: Sequence[str]) -> None:
    """Prints a description of each run, and the path of the plot if one was drawn."""
    from t2t.api.run_summary import describe_run, plot_runs

    values = flags.FLAGS
    if values["figure"].present and not values.plot:
        raise ConfigError("--figure is for --plot; add it, or leave this out")
    runs = [make_run_path(operand) for operand in operands]
    for number, run in enumerate(runs):
        print("\n" * bool(number) + describe_run(run))
    if values.plot:
        plot_runs(runs, values.figure, make_path(values.plot))
        print(f"\n{values.plot}")


if __name__ == "__main__":
    flags.DEFINE_string("plot", "", "Plot --figure by step to this file: .svg, .png or .pdf.")
    flags.DEFINE_string(
        "figure",
        "validation/loss",
        "The figure of metrics.jsonl to plot, such as train/loss or validation/bleu.",
    )
    command_line.run(main, operands="RUN", alone="it only reads files")
