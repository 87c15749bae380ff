"""MetricX as `t2t.import_model` finds it: an mT5 that its authors call `MT5ForRegression`.

The folders of the models have no vocabulary, which is mT5's. `t2t.evaluation.metricx` computes the
scores.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t2t.config.fields import ConfigError
from t2t.config.measures import list_scored
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.interop.strict_config import ForeignConfig

COLUMN = 250_089  # the original's id of `<extra_id_10>`, whose logit is the score
_EXAMPLE = "--source=hf:google/metricx-24-hybrid-large-v2p6 --tokenizer=hf:google/mt5-large"


def prepare_config(given: ForeignConfig) -> None:
    """Turns config.json into the config of a plain mT5.

    Raises:
        SourceError: the authors' class would scale the output.
    """
    given.allow("tie_word_embeddings", False)  # transformers 5 says True of any mT5
    given.replace("architectures", ["MT5ForConditionalGeneration"])


def read_settings(
    workdir: Path, origin: Mapping[str, Any], flag: str, *, has_reference: bool
) -> tuple[str, int]:
    """Returns the version of an imported MetricX, and our id of the piece whose logit is the score.

    The version is that in the name of the original, "-qe" without reference: 24 scores with a
    reference and without, 23 has a model for each. `origin` is what the import recorded; `flag`
    names the run in messages.

    Raises:
        ConfigError: the run is no imported MetricX, its name says no version, or that of a model of
            the other kind.
    """
    remedy = f"name a run that t2t.import_model made of one, for example of {_EXAMPLE}"
    if not origin:
        raise ConfigError(f"{flag} is no imported model; {remedy}")
    flag += f" was imported from {origin['source']}"
    kind, architectures = (origin["config"].get(each) for each in ("model_type", "architectures"))
    if kind != "mt5" or "metricx" not in list_scored(architectures):
        raise ConfigError(
            f"{flag}, with model_type={kind} and architectures={architectures}, but MetricX has "
            f"mt5 and ['MT5ForRegression']; {remedy}"
        )
    named = re.search("metricx-(23-qe|23|24)", str(origin["source"]).lower())
    if not named:
        raise ConfigError(
            f"{flag}, whose name says no version of MetricX; import it from a folder whose name "
            "has metricx-24, metricx-23 or, without reference, metricx-23-qe"
        )
    version = named[1]
    if version == "24" and not has_reference:
        version = "24-qe"
    if version.endswith("-qe") == has_reference:
        reads, other = ("no", "metricx_qe") if has_reference else ("a", "metricx")
        raise ConfigError(
            f"{flag}, which reads {reads} reference; ask for the measure {other}, with "
            f"--measure_model={other}=RUN"
        )
    [found] = np.nonzero(Rows.load(workdir / "vocab").row == COLUMN)
    if not len(found):
        raise ConfigError(
            f"{flag}: the vocabulary has no piece with the original id {COLUMN}, whose logit is "
            "the score; import the model with --tokenizer=hf:google/mt5-large"
        )
    return version, int(found[0])
