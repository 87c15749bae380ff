"""Short and long sentences apart, as numbers and as a picture."""

import pytest

from t2t.evaluation.measures import make_measure
from t2t.evaluation.significance import Bucket, score_by_length
from tests.evaluation.saved_evaluations import collect, pair, spoil

LENGTHS = [0, 1, 10, 11, 20, 41, 50, 51, 400]
SOURCES = [" ".join(["w"] * length) for length in LENGTHS]
REFERENCES = [f"Der Hund {length} läuft am Strand ." for length in LENGTHS]
EXPECTED = {"1-10": [0, 1, 2], "11-20": [3, 4], "41-50": [5, 6], "51+": [7, 8]}


def score_buckets(name: str, systems: dict[str, list[list[str]]]) -> list[Bucket]:
    measure = make_measure(name, "de")
    counted = {
        system: collect(measure, texts, pair(REFERENCES)) for system, texts in systems.items()
    }
    return score_by_length(measure, counted, SOURCES)


def test_sentences_are_grouped_by_the_words_of_their_source() -> None:
    systems = {"good": [REFERENCES], "bad": [spoil(2, REFERENCES), REFERENCES]}
    buckets = score_buckets("exact_match", systems)
    assert {bucket.words: bucket.indices for bucket in buckets} == EXPECTED
    for bucket in buckets:
        wrong = sum(index % 2 == 0 for index in bucket.indices)
        assert bucket.scores["good"].value == 100
        assert bucket.scores["good"].over_sentences is None, "too few for an interval"
        assert bucket.scores["bad"].value == pytest.approx(
            100 - 100 * wrong / len(bucket.indices) / 2
        )
