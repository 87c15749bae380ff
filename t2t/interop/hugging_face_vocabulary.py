"""Turns the vocabularies of `transformers` into SentencePiece models with this project's ids.

Ids are permuted, so that PAD, BOS, EOS and UNK are 0 to 3. The segmentation of text stays that of
the original model: its pieces keep their scores, and pieces that only the other language's model
has are marked unused. `Rows` says which row of the original's embedding tables each id has.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece
from jaxtyping import Bool, Int
from sentencepiece import sentencepiece_model_pb2 as spm

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.interop.hugging_face_folder import SourceError, read_json
from t2t.storage.atomic_files import write_file
from t2t.storage.paths import describe_error

IDS_FILE = "original_ids.json"  # in the folder vocab/ of an imported run
NO_ROW = -1
_SPECIAL = {PAD_ID: "<pad>", BOS_ID: "<s>", EOS_ID: "</s>", UNK_ID: "<unk>"}
_Kind = spm.ModelProto.SentencePiece.Type


class Rows(NamedTuple):
    """How the ids of an imported vocabulary belong to the rows of the original's tables."""

    row: Int[np.ndarray, "V"]  # the original's id; NO_ROW: it has none
    # False: no output of the original. Its row is a copy of another (of UNK, for a piece to which
    # the original gives UNK's id), or it has none.
    is_output: Bool[np.ndarray, "V"]

    def save(self, directory: Path) -> None:
        """Writes the original's ids beside the vocabulary, for the way out."""
        values = {"ids": self.row.tolist(), "is_output": self.is_output.tolist()}
        write_file(directory / IDS_FILE, json.dumps(values) + "\n")

    @classmethod
    def load(cls, directory: Path) -> "Rows":
        """Reads what `save` wrote."""
        values = json.loads((directory / IDS_FILE).read_text("utf-8"))
        return cls(np.array(values["ids"], np.int64), np.array(values["is_output"], bool))


class ImportedVocabulary(NamedTuple):
    """The vocabulary of a run, and the original's rows of its ids."""

    vocabulary: Vocabulary
    rows: Rows


def read_marian(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `source.spm`, `target.spm` and `vocab.json`, which numbers the pieces of both.

    BOS is the original's `<pad>`, with which its decoder begins. PAD has no row: it is never seen.
    A source piece that `vocab.json` does not have is UNK in the original; here it has an id of its
    own, with UNK's row. Such a piece of the target is unused: text is cut into smaller pieces.

    Raises:
        SourceError: a file is missing or damaged, or they do not fit together.
    """
    ids = _read_ids(folder, "vocab.json", vocab_size)
    source, target = (_read_model(folder / name) for name in ("source.spm", "target.spm"))
    order = [NO_ROW, *(_find(ids, name, folder) for name in ("<pad>", "</s>", "<unk>"))]
    special = {*order}
    names = {row: name for name, row in ids.items() if row not in special}
    order += sorted(names)
    own = {piece.piece for piece in source.pieces if _is_text(piece)}
    aliases = sorted(own - ids.keys())
    pieces = [*(names[row] for row in order[len(_SPECIAL) :]), *aliases]
    rows = np.array([*order, *(ids["<unk>"] for _ in aliases)])
    is_output = np.array([row != NO_ROW for row in order] + [False] * len(aliases))
    vocabulary = Vocabulary(
        _build(source, pieces, folder / "source.spm"),
        _build(target, pieces, folder / "target.spm", unused=aliases),
    )
    return ImportedVocabulary(vocabulary, Rows(rows, is_output))


def _read_ids(folder: Path, name: str, vocab_size: int) -> dict[str, int]:
    """Reads {piece: id}; the ids must be 0 to vocab_size - 1."""
    ids = read_json(folder, name)
    if {*ids.values()} != {*range(len(ids))}:
        raise SourceError(f"{folder / name}: the ids are not 0 to {len(ids) - 1}, each once")
    if len(ids) != vocab_size:
        raise SourceError(
            f"{folder / name} has {len(ids)} pieces, but config.json has vocab_size={vocab_size}; "
            "use the files of one model"
        )
    return ids


def _find(ids: Mapping[str, int], name: str, folder: Path) -> int:
    if name not in ids:
        raise SourceError(f"{folder / 'vocab.json'} has no {name}; use the files of one model")
    return ids[name]


def _read_model(path: Path) -> spm.ModelProto:
    """Reads a SentencePiece model."""
    try:
        content = path.read_bytes()
        sentencepiece.SentencePieceProcessor(model_proto=content)
    except FileNotFoundError:
        raise SourceError(f"{path} is missing; copy it from the original model") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {describe_error(error)}") from None
    except RuntimeError:
        raise SourceError(f"{path} is no SentencePiece model; download it again") from None
    return spm.ModelProto.FromString(content)


def _is_text(piece: spm.ModelProto.SentencePiece) -> bool:
    return piece.type not in (_Kind.CONTROL, _Kind.UNKNOWN)


def _build(
    original: spm.ModelProto, pieces: Iterable[str], path: Path, unused: Iterable[str] = ()
) -> Tokenizer:
    """Builds a model that segments text as the original does, with these pieces from id 4 on.

    Pieces that the original lacks, and those of `unused`, are never used.
    """
    own = {piece.piece: piece for piece in original.pieces if _is_text(piece)}
    for name in unused:
        own.pop(name, None)
    lowest = min((piece.score for piece in own.values()), default=0.0)
    model = spm.ModelProto(
        trainer_spec=original.trainer_spec,
        normalizer_spec=original.normalizer_spec,
        denormalizer_spec=original.denormalizer_spec,
    )
    settings = model.trainer_spec
    settings.pad_id, settings.bos_id, settings.eos_id, settings.unk_id = _SPECIAL
    settings.pad_piece, settings.bos_piece, settings.eos_piece, settings.unk_piece = (
        _SPECIAL.values()
    )
    for id_, name in _SPECIAL.items():
        kind = _Kind.UNKNOWN if id_ == UNK_ID else _Kind.CONTROL
        model.pieces.add(piece=name, score=0.0, type=kind)
    taken = {*_SPECIAL.values()}
    for number, name in enumerate(pieces, start=len(_SPECIAL)):
        piece = own.get(name)
        if not name or name in taken:  # a name that stands for something else here
            name, piece = f"<original {number}: {name}>", None
        taken.add(name)
        # An unused piece of a BPE model is merged after all others, then divided again.
        score, kind = (lowest - 1, _Kind.UNUSED) if piece is None else (piece.score, piece.type)
        model.pieces.add(piece=name, score=score, type=kind)
    settings.vocab_size = len(model.pieces)
    return Tokenizer(model.SerializeToString(), str(path))
