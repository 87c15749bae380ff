"""The phrasebook: the embedded English-German corpus, made from a grammar by `tools/phrasebook`.

Each row of `phrasebook.tsv.gz` has four columns: the split, the English sentence, its German
translation, and the alignment of its nouns and adjectives.
"""

import gzip
import importlib.resources

from t2t.data.corpus import Corpus, ListCorpus, Pair
from t2t.data.parts import Part, Source

_LANGUAGES = ("en", "de")  # of the sentences of a row
SPLITS = ("train", "validation", "test", "long")


def open_phrasebook(part: Part, split: str) -> Corpus:
    """Opens a split in the direction of the part."""
    src, tgt = map(_LANGUAGES.index, part.languages)
    return ListCorpus(f"phrasebook, {split}", [(row[src], row[tgt]) for row in _read_rows(split)])


def read_pairs(split: str) -> list[Pair]:
    """The English and German sentences of a split."""
    return [(english, german) for english, german, _ in _read_rows(split)]


def read_links(split: str) -> list[set[tuple[int, int]]]:
    """For each pair, the links between its nouns and adjectives: English and German word, from 0.

    A link is known where a noun or an adjective is one word on each side and occurs once.
    Verbs and function words, whose German may be several words, have no known link.
    """
    return [
        {(int(src), int(tgt)) for src, tgt in (link.split("-") for link in links.split())}
        for _, _, links in _read_rows(split)
    ]


def _read_rows(split: str) -> list[list[str]]:
    file = importlib.resources.files("t2t.data") / "phrasebook.tsv.gz"
    text = gzip.decompress(file.read_bytes()).decode()
    rows = (row.split("\t") for row in text.splitlines())
    return [row[1:] for row in rows if row[0] == split]


SOURCE = Source(lambda _: SPLITS, open_phrasebook, languages=_LANGUAGES)
