"""`HeadRequest`: the flags of `t2t.inspect_heads`, apart from head_page.py, which imports JAX."""

import dataclasses
from typing import Annotated, Literal

from t2t.config.field_types import NonNegativeInt
from t2t.config.requests import Flag
from t2t.evaluation.requests import OneCheckpoint, OneTask


@dataclasses.dataclass(frozen=True)
class HeadRequest(OneCheckpoint, OneTask):
    """The sentence and the measurement of a page of attention heads."""

    _: dataclasses.KW_ONLY
    sentence: Annotated[str, Flag(operands="the sentence")]
    # number of validation sentences on which the heads are measured, with each head switched off in
    # turn; 0: skip this measurement
    importance: NonNegativeInt = 100
    # a head's importance is the change of this measure without it; bleu takes longer
    measure: Literal["loss", "bleu"] = "loss"
    seed: NonNegativeInt = 0  # seed of the random choice of --importance sentences
    # the HTML file; default: RUN/heads.html, or heads-en-de.html with --task
    output: str = ""
