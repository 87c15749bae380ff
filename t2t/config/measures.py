"""The names of the measures that `t2t.evaluation.scores` computes, and which one is used."""

MEASURES = (
    "bleu", "chrf", "ter", "exact_match", "bleu_lowercase", "chrf_lowercase",
    "exact_match_lowercase", "bleu_multi30k", "bleu_paper",
)  # fmt: skip
# TER is computed on request: of long or bad outputs its search for shifts takes most of the time.
DEFAULT_MEASURES = tuple(name for name in MEASURES if name != "ter")
# These count lower-case outputs as errors.
CASED_MEASURES = ("bleu", "chrf", "exact_match", "bleu_paper")


def choose_measure(flag: str | None, *, lowercase: bool) -> str:
    """Returns the measure that --measure names; by default BLEU, without case if outputs have none.

    `lowercase` is `tokenizer.lowercase` of the run.
    """
    return flag or ("bleu_lowercase" if lowercase else "bleu")
