"""The tokenizer of an imported model: a SentencePiece model with the ids of a table."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2t.data.batch import UNK_ID
from t2t.data.corpus import DataError
from t2t.data.piece_table import PieceTable, TableProcessor
from t2t.data.tokenizer import Tokenizer, VocabularyError
from t2t.storage.paths import describe_error

_SYMBOL = re.compile(r"<(?:/?s|pad|unk|mask|extra_id_\d+)>")
# The task at the beginning of a text of T5, or the target language of MADLAD-400.
_TASK = re.compile(r"\s*(?:(?:translate\b[^:]{0,60}|summarize): |<2[A-Za-z_]+>)", re.IGNORECASE)
# The code of a language at the beginning of a text, as the original models have it.
_CODE = re.compile(r">>(\S+?)<<|__(\w+?)__(?=\s)|([a-z]{3}_[A-Z][a-z]{3})(?=\s)")


class ImportedTokenizer(Tokenizer):
    """A SentencePiece model whose pieces have the ids of a table."""

    _has_warned = False  # of special symbols in a text
    _model_ids: Mapping[str, int] = {}  # any: those of the table count
    _processor: TableProcessor

    def __init__(self, model: bytes, origin: str, table: PieceTable):
        super().__init__(model, origin)
        self._processor = TableProcessor(self._processor, table)
        self.table, self.table_file, self.vocab_size = table, table.dump(), table.size

    @classmethod
    def parse(cls, model: bytes, path: Path, table: Path) -> "ImportedTokenizer":
        """Reads the table beside the model of a file."""
        try:
            read = PieceTable.parse(table.read_bytes())
        except (OSError, *PieceTable.ERRORS) as error:
            raise VocabularyError(
                f"{table} cannot be read: {describe_error(error)}; restore it from a copy of the "
                "run directory"
            ) from None
        return cls(model, str(path), read)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """As in `Tokenizer`; warns of special symbols that a text spells.

        Raises:
            DataError: a sentence begins with the code of a language, for which a tag stands.
        """
        for sentence in sentences:
            if not self._has_warned and (symbol := _SYMBOL.search(sentence)):
                logging.warning(
                    "%r spells the special symbol %s, which is text here, and a symbol in "
                    "transformers; other such lines are not named", sentence[:40], symbol[0],
                )  # fmt: skip
                self._has_warned = True
            found = _CODE.match(sentence.lstrip()) if self.tag_ids else None
            language = next(filter(None, found.groups())) if found else ""
            if found and self._processor.piece_to_id(f"<2{language}>") != UNK_ID:
                raise DataError(
                    f"{sentence[:40]!r} begins with the code of a language; remove {found[0]} from "
                    "the text: the tag of the direction stands for it (--direction, "
                    "data.directions)"
                )
        return super().encode(sentences)

    def find_task(self, sentence: str) -> str:
        """As in `Tokenizer`: "translate English to German: " of T5."""
        found = _TASK.match(sentence)
        return found[0] if found else ""

    def is_plain(self, sentence: str) -> bool:
        """As in `Tokenizer`; nor is a sentence from which added pieces are cut out."""
        return super().is_plain(sentence) and not self._processor.has_added(sentence)


def find_table(tokenizer: Tokenizer) -> PieceTable | None:
    """Returns the table of an imported tokenizer; None for one that was trained here."""
    return tokenizer.table if isinstance(tokenizer, ImportedTokenizer) else None
