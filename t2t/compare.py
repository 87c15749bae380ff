"""Tests whether scores differ: `python -m t2t.compare RUN_A RUN_B ... [--measure=bleu]`.

Each operand is a system: the .json file of an evaluation, or a run directory, of which the newest
evaluation of --split is used (of --checkpoint, if given), or the one that --evaluation names. Runs
whose newest evaluations have another kind of checkpoint or another search are refused. Join the
seeds of one system by commas. Every system is compared with the first, on the saved hypotheses;
nothing is translated again. --verify checks saved evaluations instead, without their runs.
"""

from collections.abc import Sequence

from absl import flags

from t2t.config.fields import ConfigError
from t2t.config.measure_names import MEASURES
from t2t.config.variants import import_plugins
from t2t.runtime import command_line
from t2t.storage.paths import make_path


def main(operands: Sequence[str]) -> None:
    """Prints the comparison, and the path of the plot if one was drawn."""
    from t2t.api.compare_runs import compare, verify

    values = flags.FLAGS
    import_plugins(values.plugins)  # for measures
    if values.verify:
        ignored = [
            name for name in ("measure", "plot", "forest", "may_differ") if values[name].value
        ]
        if ignored:
            raise ConfigError(f"--verify checks every score; leave out --{', --'.join(ignored)}")
        print(verify(operands, values.split, values.evaluation, values.checkpoint))
        return
    plot, forest = (make_path(each) if each else None for each in (values.plot, values.forest))
    print(
        compare(
            operands, values.measure, values.split, values.evaluation, plot, values.may_differ,
            values.checkpoint, forest,
        )
    )  # fmt: skip
    for path in filter(None, (plot, forest)):
        print(path)


if __name__ == "__main__":
    flags.DEFINE_string(
        "measure",
        None,
        f"The score to compare: {', '.join(MEASURES)}, one that a plugin registers, or one that "
        "--segment_scores stored; default: bleu, or bleu_lowercase with tokenizer.lowercase. "
        "Of runs on text alone perplexity, the default, or accuracy.",
    )
    flags.DEFINE_bool(
        "verify",
        False,
        "Compute every score of these evaluations from their texts, and refuse edited files.",
    )
    flags.DEFINE_list("plugins", [], "Modules on your path that register measures.")
    flags.DEFINE_string("split", "test", "Use each run's newest evaluation of this split.")
    flags.DEFINE_string(
        "evaluation", "", "Use RUN/evaluations/NAME.json of each run instead of the newest."
    )
    flags.DEFINE_string(
        "checkpoint",
        "",
        "Use each run's newest evaluation of this checkpoint: best, last, a step, avg:5 or ema.",
    )
    flags.DEFINE_multi_string(
        "may_differ",
        [],
        "A config field that each seed of a system may have of its own, such as data.train_src "
        "where each seed read translations of its own teacher, or checkpoint, if the seeds stopped "
        "at different steps; repeat the flag for more.",
    )
    flags.DEFINE_string(
        "plot", "", "Plot the scores by sentence length to this file: .svg, .png or .pdf."
    )
    flags.DEFINE_string(
        "forest", "", "Plot the differences by each measure to this file: .svg, .png or .pdf."
    )
    command_line.run(main, operands="RUN", alone="it only reads files")
