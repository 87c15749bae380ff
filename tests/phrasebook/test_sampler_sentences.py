"""What the sampler makes of its draws."""

import random

import pytest

from t2t.phrasebook.clauses import Complement
from t2t.phrasebook.noun_phrases import HE
from t2t.phrasebook.sampler_sentences import SentenceSampler
from tests.phrasebook.phrases import phrase, verb


@pytest.fixture
def sampler() -> SentenceSampler:
    return SentenceSampler(random.Random(0), novel=True)


def test_question_words_take_the_case_of_the_verb(sampler: SentenceSampler) -> None:
    whom = [
        sampler.question_word(Complement(HE, verb(v).frames[0][0])) for v in ("sehen", "helfen")
    ]
    assert whom == [("whom", "wen"), ("whom", "wem")]


def test_whom_something_is_given_gets_a_preposition(sampler: SentenceSampler) -> None:
    woman = phrase("woman")
    relatives = {sampler.relative(woman) for _ in range(300)}
    given = [text for text in relatives if text.english.startswith("to whom ")]
    assert given
    assert all(text.german.startswith(", der ") for text in given)
