"""Segments text by a SentencePiece model, then looks up the ids of the pieces in a table.

`transformers` finds the id of a piece by its text. So a piece that only the table has is found
where SentencePiece returns its text as unknown, and a piece that the table lacks is UNK.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t2t.data.batch import EOS_ID, UNK_ID
from t2t.data.piece_table import SPACE, SPECIAL, AddedPiece, PieceTable


class TableProcessor:
    """A SentencePiece model with the ids of a table; its methods have the names of a model's."""

    def __init__(self, model: Any, table: PieceTable):
        """`model` is a `SentencePieceProcessor` with ids of its own."""
        self._model, self.table = model, table
        added = {each.text: each.id for each in table.added}
        self._ids = {**added, **table.pieces, **table.symbols}
        self._names = {i: name for name, i in self._ids.items()} | SPECIAL
        silent = {*SPECIAL, *table.symbols.values()} | {a.id for a in table.added if a.special}
        self._texts = self._names.keys() - silent
        self._raw = _Splitter({a.text: a for a in table.added if not a.normalized})
        self._normalized = _Splitter(
            {self._normalize(a.text): a for a in table.added if a.normalized}
        )

    def encode_as_pieces(self, text: str) -> list[str]:
        """Returns the pieces of a text without the added ones."""
        parts = [part for part in self._cut(text) if isinstance(part, str)]
        return [*itertools.chain.from_iterable(self._model.encode(parts, out_type=str))]

    def encode(self, texts: Sequence[str], add_eos: bool) -> list[list[int]]:
        """Returns the ids of each text."""
        cut_texts = [self._cut(text) for text in texts]
        plain = [part for parts in cut_texts for part in parts if isinstance(part, str)]
        segmented = iter(self._model.encode(plain, out_type=str))
        find, rows = self.table.pieces.get, []
        for parts in cut_texts:
            row: list[int] = []
            for part in parts:
                row += [find(p, UNK_ID) for p in next(segmented)] if isinstance(part, str) else part
            rows.append([*row, EOS_ID] if add_eos else row)
        return rows

    def _cut(self, text: str) -> list[str | list[int]]:
        """Cuts added pieces out of a text: strings are segmented, lists are ids already."""
        parts: list[str | list[int]] = []
        is_open = False  # the space after an added piece belongs to it
        for part in self._split(text):
            if isinstance(part, str):
                parts.append(part.lstrip() if is_open else part)
                is_open = False
                continue
            before = parts[-1] if parts else []
            if isinstance(before, str) and part.lstrip:
                parts[-1] = before = before.rstrip()
            if self.table.keeps_space and before and self._ends_in_space(before):
                parts.append([self.table.pieces.get(SPACE, UNK_ID)])
            parts.append([part.id])
            is_open = part.rstrip
        return parts

    def _ends_in_space(self, part: str | list[int]) -> bool:
        return isinstance(part, str) and self._normalize(part).endswith(" ")

    def _split(self, text: str) -> "Iterator[str | AddedPiece]":
        """Yields added pieces and the text between them: pieces of raw text first."""
        for part in self._raw.split(text):
            if isinstance(part, str) and self._normalized.finds(normal := self._normalize(part)):
                yield from self._normalized.split(normal)
            else:
                yield part

    def _normalize(self, text: str) -> str:
        """Normalises a text, with the spaces at its ends."""
        return str(self._model.normalize(f"0{text}0")).replace(SPACE, " ").strip()[1:-1]

    def has_added(self, text: str) -> bool:
        """Returns whether an added piece is cut out of a text."""
        return self._cut(text) != [text]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids; rows without a piece, symbols and special ones have none."""
        return str(self._model.decode([self._names[i] for i in ids if i in self._texts])).strip(" ")

    def normalize(self, texts: Sequence[str]) -> list[str]:
        """Returns normalised texts, with "▁" for spaces."""
        found: list[str] = self._model.normalize(texts)
        return found

    def vocab_size(self) -> int:
        """Returns the number of ids."""
        return self.table.size

    def id_to_piece(self, token: int) -> str:
        """Returns the text of a piece, or another one for each row without a piece."""
        return self._names.get(token, f"<row {token}>")

    def piece_to_id(self, piece: str) -> int:
        """Returns the id of a piece; UNK if there is none."""
        return self._ids.get(piece, UNK_ID)

    def get_score(self, token: int) -> float:
        """Returns the score of a piece of the model."""
        return float(self._model.get_score(self._find(token)))

    def is_control(self, token: int) -> bool:
        """Returns whether an id stands for no text; UNK stands for some."""
        return token not in self._texts and token != UNK_ID

    def is_unknown(self, token: int) -> bool:
        """Returns whether an id is UNK."""
        return token == UNK_ID

    def is_unused(self, token: int) -> bool:
        """Returns whether the model does not segment text to a piece."""
        own = self._find(token)
        return bool(self._model.is_unknown(own) or self._model.is_unused(own))

    def is_byte(self, token: int) -> bool:
        """Returns whether a piece is a byte."""
        return bool(self._model.is_byte(self._find(token)))

    def _find(self, token: int) -> int:
        return int(self._model.piece_to_id(self.id_to_piece(token)))


class _Splitter:
    """Finds added pieces in a text: the leftmost one, of several the longest."""

    def __init__(self, pieces: Mapping[str, AddedPiece]):
        self._pieces = pieces
        ordered = sorted(filter(None, pieces), key=lambda text: -len(text))
        own = (
            rf"(?<!\w){re.escape(text)}(?!\w)" if pieces[text].single_word else re.escape(text)
            for text in ordered
        )
        self._pattern = re.compile(f"({'|'.join(own)})") if ordered else None

    def finds(self, text: str) -> bool:
        return bool(self._pattern and self._pattern.search(text))

    def split(self, text: str) -> "list[str | AddedPiece]":
        if not self._pattern:
            return [text]
        parts = enumerate(self._pattern.split(text))
        return [self._pieces[part] if n % 2 else part for n, part in parts if part]
