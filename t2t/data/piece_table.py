"""The ids of an imported vocabulary, by the texts of its pieces."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID

SPACE = "\u2581"  # "▁", which SentencePiece writes for a space
SPECIAL = {PAD_ID: "<pad>", BOS_ID: "<s>", EOS_ID: "</s>", UNK_ID: "<unk>"}


class AddedPiece(NamedTuple):
    """A piece that is cut out of a text before its segmentation, like `AddedToken`."""

    text: str
    id: int
    normalized: bool = False  # it is searched for in normalised text
    single_word: bool = False  # only between characters that are no letters or digits
    lstrip: bool = False  # the space before it belongs to it
    rstrip: bool = False  # the space after it belongs to it
    special: bool = False  # it stands for no text: translations do not show it


@dataclasses.dataclass(frozen=True)
class PieceTable:
    """Ids from 0 to `size` - 1. An id that no part of the table has is a row without a piece."""

    size: int
    pieces: Mapping[str, int]  # of which text is made
    symbols: Mapping[str, int]  # tags and others, which no text is segmented to; without `SPECIAL`
    added: Sequence[AddedPiece] = ()
    keeps_space: bool = False  # a space before an added piece is a piece, as in NLLB
    has_tasks: bool = False  # a text may begin with what to do with it, as T5's and MADLAD's
    special: Sequence[str] = ()  # the original's names of those of `SPECIAL` that it has
    codes: Sequence[str] = ()  # the original's names of languages, for which there are tags

    ERRORS: ClassVar = (ValueError, TypeError, KeyError, AttributeError)  # of `parse`

    def has_symbol(self, name: str) -> bool:
        """Returns whether the original reads a name as a symbol, and not as text."""
        return name in self.special or name in self.symbols

    def dump(self) -> bytes:
        """Returns the content of the file beside the SentencePiece model."""
        values = dataclasses.asdict(self) | {"added": [each._asdict() for each in self.added]}
        return (json.dumps(values, ensure_ascii=False) + "\n").encode()

    @classmethod
    def parse(cls, content: bytes) -> "PieceTable":
        """Reads what `dump` returned; raises one of `ERRORS` if it is damaged."""
        values = json.loads(content)
        added = tuple(AddedPiece(**each) for each in values.pop("added"))
        table = cls(**values, added=added)
        ids = {*table.pieces.values(), *table.symbols.values(), *(each.id for each in added)}
        if not all(type(i) is int and 0 <= i < table.size for i in ids):
            raise ValueError("an id is outside of the table")
        return table
