"""Run directories with evaluations, as `t2t.evaluate` leaves them, of texts that are given."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2t.config.fields import DataConfig
from t2t.data.corpus import ListCorpus
from t2t.evaluation.measures import Measure, Score, Statistics, TestSet
from t2t.evaluation.passport import read_passport, write_passport
from t2t.evaluation.predictions import make_measures
from t2t.evaluation.saved_evaluations import (
    Evaluation,
    load_evaluation,
    name_texts,
    save_evaluation,
)
from t2t.evaluation.text_measures import make_measure

SIZES = [1 + number % 24 for number in range(48)]  # more sentences than an interval needs
SOURCES = [f"{'a ' * (3 * size)}dog ." for size in SIZES]
REFERENCES = [
    f"Der {'große ' * size}Hund {number} läuft am Strand ." for number, size in enumerate(SIZES)
]


def write(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(path)


def pair(references: Sequence[str], *others: Sequence[str]) -> TestSet:
    """A test set of these references, whose sources count for nothing."""
    return TestSet([""] * len(references), [references, *others])


def collect(measure: Measure, system: Sequence[Sequence[str]], test_set: TestSet) -> Statistics:
    """The statistics of each seed's translations."""
    return np.stack([measure.collect(hypotheses, test_set) for hypotheses in system])


def spoil(every: int, lines: Sequence[str] = REFERENCES) -> list[str]:
    """One sentence of so many is wrong."""
    return [
        "Eine Katze schläft ." if number % every == 0 else line for number, line in enumerate(lines)
    ]


def drop_words(share: float, seed: int) -> list[str]:
    """The references without this share of their words."""
    draw = random.Random(seed).random
    words = ([word for word in line.split() if draw() > share] for line in REFERENCES)
    return [" ".join(each) for each in words]


def score_corpus(
    hypotheses: Sequence[str], test_set: TestSet, language: str, names: Sequence[str]
) -> dict[str, Score]:
    measures = {name: make_measure(name, language, len(test_set.references)) for name in names}
    return {name: measure.score(hypotheses, test_set) for name, measure in measures.items()}


def describe(scores: Mapping[str, Score], count: int, **changes: Any) -> dict[str, Any]:
    """The JSON of an evaluation of so many sentences, without its texts."""
    return {
        "measures": {key: dataclasses.asdict(score) for key, score in scores.items()},
        "num_sentences": count,
        "config": {},
        "checkpoint": "100",
        "split": "test",
        "date": "2026-01-01T00:00:00Z",
        "tgt_language": "de",
        "beam_size": 4,
        "alpha": 0.6,
        **changes,
    }


def save(
    run: Path,
    hypotheses: Sequence[str],
    *,
    name: str = "test-100",
    sources: Sequence[str] = SOURCES,
    references: Sequence[str] = REFERENCES,
    nats: float | None = None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> Evaluation:
    """In `run`/evaluations; `changes` are fields of the JSON, `facts` of sections of its passport.

    With `nats` each reference has nine sub-words of so many nats, more or less.
    """
    corpus = ListCorpus("test", [*zip(sources, references, strict=True)]).fingerprint()
    measures = "bleu", "bleu_lowercase", "exact_match"
    language = changes.get("tgt_language", "de")
    scores = score_corpus(hypotheses, TestSet(sources, [references]), language, measures)
    result = describe(scores, len(references), **{"corpus": corpus, **changes})
    if facts is not None:
        sections = write_passport(read_passport(result))
        result["passport"] = {name: {**sections.get(name, {}), **facts.get(name, {})}
                              for name in {**sections, **facts}}  # fmt: skip
    path = run / "evaluations" / f"{name}.json"
    texts = {"hypotheses": hypotheses, "sources": sources, "references": references}
    if nats is not None:
        texts["log_probs"] = [f"{-9 * nats - n % 3 / 10:.6f} 9" for n in range(len(references))]
    result["texts"] = name_texts(path, result["split"], result["corpus"], texts)
    save_evaluation(path, result, texts)
    return load_evaluation(path)


def save_predictions(
    run: Path,
    nats: float,
    *,
    objective: str = "lm",
    predicted: str = "all sub-words",
    tokens: int = 9,
    texts: Sequence[str] = REFERENCES,
    left_out: int | None = None,
    name: str = "test-100",
    **changes: Any,
) -> Evaluation:
    """As `save`, of a run on text alone: so many nats for each sub-word, more or less.

    Text number `left_out` is too long for the model.
    """
    numbers = np.arange(len(texts))
    right = np.full(len(texts), tokens - round(nats))
    counts = np.stack([tokens * nats + numbers % 3 / 10, np.full(len(texts), tokens), right], -1)
    if left_out is not None:
        counts[left_out] = np.nan, 0, 0
    scored = counts[counts[:, 1] > 0]
    measures = make_measures(
        DataConfig(objective=objective), predicted, len(counts) - len(scored)
    ).items()
    own = pair(texts)
    scores = {name: each.score_counts(scored, own, with_interval=True) for name, each in measures}
    facts = {"tgt_language": "", "objective": objective, "beam_size": None, "alpha": None}
    result = describe(scores, len(texts), **{**facts, **changes})
    path = run / "evaluations" / f"{name}.json"
    endings = {"log_probs": "log_probs", "references": "ref", "right": "right"}
    result["texts"] = {key: f"{path.stem}.{ending}.txt" for key, ending in endings.items()}
    lines = {
        "log_probs": [f"{-nats:.6f} {count:.0f}" for nats, count, _ in counts],
        "references": texts,
        "right": [f"{right:.0f}" for *_, right in counts],
    }
    save_evaluation(path, result, lines)
    return load_evaluation(path)
