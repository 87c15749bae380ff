"""What an evaluation leaves in a folder, and how it is found again.

    NAME.json           scores, each with its definition, and what they are scores of
    NAME.txt            the hypotheses
    SPLIT-HASH.src.txt  the raw sources, SPLIT-HASH.ref.txt the raw references: of all evaluations
                        of this test set

Line n of each text belongs to sentence n, so the folder can be copied and compared anywhere.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


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
        """`hypotheses`, `sources` or `references`, one line a sentence.

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


def name_texts(path: Path, split: str, corpus: str) -> dict[str, str]:
    """The texts' file names beside the scores at `path`; `corpus` is the test set's hash."""
    return {
        "hypotheses": f"{path.stem}.txt",
        "sources": f"{split}-{corpus[:8]}.src.txt",
        "references": f"{split}-{corpus[:8]}.ref.txt",
    }


def save_evaluation(
    path: Path, result: Mapping[str, Any], texts: Mapping[str, Sequence[str]]
) -> None:
    """Writes the texts under their names in `result`, then the scores; no file is ever seen half.

    Raises:
        OSError: one cannot be written.
    """
    for text, name in result["texts"].items():
        write_whole(path.with_name(name), "".join(f"{line}\n" for line in texts[text]))
    write_whole(path, json.dumps(result, indent=2) + "\n")


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
    if not isinstance(result, dict) or not {"measures", "num_sentences", "split"} <= result.keys():
        raise EvaluationError(f"{path} was not written by t2t.evaluate")
    return Evaluation(path, result)


def list_evaluations(workdir: Path) -> list[Evaluation]:
    """Those of a run directory, the newest last."""
    found = [load_evaluation(path) for path in (workdir / "evaluations").glob("*.json")]
    return sorted(found, key=lambda evaluation: (evaluation.date, evaluation.name))


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


def write_whole(path: Path, text: str) -> None:
    """A file that is never seen half.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(text.encode())
    draft.replace(path)
