"""Scores a run on a test set: `python -m t2t.evaluate --workdir=RUN --split=test`.

It reads the run directory and the raw text of the split. It writes the scores to
RUN/evaluations/SPLIT-CHECKPOINT-beam4-alpha0.6.json and, in the same folder, the hypotheses,
sources, references and the references' log-probabilities as .txt, one line per sentence. --watch
scores the checkpoints of a run while it trains. --average, --beam_sizes and --alphas score a run
with several averages, beam sizes or length penalties. --segment_scores translates nothing: it adds
the scores of another program to the newest evaluation. --hypotheses scores what another program
translated, without a run.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from t2t.config.field_types import InputPaths, NonNegativeFloat, NonNegativeInt
from t2t.config.fields import ConfigError
from t2t.config.requests import Counts, Flag, Hosts, Measure, Plugins, RunPaths
from t2t.config.variants import import_plugins
from t2t.evaluation.requests import EvaluationRequest, TextRequest
from t2t.runtime import command_line
from t2t.storage.paths import make_path

SELECTIONS = ("watch", "average", "beam_sizes", "alphas")  # fields that ask for several evaluations


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionRequest(EvaluationRequest, Hosts, Plugins):
    """An evaluation, or several, or the scores of another program."""

    # the run directory. Several, joined by commas, form an ensemble; so do several values of
    # --checkpoint. --hypotheses needs none
    workdirs: Annotated[RunPaths, Flag("workdir")] = dataclasses.field(default=(), kw_only=False)

    # NAME=FILE: add another program's scores of the hypotheses to their evaluation, one number a
    # line, or JSON lines with score, definition and higher_is_better; repeat for several
    segment_scores: Annotated[InputPaths, Flag(is_repeated=True)] = ()
    # score all checkpoints of the run, and new ones as they appear, until its last step
    watch: bool = False
    # with --watch: tell training to stop after this many checkpoints without a better score,
    # counted from the first one that translates (1 BLEU); 0: never
    patience: Annotated[NonNegativeInt, Flag(needs="watch")] = 0
    # with --watch: exit with status 124 after this many seconds without a new checkpoint; 0: never
    watch_timeout: Annotated[NonNegativeFloat, Flag(needs="watch")] = 0.0
    # a list such as 1,2,5,10: score the mean of the last n checkpoints each
    average: Counts = ()
    # a list such as 1,4: score with each of these beam sizes, and with each of --alphas if given
    beam_sizes: Counts = ()
    # a list such as 0.4,0.6,1: score with each of these exponents of the length penalty. One search
    # per beam size serves all of them, with the results of separate searches: alpha ranks the
    # finished hypotheses but does not affect which hypotheses are extended, and the search
    # continues until no alpha can find a better one. With beam size 1 there is one hypothesis, so
    # alpha changes nothing
    alphas: tuple[float, ...] = ()
    # the score by which --watch, --average, --beam_sizes and --alphas choose the best; default:
    # bleu, or bleu_lowercase with tokenizer.lowercase; chrf of languages without spaces between
    # words that sacreBLEU cannot cut. perplexity is that of the references
    measure: Measure | None = None

    @property
    def selections(self) -> list[str]:
        """The fields that ask for several evaluations."""
        return [name for name in SELECTIONS if getattr(self, name)]

    def choose_defaults(self) -> tuple[str, str]:
        """Returns the split and the checkpoint that are evaluated if none are named."""
        checkpoint = "last" if self.watch else "" if self.average or self.segment_scores else "best"
        return "validation" if self.selections else "test", checkpoint

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        given = self.selections
        if len(given) > 1 and set(given) != {"beam_sizes", "alphas"}:
            yield f"{' and '.join(f'--{name}' for name in given)}: give one of them"
        for name in ("output", "save_params"):
            if given and getattr(self, name):
                yield f"--{name} is for one evaluation, but --{given[0]} makes several"
        is_ensemble = self.workdirs[1:] or (not self.watch and "," in self.checkpoint)
        unheeded = self.segment_scores and self._list_unheeded()
        ignored = self.hypotheses and self._list_of_run()
        has_text = self.hypotheses or (self.segment_scores and self.output)
        for wrong, message in (
            (
                not (self.workdirs or has_text),
                "--workdir is missing; name a run directory, or score what another program "
                "translated by --hypotheses",
            ),
            (
                ignored,
                "--hypotheses scores what another program translated, without a run; leave out "
                f"--{', --'.join(ignored)}",
            ),
            (self.average and self.checkpoint, "--average chooses: leave out --checkpoint"),
            (self.measure and not given, "--measure is for a selection: leave it out"),
            (
                is_ensemble and given,
                f"an ensemble is one evaluation; leave out --{''.join(given[:1])}",
            ),
            (
                unheeded,
                "--segment_scores adds to a saved evaluation of one run: the newest of --split and "
                "--checkpoint, or the one that --output names; leave out "
                f"--{', --'.join(unheeded)}",
            ),
        ):
            if wrong:
                yield message

    def _list_unheeded(self) -> list[str]:
        """Returns the fields with a value that only a new evaluation heeds."""
        heeded = {"workdirs", "split", "checkpoint", "output"}
        new = [each for each in dataclasses.fields(EvaluationRequest) if each.name not in heeded]
        found = [each.name for each in new if getattr(self, each.name) not in (each.default, {})]
        found += ["workdir of further runs"] if self.workdirs[1:] else []
        given = [*found, *self.selections]
        names = {"decoding": [*self.decoding]}
        return [each for name in given for each in names.get(name, [name])]

    def _list_of_run(self) -> list[str]:
        """Returns the fields with a value that only an evaluation of a run heeds."""
        kinds = TextRequest, Hosts, Plugins
        free = {each.name for kind in kinds for each in dataclasses.fields(kind)}
        given = [
            each.name
            for each in dataclasses.fields(self)
            if each.name not in free and getattr(self, each.name) not in (each.default, {})
        ]
        names = {"decoding": [*self.decoding], "workdirs": ["workdir"]}
        return [part for name in given for part in names.get(name, [name])]

    def read_counts(self) -> list[int]:
        """Returns the number of checkpoints of each mean that --watch scores: "last" gives 1."""
        counts = set()
        for which in self.checkpoint.split(","):
            match which.split(":"):
                case ["last"]:
                    counts.add(1)
                case ["avg", count] if count.isdecimal() and int(count) > 0:
                    counts.add(int(count))
                case _:
                    raise ConfigError(
                        f"--checkpoint={self.checkpoint} cannot be used with --watch; use last, "
                        "avg:5, or several joined by commas"
                    )
        return sorted(counts)


def main(request: SelectionRequest) -> int:
    """Evaluates as requested and prints a summary; returns the exit status."""
    import jax

    from t2t.api.evaluate_run import describe, evaluate, scan_averages, scan_search, watch
    from t2t.evaluation.outputs import evaluate_output
    from t2t.runtime.distributed import is_first, join
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()
    join(**request.hosts)
    for name in (*SELECTIONS, "save_params"):
        if getattr(request, name) and jax.process_count() > 1:
            raise ConfigError(f"--{name} works in one process; start only one")
    import_plugins(request.plugins)  # for measures; those of the run are named by its config
    if request.segment_scores:
        from t2t.evaluation.segment_scores import add_segment_scores

        place = make_path(request.output) if request.output else request.workdir
        chosen = request.split, request.checkpoint
        print(add_segment_scores(place, *chosen, request.segment_scores))
    elif request.watch:
        limits = request.patience, request.watch_timeout
        finished, table = watch(request, request.read_counts(), request.measure, *limits)
        print(table, end="\n" * bool(table))
        return 0 if finished else command_line.TIMED_OUT
    elif request.average:
        print(scan_averages(request, request.average, request.measure))
    elif request.selections:
        print(scan_search(request, request.beam_sizes, request.alphas, request.measure))
    else:
        evaluation = evaluate_output(request) if request.hypotheses else evaluate(request)
        if is_first():
            print(describe(evaluation))
    return 0


if __name__ == "__main__":
    command_line.run(main)
