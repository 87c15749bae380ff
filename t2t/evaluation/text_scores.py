"""`TextScores`: scores translations of one test set by anybody; saves scores and texts."""

import dataclasses
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from t2t.config.fields import ConfigError, DataConfig, TokenizerConfig
from t2t.config.measure_rules import check_model, list_measures, needs_model
from t2t.config.measures import MEASURE_FIELD, ON_REQUEST, REFERENCE_MEASURES
from t2t.config.variants import choices
from t2t.data.sentences import count_empty_references, describe_empty_references
from t2t.evaluation.evaluation_texts import open_texts
from t2t.evaluation.kinds import score_kinds
from t2t.evaluation.measure import Measure, Score, TestSet, describe_intervals, have_spaces
from t2t.evaluation.passport import TRANSLATION, Passport, hash_lines, write_passport
from t2t.evaluation.requests import TextRequest
from t2t.evaluation.saved_evaluations import (
    Evaluation,
    name_segment_scores,
    name_texts,
    save_evaluation,
)
from t2t.evaluation.text_measures import make_measure
from t2t.runtime.distributed import is_first
from t2t.storage.atomic_files import check_writable, explain_write_errors, make_folder
from t2t.storage.paths import make_path
from t2t.training.provenance import find_commit, now
from t2t.training.run_directory import RunError

_log = logging.getLogger(__name__)


class Output(NamedTuple):
    """The output of a run or another program for a test set, with its statistics."""

    # hypotheses, log_probs or right (see saved_evaluations), a line for each sentence
    texts: Mapping[str, Sequence[str]]
    counts: Mapping[str, Float[np.ndarray, "n _"]]  # statistics of each sentence, by measure
    scores: Mapping[str, Score] = {}  # further ones, which have no such statistics
    facts: Mapping[str, Any] = {}  # that are recorded


class TextScores:
    """A test set with the measures of outputs: scores them, and saves the scores and texts.

    Attributes:
        split: the name of the test set.
        test_set: its raw texts.
        tgt_language: of the references; empty: unknown.
        spaces: whether the references have spaces between words.
        measures: the measures to compute, by name.
    """

    def __init__(
        self,
        test_set: TestSet,
        measures: Mapping[str, Measure],
        facts: Mapping[str, str],
        *,
        spaces: bool = True,
        made: Sequence[str] = ("hypotheses", "log_probs"),
    ):
        """`facts` are recorded of the data; `made` are the texts that an `Output` may have."""
        self.split, self.test_set, self.measures = test_set.name, test_set, measures
        self.tgt_language, self.spaces, self._facts = facts["tgt_language"], spaces, facts
        # A line feed inside a sentence would split it over two lines of the text files.
        sources, *references = (
            [text.replace("\n", " ") for text in each]
            for each in (test_set.sources, *test_set.references)
        )
        # Outputs are scored with the texts as they are saved, so the files give the same scores.
        self._saved = test_set._replace(sources=sources, references=references)
        documents = test_set.documents
        self._texts: dict[str, Sequence[str]] = {
            **({"sources": sources} if facts["objective"] == TRANSLATION else {}),
            "references": references[0],
            **{f"references{n}": lines for n, lines in enumerate(references[1:], 2)},
            **({} if documents is None else {"documents": [*map(str, documents)]}),
            **({} if test_set.kinds is None else {"kinds": test_set.kinds}),
        }
        stored = [name_segment_scores(name) for name in measures if measures[name].is_stored]
        self._named = [*made, *self._texts, *stored]  # the texts that may stand beside the scores

    def is_higher_better(self, name: str) -> bool:
        """Returns whether more is better by one of the measures, or by the perplexity."""
        return name in self.measures and self.measures[name].higher_is_better

    def record(self) -> dict[str, dict[str, str]]:
        """Returns the sections of a passport on the test set and the measures."""
        return {
            "data": {"split": self.split, **self._facts},
            "texts": {name: hash_lines(lines) for name, lines in self._texts.items()},
            "measures": {name: measure.definition for name, measure in self.measures.items()},
        }

    def prepare_output(
        self, output: str, folder: Path | None, name: str, known: Sequence[str] | None = None
    ) -> Path:
        """Returns the path of the scores, `output` or else `name` in `folder`; makes its folder.

        A text of the hypotheses is replaced only if it is in `folder`, or equal to those that are
        `known`: then an evaluation that was cut off has left it behind.

        Raises:
            ConfigError, RunError: the scores, or the texts beside them, cannot be written there.
        """
        path = make_path(output or (folder or Path()) / f"{name}.json")
        if path.suffix != ".json":
            raise ConfigError(f"--output={path} must end in .json; texts get the same name in .txt")
        texts = name_texts(path, self.split, self.test_set.fingerprint, self._named)
        longest = max([path.name, *texts.values()], key=lambda each: len(os.fsencode(each)))
        with explain_write_errors(
            RunError, path.with_name(longest), "--output and the name of --src set the path"
        ):
            make_folder(path.parent)
            check_writable(path.parent, longest)
        hypotheses = path.with_suffix(".txt")
        is_other = path.parent != folder and hypotheses.exists() and not path.exists()
        if is_other and known is not None:
            written = "".join(f"{line}\n" for line in known).encode()
            is_other = hypotheses.read_bytes() != written
        if "hypotheses" in texts and is_other:
            raise ConfigError(
                f"--output={path}: {hypotheses} exists, and the hypotheses would replace it; "
                "choose another name, or remove it"
            )
        return path

    def count(self, hypotheses: Sequence[str]) -> dict[str, Float[np.ndarray, "n _"]]:
        """Returns the statistics of each sentence, by measure."""
        return {name: each.collect(hypotheses, self._saved) for name, each in self.measures.items()}

    def save(self, path: Path, output: Output, passport: Passport) -> Evaluation:
        """Scores an output, and saves the scores and texts.

        Raises:
            RunError: they cannot be written.
        """
        test_set, documents = self._saved, self._saved.documents
        found = {
            name: measure.score_counts(output.counts[name], test_set, with_interval=True)
            for name, measure in self.measures.items()
        }
        for described in describe_empty_references(test_set.sources, test_set.references):
            _log.warning(described)
        scores = {**found, **output.scores}
        measures = {name: dataclasses.asdict(score) for name, score in scores.items()}
        all_texts = {**output.texts, **self._texts}
        for name, measure in self.measures.items():
            if measure.is_stored:  # systems are compared by it without its model
                measures[name] |= {
                    "higher_is_better": measure.higher_is_better,
                    "limits": [*measure.limits],
                }
                stored = output.counts[name][:, 0].tolist()
                all_texts[name_segment_scores(name)] = [*map(repr, stored)]
        by_kind = score_kinds(output.counts, self.measures, test_set)
        empty = count_empty_references(test_set.sources, test_set.references[0])
        names = name_texts(path, self.split, self.test_set.fingerprint, self._named)
        result: dict[str, Any] = {
            **{name: found[name].value for name in ("bleu", "chrf") if name in found},
            "measures": measures,
            **({"kinds": by_kind} if by_kind else {}),
            "interval": describe_intervals(test_set.unit),
            "num_sentences": len(test_set.sources),
            **({} if documents is None else {"num_documents": int(documents.max()) + 1}),
            "num_empty_references": empty,
            **output.facts,
            "date": now(),
            **find_commit(),
            "passport": write_passport(passport),
            "texts": {name: file for name, file in names.items() if name in all_texts},
        }
        if not is_first():
            return Evaluation(path, result)
        with explain_write_errors(RunError, path):
            return save_evaluation(path, result, all_texts)


def open_scores(
    request: TextRequest,
    split: str,
    data: DataConfig,
    tokenizer: TokenizerConfig,
    test_set: TestSet | None = None,
) -> TextScores:
    """Opens the texts that the request names, or else a split of `data`, with their measures.

    `test_set` are the texts, if they are open already.

    Raises:
        ConfigError, DataError: a text is missing, or a measure means nothing for it.
        MeasureError: a tokeniser is not installed.
    """
    test_set = test_set or open_texts(
        data, split, src=request.src, ref=request.ref, testset=request.testset,
        segments=request.segments, kinds=request.kinds, tokenizer=tokenizer,
    )  # fmt: skip
    language = request.tgt_language or data.tgt_language or test_set.tgt_language
    references = test_set.references
    spaces = have_spaces(language, *references)
    possible = list_measures(
        language, data.source.split("+"),
        spaces=spaces, lowercase=tokenizer.lowercase, kind=tokenizer.kind,
    )  # fmt: skip
    models, count = request.measure_model, len(references)
    chosen = choose_measures(request.measures, possible, language, models)
    measures = {name: make_measure(name, language, count, models) for name in chosen}
    facts = {
        "objective": TRANSLATION,
        "direction": "-".join(filter(None, (data.src_language, data.tgt_language))),
        "tgt_language": language,
        **({"testset": request.testset} if request.testset else {}),
        **name_task(data),
    }
    return TextScores(test_set, measures, facts, spaces=spaces)


def name_task(data: DataConfig) -> dict[str, str]:
    """Returns the fact that names the task of a mixture, which one of its runs learns."""
    return {"task": data.task} if data.mixture else {}


def choose_measures(
    asked: Sequence[str], possible: Sequence[str], language: str, models: Mapping[str, Path]
) -> list[str]:
    """Returns the measures to compute.

    "default" stands for the possible ones but `ON_REQUEST` and those that lack their model in
    `models` (--measure_model).

    Raises:
        ConfigError: one is unknown, is none of the possible ones or lacks its model, or there is a
            model for a measure that needs none.
    """
    perplexity = REFERENCE_MEASURES[0]  # every evaluation of a run has it, asked for or not
    known = "default", *choices(MEASURE_FIELD), perplexity
    if unknown := [name for name in (*asked, *models) if name not in known]:
        raise ConfigError(
            f"measure {','.join(unknown)} is unknown; use some of {', '.join(known)}; "
            "--plugins names the module that registers another"
        )
    asked = [name for name in asked if name != perplexity]
    on_request = {*ON_REQUEST, *filter(needs_model, possible)} - models.keys()
    default = [name for name in possible if name not in on_request]
    listed = [default if name == "default" else [name] for name in asked]
    chosen = [*dict.fromkeys(itertools.chain.from_iterable(listed))]
    if meaningless := [name for name in chosen if name not in possible]:
        raise ConfigError(
            f"measure {meaningless[0]} means nothing for these texts with "
            f"--tgt_language={language}; use one of {', '.join(possible)}"
        )
    for name in (*chosen, *models):
        check_model(name, models)
    if slashed := [name for name in chosen if "/" in name]:
        raise ConfigError(
            f"measure {slashed[0]!r} is a part of file names, which have no /; register another"
        )
    return chosen
