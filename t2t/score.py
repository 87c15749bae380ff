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

import sys

from absl import flags

from t2t.config.fields import ConfigError
from t2t.config.flags import define_scoring, read_decoding
from t2t.runtime import command_line
from t2t.storage.paths import make_path


def check_flags() -> None:
    """Raises ConfigError if flags exclude each other."""
    values = flags.FLAGS
    if bool(values.tgt) == bool(values.n_best_list):
        raise ConfigError("give one of --tgt and --n_best_list")
    for name in ("reverse", "share", "alpha", "length_penalty"):
        if values.tgt and values[name].present:
            raise ConfigError(f"--{name} is for --n_best_list; leave it out with --tgt")
    if values.n_best_list and values.tokens:
        raise ConfigError("--tokens is not for --n_best_list")
    if values.n_best_list and not values.src:
        raise ConfigError("--src is missing; name the file of the source sentences")


def main() -> None:
    """Prints the scores that the flags ask for."""
    from t2t.api.text_scorer import TextScorer, format_scores, rerank
    from t2t.data.corpus import TextCorpus
    from t2t.decoding.translation import format_lines
    from t2t.evaluation.load_models import ModelRequest, RunModel
    from t2t.runtime.jax_settings import enable_compilation_cache

    values = flags.FLAGS
    enable_compilation_cache()
    check_flags()
    request = ModelRequest(checkpoint=values.checkpoint, **command_line.read_models())
    scorer = TextScorer(RunModel(request, read_decoding()))
    scorer.check_sources(given=bool(values.src), listed=bool(values.n_best_list))
    src = make_path(values.src or values.tgt)
    if values.n_best_list:
        listed = make_path(values.n_best_list)
        for number, found in rerank(scorer, src, listed, values.share, values.reverse):
            sys.stdout.write(format_lines(number, found, numbered=True, scored=True))
        return
    for _, ids, scores in scorer.score(iter(TextCorpus(src, values.tgt))):
        spelled = scorer.vocabulary if values.tokens else None
        sys.stdout.write(format_scores(scores, ids, spelled))


if __name__ == "__main__":
    command_line.define_models()
    command_line.define_direction()
    command_line.define_checkpoint()
    flags.DEFINE_string("src", "", "The source sentences, one per line.")
    flags.DEFINE_string("tgt", "", "Their translations, line by line; or texts.")
    flags.DEFINE_string("n_best_list", "", "Translations with numbers and scores, to be reranked.")
    flags.DEFINE_bool("tokens", False, "Also print the log-probability of each sub-word.")
    flags.DEFINE_bool("reverse", False, "The model translates from the target to the source.")
    flags.DEFINE_float(
        "share", 1.0, "Share of this model in the new score.", lower_bound=0.0, upper_bound=1.0
    )
    define_scoring()
    command_line.run(main)
