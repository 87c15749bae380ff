"""The grammar of the phrasebook, and the file that it makes."""

import gzip

import pytest

from tools.phrasebook.__main__ import OUTPUT, make_rows
from tools.phrasebook.entries import COMPOUNDS
from tools.phrasebook.generation import SIZES
from tools.phrasebook.skeletons import list_skeletons
from tools.phrasebook.splits import is_held_out


@pytest.fixture(scope="module")
def rows() -> list[str]:
    return gzip.decompress(OUTPUT.read_bytes()).decode().splitlines(keepends=True)


@pytest.mark.parametrize("size", [500, pytest.param(None, marks=pytest.mark.slow)])
def test_grammar_makes_the_rows_of_the_package(rows: list[str], size: int | None) -> None:
    """Rows, not compressed bytes, which another version of zlib may make differently."""
    for split, whole in SIZES.items():
        found = [row for row in rows if row.startswith(f"{split}\t")]
        assert len(found) == whole
        assert make_rows(split, size or whole) == found[:size]


def test_train_has_none_of_the_held_out_compounds(rows: list[str]) -> None:
    held_out = {noun.german.lower() for noun in COMPOUNDS if is_held_out(noun)}
    words: dict[str, set[str]] = {split: set() for split in SIZES}
    for row in rows:
        split, _, german, _ = row.split("\t")
        words[split].update(word.strip(".,?") for word in german.lower().split())
    assert not held_out & words["train"]
    assert len(held_out & words["test"]) > 10


def test_skeletons_tell_what_agrees_from_what_does_not() -> None:
    """Other words with the same inflection make no difference."""
    right = list_skeletons("Der Mann, der den kleinen Hund sieht, schläft.")
    assert right == list_skeletons("Der Vater, der den großen Stuhl kauft, schläft.")
    for wrong in (
        "Der Mann, die den kleinen Hund sieht, schläft.",
        "Der Mann, der der kleinen Hund sieht, schläft.",
        "Der Mann, der den kleines Hund sieht, schläft.",
        "Der Mann, der den kleinen Hund sehen, schläft.",
    ):
        assert list_skeletons(wrong) != right
