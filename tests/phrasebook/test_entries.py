"""Compounds and verbs as the lexicon's tables are read."""

import pytest

from t2t.phrasebook.entries import VERBS, Slot
from tests.phrasebook.phrases import noun, verb


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("kitchen table", "Küchentisch m Küchentische"),
        ("school clock", "Schuluhr f Schuluhren"),
        ("history book", "Geschichtsbuch n Geschichtsbücher"),
        ("cherry juice", "Kirschsaft m "),
        ("art student", "Kunststudent w Kunststudenten"),
    ],
)
def test_compounds_link_and_inflect_like_their_head(english: str, german: str) -> None:
    compound = noun(english)
    assert f"{compound.german} {compound.gender} {compound.plural}" == german


def test_verbs_have_the_frames_of_their_row() -> None:
    wait, sit = verb("warten"), verb("sitzen")
    assert wait.frames == ((Slot("for", "auf", "akk", ("person", "vehicle")),),)
    assert [(slot.german, slot.case) for (slot,) in sit.frames] == [
        ("auf", "dat"),
        ("unter", "dat"),
        ("neben", "dat"),
    ]


def test_animals_eat_with_another_verb() -> None:
    assert {v.german: v.subjects for v in VERBS if v.english == "eat"} == {
        "essen": ("person",),
        "fressen": ("animal",),
    }
