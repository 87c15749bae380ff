"""Evaluates what another program translated, such as fairseq, Eole or an LLM.

Its passport names the file and its hash, and no run. So `t2t.compare` judges it like any other
evaluation, against a run or another file.
"""

import logging

from t2t.config.fields import ConfigError, DataConfig, TokenizerConfig
from t2t.config.languages import is_text_without_spaces
from t2t.data.corpus import TextFile
from t2t.evaluation.evaluator import MODULES
from t2t.evaluation.load_models import identify_running_code
from t2t.evaluation.passport import Passport
from t2t.evaluation.requests import OutputRequest
from t2t.evaluation.saved_evaluations import Evaluation
from t2t.evaluation.text_scores import Output, open_scores

_log = logging.getLogger(__name__)


def evaluate_output(request: OutputRequest) -> Evaluation:
    """Scores what another program translated, and saves scores and texts.

    Raises:
        ConfigError, DataError: a file is missing or empty, or the files do not belong together; the
            language is unknown, and the references have no spaces.
        MeasureError: a tokeniser is not installed.
        RunError: the scores cannot be written.
    """
    flag = f"--hypotheses={request.hypotheses}"
    hypotheses = TextFile(request.hypotheses)
    for ref in () if request.tgt_language else request.ref:
        references = TextFile(ref)
        if is_text_without_spaces("".join(references.read(0, min(len(references), 1000)))):
            raise ConfigError(
                f"--ref={ref} has no spaces between words, by which measures would count; name its "
                "language by --tgt_language, such as zh or ja"
            )
    scores = open_scores(request, "", DataConfig(), TokenizerConfig())
    if len(hypotheses) != (count := len(scores.test_set.sources)):
        raise ConfigError(
            f"{flag} has {len(hypotheses)} lines, but the test set has {count} sentences; give one "
            "translation a line, in the order of the sources"
        )
    lines = hypotheses.read(0, count)
    path = scores.prepare_output(str(request.output), None, "", lines)
    if empty := sum(not line.strip() for line in lines):
        _log.warning("%s: %d of %d translations are empty", flag, empty, count)
    passport = Passport(
        origin={"file": hypotheses.path.name, "sha256": hypotheses.sha256},
        **identify_running_code(*MODULES),
        **scores.record(),
    )
    return scores.save(path, Output({"hypotheses": lines}, scores.count(lines)), passport)
