"""Exact match, the percentage of hypotheses that equal their reference, as a sacreBLEU metric.

Like BLEU it has a signature and works with sacreBLEU's bootstrap and paired tests.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric, Score, Signature


class ExactMatchSignature(Signature):
    """The signature of `ExactMatch`."""

    def __init__(self, args: dict[str, Any]):
        super().__init__(args)
        self.update("case", "lc" if args["lowercase"] else "mixed")
        self.update("space", "one")  # any sequence of white space counts as one space


class ExactMatch(Metric):
    """The percentage of sentences whose words equal those of a reference."""

    _SIGNATURE_TYPE = ExactMatchSignature

    def __init__(self, lowercase: bool = False):
        super().__init__()  # type: ignore[no-untyped-call]  # of sacreBLEU
        self.lowercase = lowercase

    def _preprocess_segment(self, sent: str) -> str:
        return " ".join((sent.lower() if self.lowercase else sent).split())

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        """Returns [1 if the hypothesis matches else 0, 1 sentence]."""
        return [int(hypothesis in ref_kwargs["references"]), 1]

    def _aggregate_and_compute(self, stats: list[list[int]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: Sequence[Any] | np.ndarray) -> Score:
        matches, sentences = stats
        return Score("exact match", float(100 * matches / sentences))
