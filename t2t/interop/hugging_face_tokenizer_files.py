"""Writes the tokenizer's files of `transformers` from the vocabulary of a run: the way back.

An imported vocabulary gets the original's ids again (`hugging_face_vocabulary.Rows`), and its
SentencePiece models go out as they came in. Any other gets ids in the order of its family.
Segmentation stays the run's.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.piece_table import SPECIAL, AddedPiece, PieceTable
from t2t.data.tokenizer import LINES, Tokenizer, Vocabulary, write_share
from t2t.interop.hugging_face_folder import write_json
from t2t.interop.hugging_face_vocabulary import (
    M2M100_LANGUAGES,
    MBART50_LANGUAGES,
    NO_ROW,
    Rows,
    number_bytes,
)
from t2t.interop.tokenizer_json import Kind, ModelProto, spm

_TAG = re.compile("<2(.+)>")
_SENTINEL = re.compile(r"<extra_id_(\d+)>")
_CODES = {"marian": ">>{}<<", "m2m_100": "{}", "mbart": "{}"}  # names of a tag's language


class ForeignPiece(NamedTuple):
    """A row of the original's table: the name of its piece, and what SentencePiece knows of it."""

    name: str
    score: float
    kind: int
    language: str = ""  # of which it is the tag
    added: AddedPiece | None = None


def find_family(rows: Rows, table: PieceTable | None) -> str:
    """Returns the family from which a vocabulary was imported, by its special symbols and codes."""
    if table and f"<2{MBART50_LANGUAGES[0]}>" in table.symbols:
        return "mbart"
    pad, bos, eos, unk = rows.row[[PAD_ID, BOS_ID, EOS_ID, UNK_ID]].tolist()
    if (bos, pad, eos, unk) == (0, 1, 2, 3):
        return "m2m_100"
    return "marian" if (eos, unk) == (0, 1) or bos == rows.row.max() else "t5"


def assign_rows(vocabulary: Vocabulary, family: str) -> Rows:
    """Returns rows for a vocabulary that was trained here, in the family's order.

    marian  `</s>`, `<unk>`, the pieces, and `<pad>`, with which the decoder begins; PAD has no row
    t5      `<pad>`, with which the decoder begins, `</s>`, `<unk>`, the pieces, the sentinels, the
            first one last, and a row for PAD; of bytes as `number_bytes`
    """
    if family == "t5" and vocabulary.src.kind == "bytes":
        return number_bytes(vocabulary.src.vocab_size)
    size = vocabulary.tgt.vocab_size
    sentinels = vocabulary.tgt.sentinel_ids if family == "t5" else []
    pieces = [i for i in range(len(SPECIAL), size) if i not in {*sentinels}]
    if family == "t5":
        order = [BOS_ID, EOS_ID, UNK_ID, *pieces, *reversed(sentinels), PAD_ID]
    else:
        order = [EOS_ID, UNK_ID, *pieces, BOS_ID]
    row = np.full(size, NO_ROW)
    row[order] = np.arange(len(order))
    return Rows(row, row != NO_ROW)


def write_tokenizer(
    vocabulary: Vocabulary, rows: Rows, family: str, settings: Mapping[str, Any], folder: Path
) -> None:
    """Writes the files of Marian's, NLLB's, M2M-100's, mBART-50's or T5's tokenizer.

    Args:
        vocabulary: of the run.
        rows: the tokenizer's ids of the run's ids.
        family: marian, m2m_100, mbart or t5.
        settings: of tokenizer_config.json.
        folder: an existing folder.
    """
    is_bytes = family == "t5" and vocabulary.src.kind == "bytes"
    pieces = [] if is_bytes else _list_pieces(vocabulary.tgt, rows, family)
    languages = {piece.language for piece in pieces if piece} - {""}
    codes = [kind for kind, own in M2M100_LANGUAGES.items() if languages == {*own}]
    match family:
        case "marian":
            kind, more = "Marian", _write_marian(vocabulary, pieces, folder)
        case "m2m_100" if codes:
            kind, more = "M2M100", _write_m2m100(vocabulary, pieces, folder)
            more["language_codes"] = codes[0]
        case "m2m_100":
            kind, more = "Nllb", _write_nllb(vocabulary, pieces, folder)
        case "mbart":
            kind, more = "MBart50", _write_mbart(vocabulary, pieces, folder)
        case _ if is_bytes:
            kind, more = "ByT5", {"extra_ids": len(vocabulary.src.sentinel_ids)}
        case _:
            kind, more = "T5", _write_t5(vocabulary, pieces, folder)
    if added := {row: piece.added for row, piece in enumerate(pieces) if piece and piece.added}:
        described = {row: _describe_added(each) for row, each in added.items()}
        more["added_tokens_decoder"] = more.get("added_tokens_decoder", {}) | described
    # T5Tokenizer spells nothing in bytes. The class that takes tokenizer.json as it is does.
    if kind == "T5" and vocabulary.src.has_bytes:
        more["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": f"{kind}Tokenizer", **more, **settings},
    )
    write_share(folder / LINES, vocabulary.several_sentences)


def _list_pieces(tokenizer: Tokenizer, rows: Rows, family: str) -> list[ForeignPiece | None]:
    """The piece of each row; None for a row that only fills the table."""
    table = tokenizer.table
    own = {piece.piece: piece for piece in spm.ModelProto.FromString(tokenizer.model).pieces}
    is_fairseq = family in ("m2m_100", "mbart")
    start = "<s>" if is_fairseq or (family == "t5" and "<pad>" not in own) else "<pad>"
    special = {**SPECIAL, BOS_ID: start}
    added = {each.id: each for each in table.added} if table else {}
    known = {*special, *added, *table.pieces.values(), *table.symbols.values()} if table else ()
    pieces: list[ForeignPiece | None] = [None] * (rows.row.max() + 1)
    for id_, text in enumerate(tokenizer.pieces(range(tokenizer.vocab_size))):
        is_spare = (table and id_ not in known) or (id_ == PAD_ID and not is_fairseq)
        if not rows.is_output[id_] or is_spare:
            continue
        name, language = special.get(id_) or text, ""
        is_symbol = text in table.symbols if table else own[text].type == Kind.CONTROL
        if is_symbol and family in _CODES and (tag := _TAG.fullmatch(text)):
            language = tag[1]
            name = _CODES[family].format(language)
        piece = own.get(text)
        score, kind = (piece.score, piece.type) if piece else (0.0, Kind.UNUSED)
        if name:
            pieces[rows.row[id_]] = ForeignPiece(name, score, kind, language, added.get(id_))
    return pieces


def _write_marian(
    vocabulary: Vocabulary, pieces: Sequence[ForeignPiece | None], folder: Path
) -> dict[str, Any]:
    """The two models as they are, which have pieces by name, and the ids of the names."""
    (folder / "source.spm").write_bytes(vocabulary.src.model)
    (folder / "target.spm").write_bytes(vocabulary.tgt.model)
    write_json(folder / "vocab.json", _find_ids(pieces, vocabulary))
    return {}


def _write_m2m100(
    vocabulary: Vocabulary, pieces: Sequence[ForeignPiece | None], folder: Path
) -> dict[str, Any]:
    """As `_write_marian`; the codes follow the pieces, without being in the file."""
    (folder / "sentencepiece.bpe.model").write_bytes(vocabulary.src.model)
    is_piece = [piece and not piece.language for piece in pieces]
    first = is_piece.index(False)
    write_json(folder / "vocab.json", _find_ids(pieces[:first], vocabulary))
    codes = {
        row: AddedPiece(f"__{piece.language}__", row, special=True)
        for row, piece in enumerate(pieces)
        if piece and piece.language
    }
    return {"added_tokens_decoder": {row: _describe_added(code) for row, code in codes.items()}}


def _write_mbart(
    vocabulary: Vocabulary, pieces: Sequence[ForeignPiece | None], folder: Path
) -> dict[str, Any]:
    """The model with the pieces from the fourth row on; the codes follow without being in it."""
    model = spm.ModelProto.FromString(vocabulary.src.model)
    is_text = [piece and not piece.language for piece in pieces]
    text = [piece for piece in pieces[len(SPECIAL) : is_text.index(False)] if piece]
    if [piece.piece for piece in model.pieces[3:]] != [piece.name for piece in text]:
        del model.pieces[:]
        special = {"<unk>": Kind.UNKNOWN, "<s>": Kind.CONTROL, "</s>": Kind.CONTROL}
        for name, kind in special.items():
            model.pieces.add(piece=name, score=0.0, type=kind)
        for piece in text:
            model.pieces.add(piece=piece.name, score=piece.score, type=piece.kind)
        settings = model.trainer_spec
        settings.unk_id, settings.bos_id, settings.eos_id, settings.pad_id = 0, 1, 2, -1
        settings.unk_piece, settings.vocab_size = "<unk>", len(model.pieces)
    (folder / "sentencepiece.bpe.model").write_bytes(model.SerializeToString())
    return {}


def _write_nllb(
    vocabulary: Vocabulary, pieces: Sequence[ForeignPiece | None], folder: Path
) -> dict[str, Any]:
    """`tokenizer.json`, with the merges that lead to each piece, those of high scores first."""
    scores = {piece.name: piece.score for piece in pieces if piece and piece.kind == Kind.NORMAL}
    merges = [
        (-score, cut, name)
        for name, score in scores.items()
        for cut in range(1, len(name))
        if name[:cut] in scores and name[cut:] in scores
    ]
    ids = _find_ids(pieces, vocabulary)
    codes = [piece.name for piece in pieces if piece and piece.language]
    model = {
        "type": "BPE",
        "unk_token": SPECIAL[UNK_ID],
        "fuse_unk": True,
        "byte_fallback": False,
        "vocab": ids,
        "merges": [[name[:cut], name[cut:]] for _, cut, name in sorted(merges)],
    }
    special = {name: ids[name] for name in (*SPECIAL.values(), *codes, "<mask>") if name in ids}
    original = spm.ModelProto.FromString(vocabulary.src.model)
    write_json(folder / "tokenizer.json", _describe_backend(model, special, pieces, original))
    return {"extra_special_tokens": codes}


def _describe_backend(
    model: Mapping[str, Any],
    special: Mapping[str, int],
    pieces: Sequence[ForeignPiece | None],
    original: ModelProto,
) -> dict[str, Any]:
    """The content of `tokenizer.json`: EOS follows each text, and words begin with a space.

    Args:
        model: its part "model".
        special: the ids of symbols that no text is tokenised to.
        pieces: of the rows, with those that were added.
        original: has the rules of normalisation.
    """
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    space = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "always",
        "split": True,
    }
    eos, bytes_ = SPECIAL[EOS_ID], [{"type": "ByteFallback"}] if model["byte_fallback"] else []
    ending = {"SpecialToken": {"id": eos, "type_id": 0}}
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    charsmap = base64.b64encode(original.normalizer_spec.precompiled_charsmap).decode("ascii")
    # Without rules a tab is no space, at which WhitespaceSplit would cut.
    splits = [{"type": "WhitespaceSplit"}] if charsmap else []
    rules: list[dict[str, Any]] = [
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    if charsmap:
        rules = [{"type": "Precompiled", "precompiled_charsmap": charsmap}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            *(
                {"id": id_, "content": name, "special": True, **flags}
                for name, id_ in special.items()
            ),
            *(
                {"id": row, **_describe_added(piece.added)}
                for row, piece in enumerate(pieces)
                if piece and piece.added
            ),
        ],
        "normalizer": {"type": "Sequence", "normalizers": rules},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, space]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [text, ending],
            "pair": [text, ending, other, ending],
            "special_tokens": {eos: {"id": eos, "ids": [special[eos]], "tokens": [eos]}},
        },
        "decoder": {"type": "Sequence", "decoders": [*bytes_, space]},
        "model": model,
    }


def _write_t5(
    vocabulary: Vocabulary, pieces: Sequence[ForeignPiece | None], folder: Path
) -> dict[str, Any]:
    """`spiece.model`, with ids in its order, without the sentinels and what fills the table.

    And `tokenizer.json`, with the sentinels, which is what `transformers` reads of umT5.
    """
    model = spm.ModelProto.FromString(vocabulary.src.model)
    # The pieces and the sentinels, without what was added to them.
    last = max(row for row, piece in enumerate(pieces) if piece and not _is_new(piece, vocabulary))
    own = [
        piece or ForeignPiece(f"<unused {n}>", 0.0, Kind.UNUSED) for n, piece in enumerate(pieces)
    ]
    del own[last + 1 :]
    entries = [(piece.name, piece.score) for piece in own]
    sentinels = 0
    while (found := _SENTINEL.fullmatch(own[-1].name)) and int(found[1]) == sentinels:
        own.pop()
        sentinels += 1
    unknown = next(row for row, piece in enumerate(own) if piece.kind == Kind.UNKNOWN)
    if [piece.piece for piece in model.pieces] != [piece.name for piece in own]:
        del model.pieces[:]
        for piece in own:
            model.pieces.add(piece=piece.name, score=piece.score, type=piece.kind)
        settings = model.trainer_spec
        settings.pad_id, settings.eos_id, settings.unk_id, settings.bos_id = 0, 1, unknown, -1
        settings.vocab_size = len(own)
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    unigram = {
        "type": "Unigram",
        "unk_id": unknown,
        "byte_fallback": vocabulary.src.has_bytes,
        "vocab": entries,
    }
    special = {
        name: row
        for row, (name, _) in enumerate(entries)
        if name in SPECIAL.values() or _SENTINEL.fullmatch(name)
    }
    write_json(folder / "tokenizer.json", _describe_backend(unigram, special, pieces, model))
    return {"extra_ids": sentinels, "pad_token": "<pad>" if "<pad>" in special else "<s>"}


def _is_new(piece: ForeignPiece, vocabulary: Vocabulary) -> bool:
    """Returns whether a piece was added to those of the original's tokenizer."""
    table = vocabulary.src.table
    return piece.added is not None and table is not None and piece.name not in table.pieces


def _describe_added(added: AddedPiece) -> dict[str, Any]:
    """The entry of an added piece in JSON."""
    values = added._asdict()
    del values["id"]
    return {"content": values.pop("text"), **values}


def _find_ids(pieces: Sequence[ForeignPiece | None], vocabulary: Vocabulary) -> dict[str, int]:
    """Returns the rows of the names, without those of added pieces."""
    return {
        piece.name: row
        for row, piece in enumerate(pieces)
        if piece and not _is_new(piece, vocabulary)
    }
