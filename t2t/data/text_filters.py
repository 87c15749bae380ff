"""Filters of training pairs by their text (`data.filters`).

`batch_plan` has the filters by length and by the ratio of lengths.

Filters see sentences as the vocabulary spells them (`spelling`): pairs that differ only in what a
model does not see are equal. A filtered corpus is a corpus of the pairs that are kept, so
vocabulary, tokens and batches know nothing of filters. The text is read once: which filter drops
which pair is kept in the cache, under a hash of all that decides it.
"""

import functools
import hashlib
import io
import itertools
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from t2t.config.fields import TokenizerConfig
from t2t.data.cache_folders import show_progress
from t2t.data.corpus import Corpus, DataError, Pair, hash_strings
from t2t.data.spelling import SpelledCorpus, find_spelling
from t2t.storage.atomic_files import explain_write_errors, write_file

_log = logging.getLogger(__name__)

_SAMPLE = 10_000  # pairs by which the script of a side is found
# Scripts that one language mixes, by the first word of their characters' Unicode names, after the
# width: "HALFWIDTH KATAKANA LETTER TE".
_CJK = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"}

Filter = Callable[[Pair], bool]  # whether a pair is dropped


def drop_duplicates(_: Sequence[Corpus], __: Sequence[Corpus]) -> Filter:
    """Drops pairs that equal an earlier pair of any corpus."""
    seen: set[bytes] = set()

    def is_dropped(pair: Pair) -> bool:
        digest = hashlib.blake2b("\0".join(pair).encode(), digest_size=8).digest()
        is_known = digest in seen
        seen.add(digest)
        return is_known

    return is_dropped


def is_identical(pair: Pair) -> bool:
    """Returns whether the sides of a pair are equal, apart from case."""
    return pair[0].casefold() == pair[1].casefold()


def drop_foreign_scripts(corpora: Sequence[Corpus], _: Sequence[Corpus]) -> Filter:
    """Drops pairs with a side most of whose letters are not of the script of that side.

    The script of a side is the one that most letters have in the first pairs of all corpora. Han,
    kana and hangul count as one.
    """
    shares = [Counter[str](), Counter[str]()]
    for corpus in corpora:
        for pair in corpus.read(0, min(_SAMPLE, len(corpus))):
            for share, text in zip(shares, pair, strict=True):
                share.update(_count_scripts(text))
    sides = _find_sides(corpora)
    for side in sides:
        if corpora and not shares[side]:
            raise DataError(
                f"data.filters=script: the first {_SAMPLE:,} pairs of each corpus have no letters "
                f"on the {('source', 'target')[side]} side; leave the filter out, or shuffle the "
                "corpus"
            )
    usual = {side: shares[side].most_common(1)[0][0] for side in sides}

    def is_dropped(pair: Pair) -> bool:
        counts = {side: _count_scripts(pair[side]) for side in sides}
        return any(2 * counts[side][usual[side]] < counts[side].total() for side in sides)

    return is_dropped


def drop_overlap(_: Sequence[Corpus], held_out: Sequence[Corpus]) -> Filter:
    """Drops pairs of which a side is a sentence of another split than train, on its side."""
    if not held_out:
        _log.warning("data.filters=overlap drops nothing: there is no split but train")
    known: dict[int, set[str]] = {side: set() for side in _find_sides(held_out)}
    for pair in itertools.chain.from_iterable(held_out):
        for side, texts in known.items():
            texts.add(pair[side])
    for texts in known.values():
        texts.discard("")  # a blank line is no sentence
    return lambda pair: any(pair[side] in texts for side, texts in known.items())


def _find_sides(corpora: Sequence[Corpus]) -> tuple[int, ...]:
    """The sides of pairs that have text: both, or the target alone."""
    return corpora[0].sides if corpora else Corpus.sides


# By name; a pair counts for the first of `data.filters` that drops it. Increase the number of a
# filter when it drops other pairs than before: caches keep what it drops.
FILTERS: Mapping[str, tuple[int, Callable[[Sequence[Corpus], Sequence[Corpus]], Filter]]] = {
    "duplicates": (3, drop_duplicates),
    "identical": (3, lambda *_: is_identical),
    "script": (3, drop_foreign_scripts),
    "overlap": (3, drop_overlap),
}


@functools.cache
def _find_script(character: str) -> str:
    """The script of a letter; "" for other characters."""
    if not character.isalpha():
        return ""
    name = unicodedata.name(character, "")
    script = name.removeprefix("HALFWIDTH ").removeprefix("FULLWIDTH ").partition(" ")[0]
    return "CJK" if script in _CJK else script


def _count_scripts(text: str) -> Counter[str]:
    counts = Counter(map(_find_script, text))
    del counts[""]
    return counts


class FilteredCorpus(Corpus):
    """The pairs of a corpus that no filter drops."""

    def __init__(
        self,
        corpus: Corpus,
        names: Sequence[str],
        marks: UInt8[np.ndarray, "pairs"],
        identity: str,
    ):
        """`marks`: 0 for a pair that is kept, n for one that the n-th of the filters drops."""
        self._corpus, self._marks, self._identity = corpus, marks, identity
        counts = np.bincount(marks, minlength=len(names) + 1)[1:].tolist()
        self.dropped = dict(zip(names, counts, strict=True))
        self.name, self.sides = corpus.name, corpus.sides
        self.tag, self.prefix = corpus.tag, corpus.prefix

    def __len__(self) -> int:
        return len(self._corpus) - sum(self.dropped.values())

    def read(self, start: int, stop: int) -> list[Pair]:
        """The kept pairs [start, stop)."""
        numbers = self.kept[start:stop].tolist()
        if not numbers:
            return []
        first = numbers[0]
        pairs = self._corpus.read(first, numbers[-1] + 1)
        return [pairs[number - first] for number in numbers]

    def fingerprint(self) -> str:
        """A hash of the corpus, of the filters, and of all texts that they look at."""
        return hash_strings("filtered", self._identity, self._corpus.fingerprint())

    def read_dropped(self, name: str, count: int) -> list[Pair]:
        """The first `count` pairs that a filter drops."""
        mark = 1 + list(self.dropped).index(name)
        return [self._corpus[i] for i in np.flatnonzero(self._marks == mark)[:count].tolist()]

    @functools.cached_property
    def kept(self) -> Int[np.ndarray, "kept"]:
        """The numbers of the kept pairs in the corpus, from 0."""
        return np.flatnonzero(self._marks == 0).astype(np.int32)


def filter_corpora(
    corpora: Sequence[Corpus],
    names: Sequence[str],
    held_out: Sequence[Corpus],
    cache: Path,
    tokenizer: TokenizerConfig,
) -> list[Corpus]:
    """Returns the training corpora without the pairs that the filters of these names drop.

    `held_out` are the corpora of the splits other than train, for "overlap"; else there are none.

    Raises:
        ConfigError: the vocabulary that `tokenizer.path` names cannot be read.
        DataError: the filters drop all pairs of a corpus, or the cache cannot be written.
    """
    spelling = find_spelling(tokenizer)
    texts = [corpus.fingerprint() for corpus in (*corpora, *held_out)]
    versions = [f"{name} {FILTERS[name][0]}" for name in names]
    identity = hash_strings(spelling.identity, *versions, str(len(corpora)), *texts)
    stem = cache / "filters" / identity[:32]
    paths = [stem.with_suffix(f".{number}.npy") for number in range(len(corpora))]
    known = [_read_marks(path, len(each)) for path, each in zip(paths, corpora, strict=True)]
    marks = [each for each in known if each is not None]
    if len(marks) < len(corpora):
        spelled, others = (
            [SpelledCorpus(corpus, spelling) for corpus in side] for side in (corpora, held_out)
        )
        marks = [*_mark(spelled, others, names)]
        with explain_write_errors(DataError, f"data.cache_directory={cache}"):
            for path, each in zip(paths, marks, strict=True):
                np.save(file := io.BytesIO(), each)
                write_file(path, file.getvalue())
    filtered = [
        FilteredCorpus(corpus, names, each, identity)
        for corpus, each in zip(corpora, marks, strict=True)
    ]
    for corpus in filtered:
        if not len(corpus):
            counts = ", ".join(f"{count} {name}" for name, count in corpus.dropped.items())
            raise DataError(
                f"data.filters={tuple(names)} drop all pairs of {corpus.name}: {counts}; "
                "remove a filter, or this corpus"
            )
    return [*filtered]


def _read_marks(path: Path, length: int) -> UInt8[np.ndarray, "pairs"] | None:
    """The marks of a corpus's pairs; None if they are not in the cache, or damaged there."""
    try:
        marks: np.ndarray = np.load(io.BytesIO(path.read_bytes()))
    except (OSError, ValueError, EOFError):
        return None
    return marks if marks.shape == (length,) else None


def _mark(
    corpora: Sequence[Corpus], held_out: Sequence[Corpus], names: Sequence[str]
) -> Iterator[UInt8[np.ndarray, "pairs"]]:
    """Yields the marks of each corpus's pairs; blank ones are left to the filter of lengths."""
    filters = [FILTERS[name][1](corpora, held_out) for name in names]
    with show_progress("filtering", sum(map(len, corpora))) as bar:
        for corpus in corpora:
            marks = np.zeros(len(corpus), np.uint8)
            for index, pair in enumerate(corpus):
                drops = (n for n, is_dropped in enumerate(filters, start=1) if is_dropped(pair))
                marks[index] = next(drops, 0) if "".join(pair).strip() else 0
                bar.update()
            yield marks
