"""Generates the sentence pairs of a split."""

import random

from t2t.phrasebook.sampler_sentences import SentenceSampler
from t2t.phrasebook.splits import split_of

SIZES = {"train": 40_000, "validation": 500, "test": 1_000, "long": 500}
TRIES = 10_000  # consecutive samples without a new pair before a split counts as exhausted


def generate(split: str, size: int | None = None, seed: int = 0) -> list[tuple[str, str]]:
    """Generates distinct (English, German) pairs of "train", "validation", "test" or "long".

    The sentences of "long" are longer than all sentences of the other splits, in both languages.
    `size` defaults to `SIZES[split]`. The pairs depend only on the arguments, not on the machine.
    Another seed gives other pairs, but a sentence belongs to the same split for every seed.

    Raises:
        ValueError: the split is unknown, or `size` is negative or larger than the number of pairs
            that the grammar yields.
    """
    if split not in SIZES:
        raise ValueError(
            f"split={split!r} is not a split of the phrasebook; use {', '.join(SIZES)}"
        )
    size = SIZES[split] if size is None else size
    if size < 0:
        raise ValueError(f"size={size} is negative; use 0 or more, or None for {SIZES[split]}")
    sampler = SentenceSampler(random.Random(f"phrasebook {split} {seed}"), novel=split != "train")
    draw = sampler.long_sentence if split == "long" else sampler.sentence
    pairs: dict[str, str] = {}  # by German, so that no sentence repeats in either language
    tries = 0
    while len(pairs) < size:
        pair = draw()
        tries += 1
        if split_of(pair) == split and pair.german not in pairs:
            pairs[pair.german] = pair.english
            tries = 0
        elif tries == TRIES:
            raise ValueError(
                f"size={size} is more than the phrasebook's split {split!r} yields: {len(pairs)} "
                f"pairs, then none in {TRIES} tries; use size={len(pairs)} or less"
            )
    return [(english, german) for german, english in pairs.items()]
