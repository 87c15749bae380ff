"""The names of the measures that `t2t.evaluation.scores` computes."""

MEASURES = (
    "bleu", "chrf", "ter", "exact_match", "bleu_lowercase", "chrf_lowercase",
    "exact_match_lowercase", "bleu_multi30k", "bleu_paper",
)  # fmt: skip
CASED_MEASURES = ("bleu", "chrf", "exact_match", "bleu_paper")
