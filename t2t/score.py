"""Scores given translations or texts: `python -m t2t.score --workdir=RUN --src=FILE --tgt=FILE`.

Prints the log-probability of each target line in nats, EOS included, computed in float32. With
--tokens two columns follow: the log-probability of each sub-word, and the sub-words.

A model of text alone takes no --src, except for the numbers of a list. One of masked sub-words
prints the pseudo-log-likelihood: the sum of the log-probabilities of all sub-words but EOS, each
with itself masked (Salazar et al. 2020).

--n_best_list=FILE instead of --tgt takes what `t2t.translate --n_best=4 --scores` printed for the
same --src, and prints it with new scores, the translations of a line best first. The new score is
(1 - share) times the list's plus --share times the model's log-probability divided by the length
penalty. With --reverse the model is of the other direction and scores the source line.

A pair that is too long for the model has the score nan.
"""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Annotated, ClassVar

from t2t.config.field_types import InputPath, Rule
from t2t.config.requests import Flag, Plugins
from t2t.evaluation.requests import ModelRequest
from t2t.runtime import command_line
from t2t.storage.paths import make_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreRequest(ModelRequest, Plugins):
    """A model and the texts, or the list, that it scores."""

    searched: ClassVar = ("alpha", "length_penalty", "batch_size")

    src: InputPath = ""  # the source sentences, one per line
    tgt: InputPath = ""  # their translations, line by line; or texts
    n_best_list: InputPath = ""  # translations with numbers and scores, to be reranked
    tokens: bool = False  # also print the log-probability of each sub-word
    # the model translates from the target to the source
    reverse: Annotated[bool, Flag(needs="n_best_list")] = False
    # share of this model in the new score
    share: Annotated[
        float, Rule("lie in [0, 1]", lambda value: 0 <= value <= 1), Flag(needs="n_best_list")
    ] = 1.0

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        if bool(self.tgt) == bool(self.n_best_list):
            yield "give one of --tgt and --n_best_list"
        for name in ("alpha", "length_penalty"):
            if self.tgt and name in self.decoding:
                yield f"--{name} is for --n_best_list; leave it out with --tgt"
        if self.n_best_list and self.tokens:
            yield "--tokens is not for --n_best_list"
        if self.n_best_list and not self.src:
            yield "--src is missing; name the file of the source sentences"


def main(request: ScoreRequest) -> None:
    """Prints the scores."""
    from t2t.api.text_scorer import TextScorer, format_scores, rerank
    from t2t.data.corpus import TextCorpus
    from t2t.decoding.translation import format_lines
    from t2t.evaluation.load_models import RunModel
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()
    scorer = TextScorer(RunModel(request))
    scorer.check_sources(given=bool(request.src), listed=bool(request.n_best_list))
    src = make_path(request.src or request.tgt)
    if request.n_best_list:
        listed = make_path(request.n_best_list)
        for number, found in rerank(scorer, src, listed, request.share, request.reverse):
            sys.stdout.write(format_lines(number, found, numbered=True, scored=True))
        return
    for _, ids, scores in scorer.score(iter(TextCorpus(src, request.tgt))):
        spelled = scorer.vocabulary if request.tokens else None
        sys.stdout.write(format_scores(scores, ids, spelled))


if __name__ == "__main__":
    command_line.run(main)
