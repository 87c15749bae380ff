"""What an evaluation leaves in a folder, and how it is found again.

    NAME.json           scores, each with its definition, and what they are scores of
    NAME.txt            the hypotheses
    NAME.log_probs.txt  of each reference its log-probability in nats, and its sub-words with EOS
    SPLIT-HASH.src.txt  the raw sources, SPLIT-HASH.ref.txt the raw references: of all evaluations
                        of this test set

Line n of each text belongs to sentence n, so the folder can be copied and compared anywhere.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from t2t.evaluation.scores import format_interval
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import write_file

_log = logging.getLogger(__name__)

# Fields of every evaluation, whichever version wrote it.
_REQUIRED = {
    "measures", "num_sentences", "split", "checkpoint", "beam_size", "alpha", "tgt_language",
    "config",
}  # fmt: skip


class EvaluationError(ValueError):
    """Evaluations that are missing, damaged or do not compare; the message says what would help."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation, as it was saved."""

    path: Path  # of the .json
    result: Mapping[str, Any]  # what it holds

    @property
    def name(self) -> str:
        """As `--evaluation` takes it."""
        return self.path.stem

    @property
    def date(self) -> str:
        """UTC; before all others where it was written without one."""
        return str(self.result.get("date", ""))

    def read_lines(self, text: str) -> list[str]:
        """`hypotheses`, `sources`, `references` or `log_probs`, one line a sentence.

        Raises:
            EvaluationError: they are not there, or are not as many as were scored.
        """
        if "texts" not in self.result:
            raise EvaluationError(
                f"{self.path} was written without its {text}; evaluate that run again"
            )
        path = self.path.with_name(self.result["texts"][text])
        try:
            lines = path.read_bytes().decode().split("\n")[:-1]
        except (OSError, UnicodeDecodeError) as error:
            raise EvaluationError(
                f"{path}, the {text} of {self.path.name}, cannot be read ({error}); copy it from "
                "where the evaluation was made, or evaluate again"
            ) from None
        if len(lines) != self.result["num_sentences"]:
            raise EvaluationError(
                f"{path} has {len(lines)} lines, but {self.path.name} scored "
                f"{self.result['num_sentences']} sentences; evaluate again"
            )
        return lines

    def read_log_probs(self) -> Float[np.ndarray, "n 2"]:
        """Each reference's log-probability under the model, in nats, and its sub-words with EOS.

        A reference that the model cannot take has NaN.

        Raises:
            EvaluationError: as `read_lines`.
        """
        lines = self.read_lines("log_probs")
        try:
            return np.array([line.split(" ") for line in lines], float).reshape(len(lines), 2)
        except ValueError as error:
            path = self.path.with_name(self.result["texts"]["log_probs"])
            raise EvaluationError(f"{path} is damaged ({error}); evaluate again") from None


def name_texts(path: Path, split: str, corpus: str) -> dict[str, str]:
    """The texts' file names beside the scores at `path`; `corpus` is the test set's hash."""
    test_set = f"{split.removesuffix(short_hash(corpus))}{short_hash(corpus)}"
    return {
        "hypotheses": f"{path.stem}.txt",
        "log_probs": f"{path.stem}.log_probs.txt",
        "sources": f"{test_set}.src.txt",
        "references": f"{test_set}.ref.txt",
    }


def short_hash(corpus: str) -> str:
    """The suffix that tells texts apart in file names: "-" and eight digits of their hash."""
    return f"-{corpus[:8]}"


def save_evaluation(
    path: Path, result: Mapping[str, Any], texts: Mapping[str, Sequence[str]]
) -> None:
    """Writes the texts under their names in `result`, then the scores; no file is ever seen half.

    Raises:
        OSError: one cannot be written.
    """
    for text, name in result["texts"].items():
        write_file(path.with_name(name), "".join(f"{line}\n" for line in texts[text]))
    write_file(path, json.dumps(result, indent=2) + "\n")


def load_evaluation(path: Path) -> Evaluation:
    """Reads what `save_evaluation` wrote.

    Raises:
        EvaluationError: it is not there, or no evaluation.
    """
    try:
        result = json.loads(path.read_text())
    except FileNotFoundError:
        raise EvaluationError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} cannot be read: {error}") from None
    if not isinstance(result, dict) or not result.keys() >= _REQUIRED:
        raise EvaluationError(f"{path} was not written by t2t.evaluate")
    return Evaluation(path, result)


def list_evaluations(workdir: Path) -> list[Evaluation]:
    """A run directory's evaluations, the newest last; other files are skipped with a warning."""
    found = []
    for path in (workdir / "evaluations").glob("*.json"):
        try:
            found.append(load_evaluation(path))
        except EvaluationError as error:
            _log.warning("left out: %s", error)
    return sorted(found, key=lambda evaluation: (evaluation.date, evaluation.name))


def format_measures(measures: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of an evaluation's scores: name, value, interval, definition."""
    rows = [
        [name, f"{score['value']:.2f}", format_interval(score.get("interval")), score["definition"]]
        for name, score in measures.items()
    ]
    return format_table(rows, align="lr")


def find_evaluation(place: Path, split: str, name: str = "") -> Evaluation:
    """A .json itself; of a run directory the one called `name`, or the newest of `split`.

    Raises:
        EvaluationError: there is none.
    """
    if place.suffix == ".json":
        return load_evaluation(place)
    if name:
        return load_evaluation(place / "evaluations" / f"{name.removesuffix('.json')}.json")
    found = [each for each in list_evaluations(place) if each.result["split"] == split]
    if not found:
        raise EvaluationError(
            f"{place} holds no evaluation of {split}; make one: "
            f"python -m t2t.evaluate --workdir={place} --split={split}"
        )
    return found[-1]
