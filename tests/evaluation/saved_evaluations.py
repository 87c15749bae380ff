"""Run directories with evaluations, as `t2t.evaluate` leaves them, of texts that are given."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2t.config.fields import DataConfig, DecodingConfig
from t2t.data.corpus import ListCorpus
from t2t.evaluation.kinds import score_kinds
from t2t.evaluation.measure import Measure, Score, Statistics, TestSet
from t2t.evaluation.passport import TRANSLATION
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


# Facts of a passport that `describe` takes by their names, with their sections.
_SECTIONS = {
    "checkpoint": "origin", "parameters": "origin", "split": "data", "tgt_language": "data",
    "objective": "data", "beam_size": "decoding",
}  # fmt: skip


def describe(scores: Mapping[str, Score], count: int, **changes: Any) -> dict[str, Any]:
    """The JSON of an evaluation of so many sentences, without its texts.

    `changes` are sections of its passport, facts of them, or other fields.
    """
    passport: dict[str, dict[str, Any]] = {
        "origin": {"run": "a run", "checkpoint": "100"},
        "data": {"split": "test", "objective": TRANSLATION, "tgt_language": "de"},
        "config": {"data.src_language": "en", "data.tgt_language": "de"},
        "decoding": dataclasses.asdict(DecodingConfig()),
        "backend": {"name": "jax", "devices": "cpu"},
        "code": {"t2t": "a hash", "plugins": "none"},
        "versions": {},
    }
    others = {"date": "2026-01-01T00:00:00Z"}
    for name, change in changes.items():
        if name in passport:
            passport[name] |= change
        elif name in _SECTIONS:
            passport[_SECTIONS[name]][name] = change
        else:
            others[name] = change
    if passport["data"]["objective"] != TRANSLATION:
        del passport["decoding"]
    measures = {key: dataclasses.asdict(score) for key, score in scores.items()}
    return {"measures": measures, "num_sentences": count, **others, "passport": passport}


def save(
    run: Path,
    hypotheses: Sequence[str],
    *,
    name: str = "test-100",
    sources: Sequence[str] = SOURCES,
    references: Sequence[str] = REFERENCES,
    nats: float | None = None,
    scores: Mapping[str, Score] | None = None,
    kinds: Sequence[str] | None = None,
    **changes: Any,
) -> Evaluation:
    """In `run`/evaluations; `changes` as of `describe`.

    With `nats` each reference has nine sub-words of so many nats, more or less.
    """
    corpus = ListCorpus("test", [*zip(sources, references, strict=True)]).fingerprint()
    test_set = TestSet(sources, [references])
    if scores is None:
        names = "bleu", "bleu_lowercase", "exact_match"
        scores = score_corpus(hypotheses, test_set, changes.get("tgt_language", "de"), names)
    result = describe(scores, len(references), **changes)
    path = run / "evaluations" / f"{name}.json"
    texts = {"hypotheses": hypotheses, "sources": sources, "references": references}
    if kinds:
        texts["kinds"] = kinds
        measures = {"bleu": make_measure("bleu", "de")}
        counts = {"bleu": measures["bleu"].collect(hypotheses, test_set)}
        result["kinds"] = score_kinds(counts, measures, test_set._replace(kinds=kinds))
    if nats is not None:
        texts["log_probs"] = [f"{-9 * nats - n % 3 / 10:.6f} 9" for n in range(len(references))]
    result["texts"] = name_texts(path, changes.get("split", "test"), corpus, texts)
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
    result = describe(scores, len(texts), objective=objective, tgt_language="", **changes)
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
