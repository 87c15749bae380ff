"""Generates the sentence pairs of a split."""

import random

from tools.phrasebook.sampler_sentences import SentenceSampler
from tools.phrasebook.splits import split_of

SIZES = {"train": 40_000, "validation": 500, "test": 1_000, "long": 500}


def generate(split: str, size: int) -> list[tuple[str, str]]:
    """Generates distinct (English, German) pairs of "train", "validation", "test" or "long".

    The sentences of "long" are longer than all sentences of the other splits, in both languages.
    The pairs depend only on the arguments, and fewer pairs are the first ones of more.
    """
    sampler = SentenceSampler(random.Random(f"phrasebook {split} 0"), novel=split != "train")
    draw = sampler.long_sentence if split == "long" else sampler.sentence
    pairs: dict[str, str] = {}  # by German, so that no sentence repeats in either language
    while len(pairs) < size:
        pair = draw()
        if split_of(pair) == split:
            pairs.setdefault(pair.german, pair.english)
    return [(english, german) for german, english in pairs.items()]
