"""The promises of the splits: sizes, no overlap, long sentences, held-out compounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t2t.phrasebook import SIZES, generate
from t2t.phrasebook.entries import COMPOUNDS
from t2t.phrasebook.numbers import german_number, year
from t2t.phrasebook.sampler_sentences import SentenceSampler
from t2t.phrasebook.splits import MAX_WORDS, is_held_out, split_of
from t2t.phrasebook.text import Text

ROOT = Path(__file__).parents[2]

Splits = dict[str, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def splits() -> Splits:
    """All splits at full size, from another process: checked at run time they would be slow."""
    program = (
        "import json; from t2t.phrasebook import SIZES, generate; "
        "print(json.dumps({split: generate(split) for split in SIZES}))"
    )
    corpus = json.loads(run_python(program))
    return {split: [(en, de) for en, de in pairs] for split, pairs in corpus.items()}


def run_python(program: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_generation_is_deterministic_and_seeded() -> None:
    pairs = generate("test", 20)
    assert generate("test", 10) == pairs[:10]
    assert generate("test", 10, seed=1) != pairs[:10]


def test_generation_does_not_depend_on_the_hash_seed() -> None:
    program = "from t2t.phrasebook import generate; print(ascii(generate('train', 20)))"
    outputs = [run_python(program, PYTHONHASHSEED=hash_seed) for hash_seed in ("1", "2")]
    assert outputs == [ascii(generate("train", 20))] * 2


def test_splits_have_their_sizes_and_no_sentence_twice(splits: Splits) -> None:
    assert {split: len(pairs) for split, pairs in splits.items()} == SIZES
    for language in (0, 1):
        sentences = [pair[language] for pairs in splits.values() for pair in pairs]
        assert len(sentences) == len(set(sentences))


def test_another_seed_does_not_move_sentences_between_splits(splits: Splits) -> None:
    test = generate("test", 100, seed=1)
    for language in (0, 1):
        train = {pair[language] for pair in splits["train"]}
        assert not train & {pair[language] for pair in test}


def test_long_sentences_exceed_all_others_in_both_languages(splits: Splits) -> None:
    lengths = {
        split: [len(text.split()) for pair in pairs for text in pair]
        for split, pairs in splits.items()
    }
    assert all(max(lengths[split]) <= MAX_WORDS for split in ("train", "validation", "test"))
    assert min(lengths["long"]) > MAX_WORDS


def test_words_of_test_occur_in_train_unless_compounds_or_numbers(splits: Splits) -> None:
    numbers = {german_number(n) for n in range(10_000)}
    numbers |= {word for n in range(1900, 2000) for word in year(n).german.split()}
    unseen = german_words(splits, "test") - german_words(splits, "train") - numbers
    novel = [form.lower() for n in COMPOUNDS for form in (n.german, n.plural) if form]
    assert [word for word in unseen if not any(word.startswith(form) for form in novel)] == []


def test_train_has_none_of_the_held_out_compounds(splits: Splits) -> None:
    held_out = {noun.german.lower() for noun in COMPOUNDS if is_held_out(noun)}
    assert not held_out & german_words(splits, "train")
    assert len(held_out & german_words(splits, "test")) > 10


def german_words(splits: Splits, split: str) -> set[str]:
    return {word.strip(".,?").lower() for _, german in splits[split] for word in german.split()}


def test_sentences_are_capitalised_and_end_once(splits: Splits) -> None:
    for text in (text for pairs in splits.values() for pair in pairs for text in pair):
        assert text[0].isupper()
        assert text[-1] in ".?"
        assert not any(slip in text for slip in ("  ", " ,", ",,", ",.", ",?"))


def test_unknown_split_names_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"split='dev'.*train, validation, test, long"):
        generate("dev")


def test_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="size=-1 is negative"):
        generate("test", -1)


def test_size_beyond_the_grammar_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Text("He sings.", "Er singt.")
    monkeypatch.setattr(SentenceSampler, "sentence", lambda _: one)
    split = split_of(one)
    assert split is not None
    with pytest.raises(ValueError, match="size=2 is more than"):
        generate(split, 2)
