"""Finds a run's best checkpoint, average, beam size and length penalty on the validation split.

    python -m t2t.tune_decoding --workdir=RUN --checkpoint=last,avg:2,avg:5,avg:10
    python -m t2t.tune_decoding --workdir=RUN --beam_sizes=1,4 --alphas=0,0.6,1

It scores each checkpoint with each beam size and alpha. Every score is an evaluation in
RUN/evaluations/, as t2t.evaluate writes it, and is used again as long as it is valid.
"""

import dataclasses
from typing import Annotated, ClassVar

from t2t.config.field_types import Rule
from t2t.config.requests import Counts, Flag
from t2t.config.variants import import_plugins
from t2t.evaluation.requests import SelectionRequest
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningRequest(SelectionRequest):
    """The run, and the settings to choose among."""

    searched: ClassVar = tuple(
        name for name in SelectionRequest.searched if name not in ("beam_size", "alpha")
    )

    # a list such as best or last,avg:2,avg:5: score each of these checkpoints and averages
    checkpoints: Annotated[tuple[str, ...], Flag("checkpoint"), Rule("name one or more", bool)] = (
        "best",
    )
    beam_sizes: Counts = ()  # a list such as 1,4; default: the config's
    # a list such as 0.4,0.6,1 of exponents of the length penalty; default: the config's. One search
    # per beam size gives the results of a search for each alpha: alpha ranks the finished
    # hypotheses but does not affect which hypotheses are extended, and the search continues until
    # no alpha can find a better one. With beam size 1 there is one hypothesis, so alpha changes
    # nothing
    alphas: tuple[float, ...] = ()


def main(request: TuningRequest) -> None:
    """Scores the settings, and prints the table and the best."""
    from t2t.api.tune_decoding import tune
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()
    import_plugins(request.plugins)  # that register measures
    print(tune(request, request.checkpoints, request.beam_sizes, request.alphas))


if __name__ == "__main__":
    command_line.run(main)
