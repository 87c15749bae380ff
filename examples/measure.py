"""A measure: the length of the output over that of the reference.

python -m t2t.evaluate --workdir=RUN --plugins=examples.measure --measures=default,length_ratio
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from t2t.config.variants import register
from t2t.evaluation.measure import Measure


@register("evaluation.measure", "length_ratio")
def length_ratio(tgt_language: str, num_references: int) -> Measure:
    """The sum of the first statistic over the sum of the second, which is the default."""
    del tgt_language, num_references

    def segments(
        sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Float[np.ndarray, "n 2"]:
        del sources
        lines = zip(hypotheses, references[0], strict=True)
        return np.array([[len(found), len(wanted)] for found, wanted in lines], float)

    return Measure("length_ratio", "characters, first reference, version 1", segments)
