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
from t2t.config.measure_names import list_scored
from t2t.interop.foreign_config import ForeignConfig
from t2t.interop.hugging_face_vocabulary import Rows

COLUMN = 250_089  # the original's id of `<extra_id_10>`, whose logit is the score
_EXAMPLE = "--source=hf:google/metricx-24-hybrid-large-v2p6 --tokenizer=hf:google/mt5-large"


def prepare_config(given: ForeignConfig) -> None:
    """Makes config.json that of a plain mT5.

    Raises:
        SourceError: the authors' class would scale the output.
    """
    given.allow("tie_word_embeddings", False)  # transformers 5 says True of any mT5
    given.replace("architectures", ["MT5ForConditionalGeneration"])


def check_origin(origin: Mapping[str, Any] | None, flag: str) -> Mapping[str, Any]:
    """Returns what an import recorded of a run; `flag` names the run in messages.

    Raises:
        ConfigError: it is no imported MetricX.
    """
    remedy = f"name a run that t2t.import_model made of one, for example of {_EXAMPLE}"
    if origin is None:
        raise ConfigError(f"{flag} is no imported model; {remedy}")
    kind, architectures = (origin["config"].get(each) for each in ("model_type", "architectures"))
    if kind != "mt5" or "metricx" not in list_scored(architectures):
        raise ConfigError(
            f"{flag} was imported from {origin['source']}, with model_type={kind} and "
            f"architectures={architectures}, but MetricX has mt5 and ['MT5ForRegression']; {remedy}"
        )
    return origin


def find_version(source: str, flag: str, *, has_reference: bool) -> str:
    """Returns the version that the name of the original says, with "-qe" without reference.

    Version 24 scores with a reference and without, 23 has a model for each.

    Raises:
        ConfigError: the name says none, or a model of the other kind.
    """
    named = re.search("metricx-(23-qe|23|24)", source.lower())
    if not named:
        raise ConfigError(
            f"{flag} was imported from {source}, whose name says no version of MetricX; import it "
            "from a folder whose name has metricx-24, metricx-23 or, without reference, "
            "metricx-23-qe"
        )
    version = named[1]
    if version == "24":
        return version if has_reference else "24-qe"
    if version.endswith("-qe") == has_reference:
        reads, other = ("no", "metricx_qe") if has_reference else ("a", "metricx")
        raise ConfigError(
            f"{flag} was imported from {source}, which reads {reads} reference; ask for the "
            f"measure {other}, with --measure_model={other}=RUN"
        )
    return version


def find_column(workdir: Path, flag: str) -> int:
    """Returns our id of the piece whose logit is the score.

    Raises:
        ConfigError: the vocabulary is another.
    """
    [found] = np.nonzero(Rows.load(workdir / "vocab").row == COLUMN)
    if not len(found):
        raise ConfigError(
            f"{flag}: the vocabulary has no piece with the original id {COLUMN}, "
            "whose logit is the score; import the model with --tokenizer=hf:google/mt5-large"
        )
    return int(found[0])
