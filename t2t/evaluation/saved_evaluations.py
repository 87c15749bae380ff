"""The files of an evaluation: writing, reading and checking them.

    NAME.json           scores with their definitions, and the passport: what was scored, and how
    NAME.txt            the hypotheses
    NAME.log_probs.txt  each reference's log-probability in nats, and its sub-words with EOS
    SPLIT-HASH.src.txt  the raw sources, shared by all evaluations of this test set
    SPLIT-HASH.ref.txt  the raw references, shared likewise; further ones in .ref2.txt, ...
    NAME.documents.txt  the number of each sentence's document, from 0, if they are known
    NAME.kinds.txt      the kind of each sentence, if it has one
    NAME.right.txt      of a run on text alone: how many predicted sub-words of each text are right
    NAME.scores.MEASURE.txt    the score of each sentence by a model or another program

Line n of each text belongs to sentence n. The folder needs no other file, so evaluations can be
copied and compared anywhere.
"""

import contextlib
import dataclasses
import functools
import hashlib
import html
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
from jaxtyping import Float

from t2t.config.field_types import PositiveInt, PositiveInt32, Rule
from t2t.config.json_forms import list_json_faults
from t2t.config.measure_rules import needs_model
from t2t.config.measures import MEASURE_FIELD, PREDICTION_MEASURES
from t2t.config.variants import choices
from t2t.evaluation.measure import (
    Interval,
    Measure,
    TestSet,
    count_scores,
    make_prediction_measure,
)
from t2t.evaluation.number_format import format_interval, format_score
from t2t.evaluation.passport import (
    TEST_SET,
    TRANSLATION,
    Facts,
    Passport,
    hash_lines,
    read_passport,
)
from t2t.evaluation.text_measures import make_measure
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import write_file

_log = logging.getLogger(__name__)


class EvaluationError(ValueError):
    """Evaluations are missing, damaged or not comparable; the message names a remedy."""


_FileName = Annotated[
    str, Rule("name a file beside it", lambda name: name != "" and Path(name).name == name)
]


class _Score(TypedDict):
    value: float
    definition: str
    detail: str
    interval: Interval | None


class _StoredScore(TypedDict):
    """Further fields of a score if the scores of its sentences are stored in a file."""

    higher_is_better: bool
    limits: Interval | None


class _Output(TypedDict):
    """The origin of what another program translated."""

    file: str


class _Checkpoint(TypedDict):
    """The origin of what a run computed."""

    run: str
    checkpoint: str


class _Data(TypedDict):
    split: str
    objective: str
    tgt_language: str


class _Backend(TypedDict):
    name: str


class _Decoding(TypedDict):
    beam_size: PositiveInt
    alpha: float
    strategy: str
    temperature: float
    mbr: str


class _OutputPassport(TypedDict):
    origin: _Output
    data: _Data


class _RunPassport(TypedDict):
    origin: _Checkpoint
    data: _Data
    backend: _Backend


class _TranslationPassport(_RunPassport):
    decoding: _Decoding


class _Result(TypedDict):
    """The fields of an evaluation's JSON that are read."""

    date: str
    num_sentences: PositiveInt32
    num_documents: PositiveInt32 | None
    measures: Mapping[str, _Score]
    texts: Mapping[str, _FileName]
    sha256: Mapping[str, str]
    passport: Mapping[str, Facts]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A saved evaluation."""

    path: Path  # of the .json
    result: Mapping[str, Any]  # its content

    @property
    def name(self) -> str:
        """The name that the flag `--evaluation` takes."""
        return self.path.stem

    def _repr_html_(self) -> str:
        shown = html.escape(f"{self.name}: {self.result['num_sentences']} sentences")
        table = format_measures(self.result["measures"], html=True)
        return f"<p><code>{shown}</code></p>{table}"

    @property
    def date(self) -> str:
        """The time in UTC."""
        return str(self.result["date"])

    @functools.cached_property
    def passport(self) -> Passport:
        """The saved passport: what was scored, and how."""
        return read_passport(self.result)

    @property
    def unit(self) -> str:
        """The unit that intervals resample: sentences or documents."""
        return "documents" if "num_documents" in self.result else "sentences"

    def value(self, measure: str) -> float:
        """The score by a measure; NaN if it was not finite, or not asked for."""
        return float(self.result["measures"].get(measure, {}).get("value", math.nan))

    def interval(self, measure: str) -> str:
        """The score's 95% interval over sentences or documents as text; empty without one."""
        found = self.result["measures"].get(measure, {}).get("interval")
        return format_interval(found, self.value(measure))

    def read_lines(self, text: str) -> list[str]:
        """Reads one of the texts that `result` names, such as `hypotheses`: a line per sentence.

        Raises:
            EvaluationError: the file is missing, or has another number of lines than sentences.
        """
        if text not in self.result["texts"]:
            raise EvaluationError(
                f"{self.path} has no {text}: its run was trained on text alone, and translates "
                "nothing; t2t.compare judges its perplexity and accuracy"
                if self.passport.objective and text in ("hypotheses", "sources")
                else f"{self.path} names no {text} among its texts; evaluate again"
            )
        path = self.path.with_name(self.result["texts"][text])
        try:
            lines = path.read_bytes().decode().split("\n")[:-1]
        except (OSError, ValueError) as error:
            raise EvaluationError(
                f"{path}, the {text} of {self.path.name}, cannot be read ({error}); copy it from "
                "the original folder, or evaluate again"
            ) from None
        if len(lines) != self.result["num_sentences"]:
            raise EvaluationError(
                f"{path} has {len(lines)} lines, but {self.path.name} scored "
                f"{self.result['num_sentences']} sentences; evaluate again"
            )
        return lines

    def read_test_set(self) -> TestSet:
        """Reads sources, references, documents and kinds; of text alone both sides are the text.

        Raises:
            EvaluationError: as `read_lines`.
        """
        if self.passport.objective:
            texts = self.read_lines("references")
            return TestSet(texts, [texts])
        documents = None
        if "documents" in self.result["texts"]:
            numbers = self._read_numbers("documents", 1)[:, 0]
            if not np.isin(numbers, np.arange(len(numbers))).all():
                path = self.path.with_name(self.result["texts"]["documents"])
                raise EvaluationError(f"{path} is damaged (numbers of documents); evaluate again")
            documents = numbers.astype(int)
        references = [self.read_lines(text) for text in self._references]
        kinds = self.read_lines("kinds") if "kinds" in self.result["texts"] else None
        return TestSet(self.read_lines("sources"), references, documents, kinds=kinds)

    def hash_texts(self) -> dict[str, str]:
        """Returns the SHA-256 of the texts of the test set as they are in the files now.

        Raises:
            EvaluationError: as `read_lines`.
        """
        names = [name for name in self.result["texts"] if name.startswith(TEST_SET)]
        return {name: hash_lines(self.read_lines(name)) for name in names}

    @property
    def _references(self) -> list[str]:
        names = [name for name in self.result["texts"] if name.startswith("references")]
        return names or ["references"]  # which `read_lines` does not find

    def open_measure(self, name: str) -> Measure:
        """Returns a measure by name: as it is installed, or as its stored scores define it.

        Raises:
            EvaluationError: it is unknown, and has no stored scores.
            MeasureError: as `make_measure`.
        """
        saved, texts = self.result["measures"], self.result["texts"]
        if self.passport.objective:
            if name not in PREDICTION_MEASURES:
                raise EvaluationError(
                    f"measure {name} is for translations, but the run of {self.path} was trained "
                    f"with data.objective={self.passport.objective!r}, on text alone; use one of "
                    f"{', '.join(PREDICTION_MEASURES)}"
                )
            return make_prediction_measure(name, saved.get(name, {}).get("definition", ""))
        if name_segment_scores(name) in texts:
            score = saved[name]
            higher, limits = score["higher_is_better"], score.get("limits") or (-math.inf, math.inf)
            return Measure(name, score["definition"], higher_is_better=higher, limits=(*limits,))
        if needs_model(name):
            raise EvaluationError(
                f"{self.path} has no scores by {name}, which a model computes; evaluate again with "
                f"--measures=default,{name} --measure_model={name}=RUN"
            )
        if name not in (known := choices(MEASURE_FIELD)):
            stored = [each for each in saved if name_segment_scores(each) in texts]
            raise EvaluationError(
                f"measure {name} of {self.path} is unknown; use one of "
                f"{', '.join([*known, *stored])}; name the module that registers it by --plugins, "
                f"or store the scores first: t2t.add_scores RUN --segment_scores={name}=FILE"
            )
        return make_measure(name, self.passport.data["tgt_language"], len(self._references))

    def read_statistics(self, measure: Measure, test_set: TestSet) -> Float[np.ndarray, "n _"]:
        """Returns each sentence's statistics by a measure: stored, or computed from hypotheses.

        Raises:
            EvaluationError: a file is missing or damaged, or has no scores by this measure.
        """
        if self.passport.objective:
            return self._read_predictions()
        if measure.segments is None:
            return self._read_segment_scores(measure.name)
        return measure.collect(self.read_lines("hypotheses"), test_set)

    def _read_segment_scores(self, name: str) -> Float[np.ndarray, "n 2"]:
        """Returns the stored (score, 1) of each sentence by a measure."""
        if name_segment_scores(name) not in self.result["texts"]:
            raise EvaluationError(
                f"{self.path} has no scores by {name}; store them first: t2t.add_scores "
                f"{self.path} --segment_scores={name}=FILE"
            )
        return count_scores(self._read_numbers(name_segment_scores(name), 1)[:, 0])

    def _read_predictions(self) -> Float[np.ndarray, "n 3"]:
        """Returns (nats, predicted sub-words, right ones) of each text of a run on text alone.

        Texts that are too long for the model are left out.
        """
        log_probs, counts = self.read_log_probs().T
        right = self._read_numbers("right", 1)[:, 0]
        return np.stack([-log_probs, counts, right], axis=-1)[counts > 0]

    def read_log_probs(self) -> Float[np.ndarray, "n 2"]:
        """Returns each reference's log-probability in nats and its number of sub-words with EOS.

        The log-probability is NaN where the reference is too long for the model.

        Raises:
            EvaluationError: as `read_lines`, or a line is damaged.
        """
        return self._read_numbers("log_probs", 2)

    def _read_numbers(self, text: str, count: int) -> Float[np.ndarray, "n _"]:
        """Reads so many numbers of each sentence."""
        lines = self.read_lines(text)
        try:
            return np.array([line.split(" ") for line in lines], float).reshape(len(lines), count)
        except ValueError as error:
            path = self.path.with_name(self.result["texts"][text])
            raise EvaluationError(f"{path} is damaged ({error}); evaluate again") from None


def name_texts(path: Path, split: str, corpus: str, texts: Iterable[str]) -> dict[str, str]:
    """Returns the names of the files of these texts for the scores at `path`.

    `corpus` is the test set's hash; sources and references are named after the test set.
    """
    suffix = f"-{corpus[:8]}"  # which the names of text files have already
    test_set = f"{split.removesuffix(suffix)}{suffix}"
    names = {"hypotheses": f"{path.stem}.txt", "sources": f"{test_set}.src.txt"}
    for text in texts:
        if text.startswith("references"):
            names[text] = f"{test_set}.{text.replace('references', 'ref')}.txt"
    return {text: names.get(text, f"{path.stem}.{text}.txt") for text in texts}


def name_segment_scores(measure: str) -> str:
    """Returns the key in `texts` of the stored scores of the sentences by a measure."""
    return f"scores.{measure}"


def save_evaluation(
    path: Path, result: Mapping[str, Any], texts: Mapping[str, Sequence[str]]
) -> Evaluation:
    """Writes texts under their names in `result`, then the scores; each file atomically.

    Texts that are not given exist already. The scores get the hashes of all files.

    Raises:
        OSError: a file cannot be written.
    """
    if path.exists():
        with contextlib.suppress(EvaluationError):  # it is damaged
            stored = load_evaluation(path).result["texts"].keys() - result["texts"].keys()
            if lost := [name for name in stored if name.startswith(name_segment_scores(""))]:
                _log.warning(
                    "%s: %s were scores of other hypotheses, and are dropped; store them again",
                    path, ", ".join(sorted(lost)),
                )  # fmt: skip
    for text, lines in texts.items():
        name = result["texts"][text]
        write_file(path.with_name(name), "".join(f"{line}\n" for line in lines))
    saved = {**result, "sha256": compute_digests(path, result)}
    write_file(path, json.dumps(saved, indent=2) + "\n")
    return Evaluation(path, saved)


def compute_digests(path: Path, result: Mapping[str, Any]) -> dict[str, str]:
    """Returns the SHA-256 of each text beside the scores at `path`, and of the `scores`.

    A text that is missing or cannot be read has "missing".
    """
    found = {}
    for text, name in result["texts"].items():
        try:
            found[text] = hashlib.sha256(path.with_name(name).read_bytes()).hexdigest()
        except (OSError, ValueError):  # no file of that name, or one that cannot be read
            found[text] = "missing"
    scores = {name: value for name, value in result.items() if name != "sha256"}
    content = json.dumps(scores, sort_keys=True)
    return found | {"scores": hashlib.sha256(content.encode()).hexdigest()}


def load_evaluation(path: Path) -> Evaluation:
    """Reads the .json of an evaluation, and checks the types of the fields that are used.

    Raises:
        EvaluationError: the file does not exist or is not an evaluation.
    """
    try:
        result = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise EvaluationError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise EvaluationError(f"{path} cannot be read ({error}); evaluate again") from None
    if fault := next(_list_faults(result), ""):
        raise EvaluationError(f"{path} was not written by t2t.evaluate, or edited: {fault}")
    return Evaluation(path, result)


def _list_faults(result: Any) -> Iterator[str]:
    """Yields what is wrong with the JSON of an evaluation.

    Stop at the first fault: the checks behind it may fail on its value.
    """
    yield from list_json_faults(result, _Result)
    passport = result["passport"]
    form: Any = _TranslationPassport
    if "file" in passport.get("origin", {}):
        form = _OutputPassport
    elif passport.get("data", {}).get("objective") != TRANSLATION:
        form = _RunPassport  # on text alone
    yield from list_json_faults(passport, form, "passport.")
    for name, score in result["measures"].items():
        if name_segment_scores(name) in result["texts"]:
            yield from list_json_faults(score, _StoredScore, f"measures.{name}.")


def format_measures(measures: Mapping[str, Mapping[str, Any]], html: bool = False) -> str:
    """Formats an evaluation's scores as a table: name, value, interval, definition."""
    rows = [
        [
            name,
            format_score(score["value"]),
            format_interval(score.get("interval"), score["value"]),
            score["definition"],
        ]
        for name, score in measures.items()
    ]
    return format_table(rows, align="lr", html=html)
