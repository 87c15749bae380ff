"""The files of an evaluation: writing, reading and finding them.

    NAME.json           scores with their definitions, and the passport: all that they are of
    NAME.txt            the hypotheses
    NAME.log_probs.txt  each reference's log-probability in nats, and its sub-words with EOS
    SPLIT-HASH.src.txt  the raw sources, shared by all evaluations of this test set
    SPLIT-HASH.ref.txt  the raw references, shared likewise; further ones in .ref2.txt, ...
    NAME.documents.txt  the number of each sentence's document, from 0, if they are known
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
import itertools
import json
import logging
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from t2t.config.measure_names import MEASURE_FIELD, PREDICTION_MEASURES
from t2t.config.variants import choices
from t2t.evaluation.measures import (
    Interval,
    Measure,
    TestSet,
    count_scores,
    format_interval,
    format_score,
    make_prediction_measure,
)
from t2t.evaluation.passport import TRANSLATION, Passport, hash_lines, read_passport
from t2t.evaluation.text_measures import make_measure
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import write_file

_log = logging.getLogger(__name__)


class EvaluationError(ValueError):
    """Evaluations are missing, damaged or not comparable; the message names a remedy."""


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
        """All that the scores are of, as it was saved."""
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
        return format_interval(self.find_interval(measure))

    def find_interval(self, measure: str) -> Interval | None:
        """The score's 95% interval over sentences or documents; None without one."""
        found = self.result["measures"].get(measure, {}).get("interval")
        return found and (float(found[0]), float(found[1]))

    def read_lines(self, text: str) -> list[str]:
        """Reads one of the texts that `result` names, such as `hypotheses`: a line per sentence.

        Raises:
            EvaluationError: the file is missing, or its number of lines is not that of sentences.
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
        """Reads sources, references and documents; of text alone both sides are the text.

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
        return TestSet(self.read_lines("sources"), references, documents)

    def hash_texts(self) -> dict[str, str]:
        """Returns the SHA-256 of sources, references and documents as they are in the files now.

        Raises:
            EvaluationError: as `read_lines`.
        """
        names = ["references"] if self.passport.objective else ["sources", *self._references]
        names += [name for name in ("documents",) if name in self.result["texts"]]
        return {name: hash_lines(self.read_lines(name)) for name in names}

    @property
    def _references(self) -> list[str]:
        names = [name for name in self.result["texts"] if name.startswith("references")]
        return names or ["references"]  # which `read_lines` does not find

    def open_measure(self, name: str) -> Measure:
        """Returns the measure of this name as it is defined here, or as its stored scores are.

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
        if name not in (known := choices(MEASURE_FIELD)):
            stored = [each for each in saved if name_segment_scores(each) in texts]
            raise EvaluationError(
                f"measure {name} of {self.path} is unknown; use one of "
                f"{', '.join([*known, *stored])}; name the module that registers it by --plugins, "
                f"or store the scores first: t2t.add_scores RUN --segment_scores={name}=FILE"
            )
        return make_measure(name, self.passport.data["tgt_language"], len(self._references))

    def read_statistics(self, measure: Measure, test_set: TestSet) -> Float[np.ndarray, "n _"]:
        """Returns the statistics of each sentence by a measure, stored or of the hypotheses.

        Raises:
            EvaluationError: a file is missing or damaged, or has no scores by this measure.
        """
        if self.passport.objective:
            return self._read_predictions(measure.name)
        if measure.segments is None:
            return self._read_segment_scores(measure.name)
        return measure.collect(self.read_lines("hypotheses"), test_set)

    def _read_segment_scores(self, name: str) -> Float[np.ndarray, "n 2"]:
        """Returns the stored (score, 1) of each sentence by a measure.

        Raises:
            EvaluationError: there are none, or as `read_log_probs`.
        """
        if name_segment_scores(name) not in self.result["texts"]:
            raise EvaluationError(
                f"{self.path} has no scores by {name}; store them first: t2t.add_scores "
                f"{self.path} --segment_scores={name}=FILE"
            )
        return count_scores(self._read_numbers(name_segment_scores(name), 1)[:, 0])

    def _read_predictions(self, measure: str) -> Float[np.ndarray, "n 3"]:
        """Returns (nats, predicted sub-words, right ones) of each text of a run on text alone.

        Texts that are too long for the model are left out.

        Raises:
            EvaluationError: as `read_log_probs`, or an earlier version did not save the right ones,
                of which accuracy is.
        """
        log_probs, counts = self.read_log_probs().T
        right = np.zeros_like(counts)
        if "right" in self.result["texts"]:
            right = self._read_numbers("right", 1)[:, 0]
        elif measure == "accuracy":
            raise EvaluationError(
                f"{self.path} does not say how many sub-words of each text are right, which "
                "accuracy is of: an earlier version saved it; evaluate that run again"
            )
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


def report_reuse(evaluation: Evaluation) -> None:
    """Says that a saved score is used instead of a new one, and from when it is."""
    _log.info("%s: used again, as scored on %s", evaluation.path, evaluation.date)


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


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**53)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**53


# What the fields have to be that are read, of an evaluation, of its passport and of one of its
# scores. Every version of t2t.evaluate has written the required ones; of others, null is as good as
# nothing.
_Rules = Mapping[str, type | Callable[[Any], bool]]
_REQUIRED: _Rules = {"measures": dict, "num_sentences": _is_count, "texts": dict, "date": str}
_OPTIONAL: _Rules = {"num_documents": _is_count, "sha256": dict, "passport": dict}
# Before there were passports, the evaluation itself had these facts.
_OF_PASSPORT: _Rules = {"split": str, "tgt_language": str}
_OF_RUN: _Rules = {"checkpoint": str}
_OF_SEARCH: _Rules = {"beam_size": _is_number, "alpha": _is_number}
_OPTIONAL_OF_PASSPORT: _Rules = {
    "objective": str, "file": str, "config": dict, "backend": dict, "key": dict,
    "strategy": str, "temperature": _is_number, "mbr": str,
}  # fmt: skip
_OF_SCORE: _Rules = {"value": _is_number, "definition": str}
_OPTIONAL_OF_SCORE: _Rules = {"detail": str, "interval": _is_pair, "limits": _is_pair}


def load_evaluation(path: Path) -> Evaluation:
    """Reads the .json of an evaluation, and checks the types of all that is read of it.

    Raises:
        EvaluationError: the file does not exist or is not an evaluation.
    """
    try:
        result = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise EvaluationError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise EvaluationError(f"{path} cannot be read: {error}") from None
    if not isinstance(result, dict):
        raise EvaluationError(f"{path} was not written by t2t.evaluate: it holds no JSON object")
    if fault := next(_list_faults(result), ""):
        raise EvaluationError(f"{path} was not written by t2t.evaluate, or edited: {fault}")
    for name in result["texts"].values():
        if not name or Path(name).name != name:  # it may come from somebody else
            raise EvaluationError(f"{path} names {name!r} as a text; it may name files beside it")
    return Evaluation(path, result)


def _list_faults(result: Mapping[str, Any]) -> Iterator[str]:
    """Describes the fields of an evaluation whose values `Evaluation` and reports cannot use.

    Stop at the first one: the checks behind it may fail on its value.
    """

    def check(content: Any, required: _Rules, optional: _Rules, where: str = "") -> Iterator[str]:
        if not isinstance(content, dict):
            yield f"{where.rstrip('.')} is {content!r:.60}"
            return
        for name, rule in {**required, **optional}.items():
            value = content.get(name)
            fits = isinstance(value, rule) if isinstance(rule, type) else rule(value)
            if not fits and (value is not None or name in required):
                yield f"{where}{name} is {value!r:.60}" if name in content else f"no {where}{name}"

    yield from check(result, _REQUIRED, _OPTIONAL)
    facts, where, rules = result, "", dict(_OF_PASSPORT)
    if sections := result.get("passport"):
        yield from check(sections, {}, dict.fromkeys(sections, dict), "passport.")
        read = (sections.get(name, {}) for name in ("origin", "data", "decoding"))
        facts, where = dict(itertools.chain.from_iterable(map(dict.items, read))), "passport."
    if "file" not in facts:  # text by another program has no run
        is_text_alone = (facts.get("objective") or TRANSLATION) != TRANSLATION
        rules |= _OF_RUN if is_text_alone else {**_OF_RUN, **_OF_SEARCH}
    yield from check(facts, rules, _OPTIONAL_OF_PASSPORT, where)
    for name, score in result["measures"].items():
        is_stored = name_segment_scores(name) in result["texts"]
        required = {**_OF_SCORE, **({"higher_is_better": bool} if is_stored else {})}
        yield from check(score, required, _OPTIONAL_OF_SCORE, f"measures.{name}.")
    for name, file in result["texts"].items():
        if not isinstance(file, str):
            yield f"texts.{name} is {file!r:.60}"


def list_evaluations(workdir: Path) -> list[Evaluation]:
    """Returns a run's evaluations, the newest last; skips other files with a warning."""
    found = []
    for path in (workdir / "evaluations").glob("*.json"):
        try:
            found.append(load_evaluation(path))
        except EvaluationError as error:
            _log.warning("skipped: %s", error)
    return sorted(found, key=lambda evaluation: (evaluation.date, evaluation.name))


def format_measures(measures: Mapping[str, Mapping[str, Any]], html: bool = False) -> str:
    """Formats an evaluation's scores as a table: name, value, interval, definition."""
    rows = [
        [
            name,
            format_score(score["value"]),
            format_interval(score.get("interval")),
            score["definition"],
        ]
        for name, score in measures.items()
    ]
    return format_table(rows, align="lr", html=html)


def is_scores_file(place: Path) -> bool:
    """Returns whether an operand names the .json of an evaluation, and no run directory."""
    return place.suffix == ".json" and not place.is_dir()


def find_evaluation(place: Path, split: str, name: str = "", checkpoint: str = "") -> Evaluation:
    """Loads an evaluation from its .json, or from a run directory.

    A run directory may have a name that ends in .json. From it comes the evaluation called `name`,
    or without a name the newest of `split`, by default test. With a `checkpoint`, such as best,
    last, 300 or avg:5, it is the newest one of the latest step.

    Raises:
        EvaluationError: there is none.
    """
    if name and not is_scores_file(place):
        place = place / "evaluations" / f"{name.removesuffix('.json')}.json"
    if is_scores_file(place):
        found = load_evaluation(place)
        if checkpoint and not _has_checkpoint(found, checkpoint):
            raise EvaluationError(
                f"{place} is of {found.passport.describe_origin()}, not of "
                f"--checkpoint={checkpoint}; leave it out, or name the run directory"
            )
        return found
    split = split or "test"
    listed = [each for each in list_evaluations(place) if each.passport.is_of_run]
    listed = [each for each in listed if each.passport.data["split"] == split]
    flags = f"--workdir={shlex.quote(str(place))} --split={split}"
    if checkpoint:
        listed = [each for each in listed if _has_checkpoint(each, checkpoint)]
        listed.sort(key=lambda each: int(each.passport.checkpoint.rpartition("-")[-1]))
        flags += f" --checkpoint={checkpoint}"
    if not listed:
        raise EvaluationError(
            f"{place} holds no evaluation of {split}{f' at {checkpoint}' * bool(checkpoint)}; "
            f"create one: python -m t2t.evaluate {flags}"
        )
    return listed[-1]


def _has_checkpoint(evaluation: Evaluation, checkpoint: str) -> bool:
    """Returns whether an evaluation is of the checkpoint that --checkpoint names."""
    label = evaluation.passport.checkpoint
    kind, _, step = label.rpartition("-")
    if not step.isdecimal():  # an ensemble
        return False
    match checkpoint.split(":"):
        case ["best" | "ema"]:
            return bool(kind == checkpoint)
        case ["last"]:
            return not kind
        case ["avg", count]:
            return bool(kind == f"avg{count}")
        case ["ema", step]:
            return bool(label == f"ema-{step}")
        case _:
            return bool(label == checkpoint)
