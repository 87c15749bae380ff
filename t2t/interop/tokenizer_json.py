"""Reads `tokenizer.json` of `tokenizers` as a SentencePiece model.

Each part of the file is compared with what SentencePiece does: the normaliser, the pre-tokeniser,
the template of special tokens, the decoder and the options of the model. A part that does something
else is refused by its name.
"""

import base64
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t2t.data.batch import EOS_ID, UNK_ID
from t2t.data.piece_table import SPACE, SPECIAL
from t2t.interop.hugging_face_folder import SourceError, check_pointer, read_json
from t2t.interop.json_fields import OFF
from t2t.storage.paths import describe_error

NAME = "tokenizer.json"
spm: Any = sentencepiece_model_pb2  # whose classes are made when it is imported
ModelProto: TypeAlias = Any
Kind = spm.ModelProto.SentencePiece.Type

_BYTE, _BYTES = re.compile("<0x[0-9A-F]{2}>"), 256
# The values of the fields of a part that SentencePiece agrees with; None: any.
_Known: TypeAlias = Mapping[str, Mapping[str, Collection[Any] | None]]
_METASPACE: Mapping[str, Collection[Any]] = {
    "replacement": [SPACE],
    "str_rep": [SPACE],
    "add_prefix_space": [True],
    "prepend_scheme": ["always", "first"],
    "split": [True],
}
_NORMALIZERS: _Known = {
    "Precompiled": {"precompiled_charsmap": None},
    # Lines come without spaces at their ends, and SentencePiece joins spaces.
    "Strip": {"strip_left": None, "strip_right": None},
    "Replace": {"pattern": [{"Regex": " {2,}"}], "content": [" ", SPACE]},
}
_PRE_TOKENIZERS: _Known = {"WhitespaceSplit": {}, "Metaspace": _METASPACE}
_DECODERS: _Known = {
    "ByteFallback": {},
    "Metaspace": _METASPACE,
    "Replace": {"pattern": [{"String": SPACE}], "content": [" "]},
    "Fuse": {},
    "Strip": {"content": [" "], "start": [1], "stop": [0]},
}
_MODELS: _Known = {
    "Unigram": {"unk_id": None, "vocab": None, "byte_fallback": [True, False]},
    "BPE": {
        "vocab": None,
        "merges": None,
        "unk_token": [SPECIAL[UNK_ID]],
        "byte_fallback": [True, False],
        "fuse_unk": [True],
        "dropout": [None, 0],
        "ignore_merges": [False],
        "continuing_subword_prefix": [None, ""],
        "end_of_word_suffix": [None, ""],
    },
}
# What reading a damaged file raises; SentencePiece raises a RuntimeError.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError)
# The parts of the file, with their types;
# `transformers` truncates and pads where its caller asks for it, whatever the file says.
_PARTS: Mapping[str, type] = {
    "version": str,
    "added_tokens": list,
    **dict.fromkeys(
        "truncation padding normalizer pre_tokenizer post_processor decoder model".split(), dict
    ),
}


class Spaces(NamedTuple):
    """The places where a `tokenizer.json` has a space, or none, besides those between words."""

    scheme: str = "always"  # "first": only the first word of a text begins with one
    keeps_space: bool = False  # one before an added token is a piece ...
    strips: bool = False  # ... unless the token is searched for in raw text


class TokenizerFile(NamedTuple):
    """A `tokenizer.json`."""

    path: Path
    model: bytes  # of SentencePiece
    rows: dict[str, int]  # by piece
    spaces: Spaces


class _Part(NamedTuple):
    """An object of the file, in which a sequence of others may stand for one."""

    path: Path
    name: str

    def refuse(self, found: str) -> SourceError:
        return SourceError(
            f"{self.path}: {self.name} has {found}, which SentencePiece does not do, so text would "
            "have other sub-words; use this model in transformers"
        )

    def list(self, value: Any, known: _Known, within: str = "") -> list[Mapping[str, Any]]:
        """Returns the objects of a part after comparing them with what is known."""
        if value is None:
            return []
        values = value[within] if within and value["type"] == "Sequence" else [value]
        for each in values:
            kind = str(each["type"])
            if kind not in known:
                raise self.refuse(kind)
            for field, own in each.items():
                allowed = known[kind].get(field, OFF)
                if field != "type" and allowed is not None and own not in allowed:
                    raise self.refuse(f"{kind} with {field}={own!r}")
        return values


def read_tokenizer_json(
    path: Path, *, sets_template: bool = False, is_t5: bool = False
) -> TokenizerFile:
    """Reads a file.

    Args:
        path: of the file.
        sets_template: whether the tokenizer's class puts special tokens around a text, whatever the
            file says; else EOS has to follow it.
        is_t5: whether the class is T5Tokenizer, which writes 2 for `unk_id`, whatever it is.

    Raises:
        SourceError: the file is missing or damaged, or does something that SentencePiece does not.
    """
    values = read_json(path.parent, path.name)
    for name, value in values.items():
        if name not in _PARTS and value not in OFF:
            raise _Part(path, name).refuse(repr(value))
    for name, kind in _PARTS.items():
        if not isinstance(values.get(name), kind | None):
            raise SourceError(f"{path} is damaged: {name}={values[name]!r:.50}; download it again")
    try:
        charsmap, spaces = _read_splitting(path, values)
        model, rows = _read_model(path, values, charsmap, is_t5=is_t5)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if not (spaces.keeps_space or sets_template or is_t5):
            _check_spaces(path, processor)
        _check_decoder(path, values)
        if not sets_template:
            _check_template(path, values.get("post_processor"), rows)
    except _DAMAGE as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} is damaged: {error!r}; download it again") from None
    return TokenizerFile(path, model, rows, spaces)


def _read_splitting(path: Path, values: Mapping[str, Any]) -> tuple[bytes, Spaces]:
    """Returns the rules of normalisation, and what the file does to spaces."""
    part = _Part(path, "normalizer")
    normalizers = part.list(values.get("normalizer"), _NORMALIZERS, "normalizers")
    kinds = [each["type"] for each in normalizers]
    if "Precompiled" in kinds[1:]:
        raise part.refuse("Precompiled after another one")
    charsmap = normalizers[0]["precompiled_charsmap"] if kinds[:1] == ["Precompiled"] else ""
    part = _Part(path, "pre_tokenizer")
    splits = part.list(values.get("pre_tokenizer"), _PRE_TOKENIZERS, "pretokenizers")
    match [each["type"] for each in splits]:
        case ["WhitespaceSplit", "Metaspace"]:
            keeps_space = False
        case ["Metaspace"] if "Replace" in kinds:
            keeps_space = True
        case ["Metaspace"]:
            raise part.refuse("Metaspace, and normalizer no Replace of several spaces by one")
        case other:
            raise part.refuse(f"{' and '.join(other) or 'nothing'} instead of Metaspace")
    scheme = splits[-1].get("prepend_scheme", "always")
    strips = any(each.get("strip_right") for each in normalizers)
    return base64.b64decode(charsmap or ""), Spaces(scheme, keeps_space, strips)


def _check_spaces(path: Path, processor: Any) -> None:
    """Checks that SentencePiece ends words where WhitespaceSplit does: not at U+0020 alone."""
    if processor.normalize("a\tb\u00a0c\u3000d") != SPACE.join(("", *"abcd")):
        raise _Part(path, "pre_tokenizer").refuse(
            "WhitespaceSplit, and normalizer no rules that make spaces of tabs and other spaces"
        )


def _check_decoder(path: Path, values: Mapping[str, Any]) -> None:
    """Checks that pieces become text as in SentencePiece."""
    part = _Part(path, "decoder")
    kinds = [each["type"] for each in part.list(values.get("decoder"), _DECODERS, "decoders")]
    has_bytes = "ByteFallback" in kinds
    found = [kind for kind in kinds if kind != "ByteFallback"]
    if found not in (["Metaspace"], ["Replace", "Fuse", "Strip"]):
        raise part.refuse(f"{' and '.join(kinds) or 'nothing'} instead of Metaspace")
    if values["model"].get("byte_fallback") and not has_bytes:
        raise part.refuse("no ByteFallback for the bytes of the model")


def _check_template(path: Path, value: Any, rows: Mapping[str, int]) -> None:
    """Checks that EOS follows a text, and nothing else is added to it."""
    part, eos = _Part(path, "post_processor"), SPECIAL[EOS_ID]
    template = "nothing"
    if value is not None:
        if value["type"] != "TemplateProcessing":
            raise part.refuse(str(value["type"]))
        names = [each.get("SpecialToken", each.get("Sequence"))["id"] for each in value["single"]]
        template = " ".join(names)
        if template == f"A {eos}" and value["special_tokens"][eos]["ids"] == [rows[eos]]:
            return
    raise part.refuse(f"the template {template!r} instead of 'A {eos}' (A is the text)")


def _read_model(
    path: Path, values: Mapping[str, Any], charsmap: bytes, *, is_t5: bool
) -> tuple[bytes, dict[str, int]]:
    """Returns the model as one of SentencePiece, and its pieces with their rows."""
    given, part = values["model"], _Part(path, "model")
    kind = given.get("type", "BPE" if "merges" in given else "Unigram")
    absent = {"fuse_unk": False, "unk_token": None} if kind == "BPE" else {}
    part.list({**absent, **given, "type": kind}, _MODELS)
    has_bytes = bool(given.get("byte_fallback"))
    if kind == "BPE":
        rows = dict(given["vocab"])
        scores = _rank_merges(rows, given["merges"])
        unknown, control = SPECIAL[UNK_ID], {*SPECIAL.values(), "<mask>"}
    else:
        scores = [(str(name), float(score)) for name, score in given["vocab"]]
        rows = {name: row for row, (name, _) in enumerate(scores)}
        unknown = scores[given["unk_id"]][0] if given.get("unk_id") is not None else ""
        if unknown != SPECIAL[UNK_ID] and not (is_t5 and given["unk_id"] == 2):
            raise part.refuse(
                f"unk_id={given.get('unk_id')!r}, {unknown!r} instead of {SPECIAL[UNK_ID]!r}"
            )
        added = values.get("added_tokens") or ()
        control = {token["content"] for token in added if token.get("special")}
    if not all(type(row) is int and row >= 0 for row in rows.values()):
        raise ValueError("an id is not a whole number")
    if not all(math.isfinite(score) for _, score in scores):
        raise ValueError("a score is not finite")
    if has_bytes and sum(bool(_BYTE.fullmatch(name)) for name in rows) != _BYTES:
        raise part.refuse(f"byte_fallback=True without pieces for all {_BYTES} bytes")
    return _make_model(kind, scores, unknown, control, charsmap, has_bytes=has_bytes), rows


def _rank_merges(pieces: Iterable[str], merges: Sequence[Any]) -> list[tuple[str, float]]:
    """Returns the pieces that text is segmented to, with scores by their places in the merges."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault(left + right, rank)
    names = [
        name
        for name in pieces
        if len(name) == 1 or name in ranks or name in SPECIAL.values() or _BYTE.fullmatch(name)
    ]
    return [(name, -float(ranks.get(name, len(merges)))) for name in names]


def _make_model(
    kind: str,
    scores: Iterable[tuple[str, float]],
    unknown: str,
    control: Collection[str],
    charsmap: bytes,
    *,
    has_bytes: bool = False,
) -> bytes:
    """Makes a SentencePiece model, without the pieces that none can hold, which are only looked up.

    Args:
        kind: BPE or Unigram.
        scores: of the pieces.
        unknown: the piece of what has none.
        control: pieces that no text is segmented to.
        charsmap: the precompiled rules of normalisation.
        has_bytes: whether characters without a piece are spelled in bytes.
    """
    model = spm.ModelProto()
    settings = model.trainer_spec
    settings.model_type = spm.TrainerSpec.ModelType.Value(kind.upper())
    settings.byte_fallback = has_bytes
    settings.unk_piece, settings.bos_id, settings.eos_id, settings.pad_id = unknown, -1, -1, -1
    model.normalizer_spec.name = f"from {NAME}"
    model.normalizer_spec.precompiled_charsmap = charsmap
    for name, score in dict(scores).items():
        if not name or "\0" in name:
            continue
        type_ = Kind.CONTROL if name in control else Kind.NORMAL
        if has_bytes and _BYTE.fullmatch(name):
            type_ = Kind.BYTE
        if name == unknown:
            type_, settings.unk_id = Kind.UNKNOWN, len(model.pieces)
        model.pieces.add(piece=name, score=score, type=type_)
    settings.vocab_size = len(model.pieces)
    content: bytes = model.SerializeToString()
    return content


def read_sentencepiece(path: Path) -> bytes:
    """Reads a SentencePiece model.

    Raises:
        SourceError: the file is missing or damaged.
    """
    try:
        check_pointer(path)
        content = path.read_bytes()
        sentencepiece.SentencePieceProcessor(model_proto=content)
    except FileNotFoundError:
        raise SourceError(
            f"{path} is missing; copy it from the original model, or name the folder of its "
            "vocabulary by --tokenizer, such as hf:google/mt5-large of a descendant of mT5"
        ) from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {describe_error(error)}") from None
    except RuntimeError:
        raise SourceError(f"{path} is no SentencePiece model; download it again") from None
    return content


def read_plain_sentencepiece(path: Path) -> bytes:
    """As `read_sentencepiece`, for a class that puts a space before a text, whatever the file says.

    Raises:
        SourceError: the file is missing or damaged, or does something else to spaces.
    """
    content = read_sentencepiece(path)
    model = spm.ModelProto.FromString(content)
    rules, suffix = model.normalizer_spec, model.trainer_spec.treat_whitespace_as_suffix
    for name, value, wanted in (
        ("add_dummy_prefix", rules.add_dummy_prefix, True),
        ("remove_extra_whitespaces", rules.remove_extra_whitespaces, True),
        ("treat_whitespace_as_suffix", suffix, False),
    ):
        if value != wanted:
            raise SourceError(
                f"{path}: {name}={value} is not supported, since transformers 5 ignores it; use "
                "this model in transformers"
            )
    return content


def check_same_model(file: TokenizerFile, other: Path) -> None:
    """Checks that a SentencePiece model has the pieces of a `tokenizer.json`, which may have more.

    Raises:
        SourceError: they disagree, or the model is damaged.
    """
    saved, model = map(spm.ModelProto.FromString, (file.model, read_sentencepiece(other)))
    kinds = Kind.NORMAL, Kind.USER_DEFINED, Kind.BYTE
    pieces = {each.piece: n for n, each in enumerate(model.pieces) if each.type in kinds}
    found = ""
    offset = next((file.rows[name] - n for name, n in pieces.items() if name in file.rows), 0)
    if other_id := [name for name, n in pieces.items() if file.rows.get(name) != n + offset]:
        found = f"only one has the piece {other_id[0]!r}, or its ids differ"
    elif saved.normalizer_spec.precompiled_charsmap != model.normalizer_spec.precompiled_charsmap:
        found = "they have other rules of normalisation"
    elif saved.trainer_spec.model_type != model.trainer_spec.model_type:
        found = "one is a BPE"
    elif saved.trainer_spec.model_type == spm.TrainerSpec.ModelType.UNIGRAM:
        scores = {each.piece: each.score for each in saved.pieces}
        for each in model.pieces:
            if each.piece in pieces and scores.get(each.piece, each.score) != each.score:
                found = f"they have other scores of {each.piece!r}"
    if found:
        raise explain_difference(file.path, other, found)


def check_same_rows(path: Path, rows: Mapping[str, int], other: Path) -> None:
    """Checks that a `tokenizer.json`, if there is one, has the same ids of the pieces it shares.

    Raises:
        SourceError: it has others.
    """
    model = read_json(other.parent, other.name).get("model") if other.exists() else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # of a Unigram: pieces with their scores
        vocab = {str(each[0]): row for row, each in enumerate(vocab) if isinstance(each, list)}
    for name, row in (vocab or {}).items():
        if rows.get(name, row) != row:
            raise explain_difference(path, other, f"{name!r} is {rows[name]} and {row}")


def explain_difference(path: Path, other: Path, found: str) -> SourceError:
    """Returns the error of two files that disagree."""
    return SourceError(
        f"{path} and {other.name} disagree: {found}; move away the one that is not of this model"
    )
