"""Tests whether scores differ: `python -m t2t.compare RUN_A RUN_B ... [--measure=bleu]`.

Each operand is a system: the .json file of an evaluation, or a run directory, of which the newest
evaluation of --split is used (of --checkpoint, if given), or the one that --evaluation names. Runs
whose newest evaluations have another kind of checkpoint or another search are refused. Join the
seeds of one system by commas. Every system is compared with the first, on the saved hypotheses;
nothing is translated again. --verify checks saved evaluations instead, without their runs.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from t2t.config.requests import Flag, Measure
from t2t.config.variants import import_plugins
from t2t.evaluation.requests import MeasurePlugins, SavedChoice
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareRequest(SavedChoice, MeasurePlugins):
    """The systems that are compared, and by what."""

    systems: Annotated[tuple[str, ...], Flag(operands="RUN")]
    # the score to compare: NAMES, one that a plugin registers, or one that t2t.add_scores stored;
    # default: bleu, or bleu_lowercase with tokenizer.lowercase; chrf of text without spaces between
    # words that sacreBLEU cannot cut. Of runs on text alone perplexity, the default, or accuracy
    measure: Measure | None = None
    # compute every score of these evaluations from their texts, and refuse edited files
    verify: bool = False
    # a config field that each seed of a system may have of its own, such as data.train_src where
    # each seed read translations of its own teacher, or checkpoint, if the seeds stopped at
    # different steps; repeat the flag for more
    may_differ: Annotated[tuple[str, ...], Flag(is_repeated=True)] = ()
    plot: Path | None = None  # plot the scores by sentence length to this file: .svg, .png or .pdf
    # plot the differences by each measure to this file: .svg, .png or .pdf
    forest: Path | None = None

    def list_problems(self) -> Iterator[str]:
        """Yields the flags that --verify does not read."""
        yield from super().list_problems()
        names = "measure", "plot", "forest", "may_differ"
        if self.verify and (ignored := [name for name in names if getattr(self, name)]):
            yield f"--verify checks every score; leave out --{', --'.join(ignored)}"


def main(request: CompareRequest) -> None:
    """Prints the comparison, and the paths of the plots that were drawn."""
    from t2t.api.compare_runs import compare, verify

    import_plugins(request.plugins)  # for measures
    found = request.split, request.evaluation
    if request.verify:
        print(verify(request.systems, *found, request.checkpoint, request.task))
        return
    print(
        compare(
            request.systems, request.measure, *found, request.plot, request.may_differ,
            request.checkpoint, request.forest, request.task,
        )
    )  # fmt: skip
    for path in filter(None, (request.plot, request.forest)):
        print(path)


if __name__ == "__main__":
    command_line.run(main, alone="it only reads files")
