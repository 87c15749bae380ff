"""Evaluates what another program translated, such as fairseq, Eole or an LLM.

Its passport names the file and its hash, and no run. So `t2t.compare` judges it like any other
evaluation, against a run or another file.
"""

import logging
from typing import NamedTuple

from t2t.config.fields import ConfigError, DataConfig, TokenizerConfig
from t2t.config.languages import is_text_without_spaces
from t2t.data.corpus import DataError, TextFile, hash_strings
from t2t.evaluation.evaluation_texts import read_kinds
from t2t.evaluation.evaluator import MODULES
from t2t.evaluation.load_models import identify_running_code
from t2t.evaluation.measure import TestSet
from t2t.evaluation.passport import Passport
from t2t.evaluation.requests import OutputRequest
from t2t.evaluation.saved_evaluations import Evaluation
from t2t.evaluation.text_scores import Output, open_scores

_log = logging.getLogger(__name__)


class _Translated(NamedTuple):
    """The translations of another program, and the test set if it stands in the same file."""

    file: TextFile
    lines: list[str]
    test_set: TestSet | None = None


def _read_output(request: OutputRequest) -> _Translated:
    if request.hypotheses:
        file = TextFile(request.hypotheses)
        return _Translated(file, file.read(0, len(file)))
    file = TextFile(request.table)
    header, *rows = (line.split("\t") for line in file.read(0, len(file)))
    if missing := [name for name in request.columns if name not in header]:
        raise DataError(
            f"{file.path}, line 1 names no column {missing[0]!r}, but {', '.join(header)}; name "
            "the columns of sources, references and translations by --columns"
        )
    for number, cells in enumerate(rows, start=2):
        if len(cells) != len(header):
            raise DataError(
                f"{file.path}, line {number} has {len(cells)} columns, but line 1 names "
                f"{len(header)}"
            )
    if not rows:
        raise DataError(f"{file.path} has no line below the names of its columns")
    places = [header.index(name) for name in request.columns]
    columns = [[cells[place] for cells in rows] for place in places]
    if request.kinds:
        columns.append(read_kinds(request.kinds, columns[0]))
    # Programs write the same pairs in another order; sorted, their outputs can be compared.
    ordered = sorted(zip(*columns, strict=True))
    sources, references, lines, *kinds = ([*column] for column in zip(*ordered, strict=True))
    fingerprint = hash_strings("table", *sources, *references)
    name = f"table-{fingerprint[:8]}"
    test_set = TestSet(
        sources, [references], None, name, fingerprint, kinds=kinds[0] if kinds else None
    )
    return _Translated(file, lines, test_set)


def evaluate_output(request: OutputRequest) -> Evaluation:
    """Scores what another program translated, and saves scores and texts.

    Raises:
        ConfigError, DataError: a file is missing or empty, or the files do not belong together; the
            language is unknown, and the references have no spaces.
        MeasureError: a tokeniser is not installed.
        RunError: the scores cannot be written.
    """
    flag = (
        f"--hypotheses={request.hypotheses}" if request.hypotheses else f"--table={request.table}"
    )
    hypotheses, lines, test_set = _read_output(request)
    for ref in () if request.tgt_language else request.ref:
        references = TextFile(ref)
        if is_text_without_spaces("".join(references.read(0, min(len(references), 1000)))):
            raise ConfigError(
                f"--ref={ref} has no spaces between words, by which measures would count; name its "
                "language by --tgt_language, such as zh or ja"
            )
    scores = open_scores(request, "", DataConfig(), TokenizerConfig(), test_set)
    if len(lines) != (count := len(scores.test_set.sources)):
        raise ConfigError(
            f"{flag} has {len(lines)} lines, but the test set has {count} sentences; give one "
            "translation a line, in the order of the sources"
        )
    path = scores.prepare_output(str(request.output), None, "", lines)
    if empty := sum(not line.strip() for line in lines):
        _log.warning("%s: %d of %d translations are empty", flag, empty, count)
    passport = Passport(
        origin={
            "file": hypotheses.path.name,
            "sha256": hypotheses.sha256,
            **({"system": request.system} if request.system else {}),
            **({} if request.seed is None else {"seed": request.seed}),
        },
        **identify_running_code(*MODULES),
        **scores.record(),
    )
    return scores.save(path, Output({"hypotheses": lines}, scores.count(lines)), passport)
