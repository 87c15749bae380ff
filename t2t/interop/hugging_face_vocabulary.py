"""Turns the vocabularies of `transformers` into SentencePiece models with this project's ids.

Ids are permuted, so that PAD, BOS, EOS and UNK are 0 to 3. The segmentation of text stays that of
the original model: its pieces keep their scores, and pieces that only the other language's model
has are marked unused. `Rows` says which row of the original's embedding tables each id has.
"""

import base64
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import sentencepiece
from jaxtyping import Bool, Int
from sentencepiece import sentencepiece_model_pb2

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.tokenizer import ORIGINAL_IDS, Tokenizer, Vocabulary
from t2t.interop.hugging_face_folder import SourceError, check_pointer, read_json
from t2t.storage.atomic_files import write_file
from t2t.storage.paths import describe_error

NO_ROW = -1
SPECIAL = {PAD_ID: "<pad>", BOS_ID: "<s>", EOS_ID: "</s>", UNK_ID: "<unk>"}
SPECIAL_OF_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # in the order of their ids
M2M100_LANGUAGES = """
    af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha
    he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne
    nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo
    xh yi yo zh zu
""".split()  # in the order of their ids
MBART50_LANGUAGES = """
    ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV
    my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID
    ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA
    ur_PK xh_ZA gl_ES sl_SI
""".split()  # likewise
_CODE = re.compile(">>([^-<>{}\\s]+)<<")  # of a target language, in Marian
spm: Any = sentencepiece_model_pb2  # whose classes are made when it is imported
ModelProto: TypeAlias = Any
Kind = spm.ModelProto.SentencePiece.Type


class Rows(NamedTuple):
    """How the ids of an imported vocabulary belong to the rows of the original's tables."""

    row: Int[np.ndarray, "V"]  # the original's id; NO_ROW: it has none
    # False: no output of the original. Its row is a copy of another (of UNK, for a piece to which
    # the original gives UNK's id), or it has none.
    is_output: Bool[np.ndarray, "V"]

    def save(self, directory: Path) -> None:
        """Writes the original's ids beside the vocabulary, for the way out."""
        values = {"ids": self.row.tolist(), "is_output": self.is_output.tolist()}
        write_file(directory / ORIGINAL_IDS, json.dumps(values) + "\n")

    @classmethod
    def load(cls, directory: Path) -> "Rows":
        """Reads what `save` wrote."""
        values = json.loads((directory / ORIGINAL_IDS).read_text("utf-8"))
        return cls(np.array(values["ids"], np.int64), np.array(values["is_output"], bool))


class ImportedVocabulary(NamedTuple):
    """The vocabulary of a run, and the original's rows of its ids."""

    vocabulary: Vocabulary
    rows: Rows
    languages: tuple[str, ...] = ()  # codes for which there is a tag, such as eng_Latn: <2eng_Latn>


def read_marian(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `source.spm`, `target.spm` and `vocab.json`, which numbers the pieces of both.

    BOS is the original's `<pad>`, with which its decoder begins. PAD has no row: it is never seen.
    A source piece that `vocab.json` does not have is UNK in the original; here it has an id of its
    own, with UNK's row. Such a piece of the target is unused: text is cut into smaller pieces. The
    codes of target languages, such as `>>fra<<`, become tags, "<2fra>".

    Raises:
        SourceError: a file is missing or damaged, or they do not fit together.
    """
    path = folder / "vocab.json"
    ids = _read_ids(path)
    if len(ids) != vocab_size:
        raise SourceError(
            f"{path} has {len(ids)} pieces, but config.json has vocab_size={vocab_size}; "
            "use the files of one model"
        )
    source, target = (_read_model(folder / name) for name in ("source.spm", "target.spm"))
    order = [NO_ROW, *(_find(ids, name, path) for name in ("<pad>", "</s>", "<unk>"))]
    special = {*order}
    names = {row: name for name, row in ids.items() if row not in special}
    codes = {row: code[1] for row, name in names.items() if (code := _CODE.fullmatch(name))}
    names |= {row: f"<2{code}>" for row, code in codes.items()}
    tags = {names[row] for row in codes}
    order += sorted(names)
    own = {piece.piece for piece in source.pieces if _is_text(piece)}
    aliases = sorted(own - ids.keys())
    pieces = [*(names[row] for row in order[len(SPECIAL) :]), *aliases]
    rows = np.array([*order, *(ids["<unk>"] for _ in aliases)])
    is_output = np.array([row != NO_ROW for row in order] + [False] * len(aliases))
    vocabulary = Vocabulary(
        _build(source, pieces, folder / "source.spm", control=tags),
        _build(target, pieces, folder / "target.spm", unused=aliases, control=tags),
    )
    return ImportedVocabulary(vocabulary, Rows(rows, is_output), tuple(sorted(codes.values())))


def read_nllb(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `tokenizer.json`, and `sentencepiece.bpe.model` for the scores if it is there.

    Language codes become tags, "<2eng_Latn>". `<mask>` and rows without a piece are unused.

    Raises:
        SourceError: a file is missing or damaged, or does not fit the table.
    """
    path, original = folder / "tokenizer.json", folder / "sentencepiece.bpe.model"
    if not path.exists():
        raise SourceError(
            f"{path} is missing, which has the language codes: load the tokenizer with "
            "transformers, and save it again"
        )
    settings = folder / "tokenizer_config.json"
    if settings.exists() and read_json(folder, settings.name).get("legacy_behaviour"):
        raise SourceError(
            f"{settings}: legacy_behaviour=True puts codes at the end, which is not supported; "
            "NLLB was trained with codes at the beginning: set it to false in a copy"
        )
    values = read_json(folder, "tokenizer.json")
    try:
        ids = {name: int(row) for name, row in values["model"]["vocab"].items()}
        merges = [
            tuple(m.split(" ")) if isinstance(m, str) else m for m in values["model"]["merges"]
        ]
        ids |= {token["content"]: int(token["id"]) for token in values["added_tokens"]}
        special = {token["content"] for token in values["added_tokens"] if token["special"]}
        charsmap = _find_charsmap(values["normalizer"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(f"{path} is no BPE vocabulary of NLLB ({error!r})") from None
    model = _read_model(original) if original.exists() else _make_bpe(ids, merges, charsmap)
    codes = {name: name for name in special - {*SPECIAL.values(), "<mask>"}}
    if "<mask>" in ids:
        del ids["<mask>"]
    return _tag_both(model, ids, codes, vocab_size, path)


def read_m2m100(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `vocab.json` and `sentencepiece.bpe.model`; the codes of languages follow the pieces.

    A piece that `vocab.json` lacks is unused, while the original gives it UNK's id.

    Raises:
        SourceError: a file is missing or damaged, or does not fit the table.
    """
    path = folder / "vocab.json"
    ids = _read_ids(path)
    codes = {f"__{code}__": code for code in M2M100_LANGUAGES}
    ids |= {name: number for number, name in enumerate(codes, start=len(ids))}
    model = _read_model(folder / "sentencepiece.bpe.model")
    return _tag_both(model, ids, codes, vocab_size, path)


def read_mbart(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `sentencepiece.bpe.model`, or else `tokenizer.json`, of mBART-50.

    The ids are fairseq's: four special symbols, the pieces from the fourth on, the codes of
    languages and `<mask>`.

    Raises:
        SourceError: a file is missing or damaged, does not fit the table, or is of an mBART whose
            codes follow the text.
    """
    settings = folder / "tokenizer_config.json"
    kind = read_json(folder, settings.name).get("tokenizer_class") if settings.exists() else None
    if str(kind).removesuffix("Fast") not in ("MBart50Tokenizer", "None"):
        raise SourceError(
            f"{settings}: tokenizer_class={kind!r} is not supported; it can be MBart50Tokenizer, "
            "which puts the code of a language before its text"
        )
    path = folder / "sentencepiece.bpe.model"
    if not path.exists() and (folder / "tokenizer.json").exists():
        path = folder / "tokenizer.json"
        model = _read_tokenizer_json(path)
        names = [piece.piece for piece in model.pieces]
    else:
        model = _read_model(path)
        pieces = [piece.piece for piece in model.pieces]
        names = [*SPECIAL_OF_FAIRSEQ, *pieces[3:], *MBART50_LANGUAGES, "<mask>"]
    ids = {name: row for row, name in enumerate(names) if name != "<mask>"}
    codes = {name: name for name in MBART50_LANGUAGES if name in ids}
    return _tag_both(model, ids, codes, vocab_size, path)


def _tag_both(
    model: ModelProto, ids: Mapping[str, int], codes: Mapping[str, str], vocab_size: int, path: Path
) -> ImportedVocabulary:
    """Builds the vocabulary of a model whose sides begin with the codes of their languages.

    Args:
        model: segments text.
        ids: the original's, of pieces, of the special symbols and of the codes.
        codes: name in `ids` -> language.
        vocab_size: rows of the original's table.
        path: for messages.
    """
    order = [_find(ids, SPECIAL[id_], path) for id_ in range(len(SPECIAL))]
    if len({*ids.values()}) != len(ids) or max(ids.values()) >= vocab_size:
        raise SourceError(
            f"{path} has ids up to {max(ids.values())}, but config.json has vocab_size="
            f"{vocab_size}; use the files of one model"
        )
    names = {row: f"<2{codes[name]}>" if name in codes else name for name, row in ids.items()}
    order += sorted({*range(vocab_size)} - {*order})
    pieces = [names.get(row, "") for row in order[len(SPECIAL) :]]
    languages = tuple(sorted(codes.values()))
    tokenizer = _build(model, pieces, path, control={f"<2{code}>" for code in languages})
    rows = Rows(np.array(order), np.ones(vocab_size, bool))
    return ImportedVocabulary(Vocabulary(tokenizer, tokenizer), rows, languages)


def _make_bpe(ids: Iterable[str], merges: Sequence[Sequence[str]], charsmap: bytes) -> ModelProto:
    """A BPE model of SentencePiece, where the score of a piece is its place among the merges."""
    model = spm.ModelProto()
    model.trainer_spec.model_type = spm.TrainerSpec.ModelType.BPE
    model.normalizer_spec.name = "from tokenizer.json"
    model.normalizer_spec.precompiled_charsmap = charsmap
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    for name in ids:
        kind = Kind.CONTROL if name in SPECIAL.values() else Kind.NORMAL
        model.pieces.add(piece=name, score=-float(ranks.get(name, len(merges))), type=kind)
    return model


def _find_charsmap(normalizer: Any) -> bytes:
    """The rules of normalisation in a `tokenizer.json`; empty if there are none."""
    parts = (normalizer or {}).get("normalizers", [normalizer or {}])
    return b"".join(base64.b64decode(part.get("precompiled_charsmap") or "") for part in parts)


def read_t5(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `spiece.model`, after whose pieces come the sentinels, `<extra_id_99>` first.

    Without it, reads `tokenizer.json`, which has the same pieces. BOS is the original's `<pad>`,
    with which its decoder begins. PAD is the last of the rows that fill the table up; they stay
    possible outputs, as in the original. Sentinels are control symbols: no text is tokenised to
    them.

    Raises:
        SourceError: the file is missing or damaged, or does not fit the table.
    """
    path = folder / "spiece.model"
    if not path.exists() and (folder / "tokenizer.json").exists():
        path = folder / "tokenizer.json"
    original = _read_tokenizer_json(path) if path.suffix == ".json" else _read_model(path)
    names = [piece.piece for piece in original.pieces]
    first = ["<pad>", "</s>", "<unk>"]
    if names[:3] != first:
        raise SourceError(f"{path} begins with {names[:3]} instead of {first}; use T5's own file")
    sentinels = 0 if path.suffix == ".json" else _count_sentinels(folder)
    names += [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
    if len(names) >= vocab_size:
        raise SourceError(
            f"{path} has {len(names)} pieces with {sentinels} sentinels, but config.json has "
            f"vocab_size={vocab_size}; T5 has some rows more than pieces, so these are files of "
            "different models"
        )
    names += [""] * (vocab_size - len(names))
    order = [vocab_size - 1, 0, 1, 2, *range(3, vocab_size - 1)]
    rows = Rows(np.array(order), np.ones(vocab_size, bool))
    pieces = [names[row] for row in order[len(SPECIAL) :]]
    control = {name for name in names if name.startswith("<extra_id_")}
    tokenizer = _build(original, pieces, path, control=control)
    return ImportedVocabulary(Vocabulary(tokenizer, tokenizer), rows)


def _read_tokenizer_json(path: Path) -> ModelProto:
    """Turns a unigram model that `transformers` saved by `tokenizers` into one of SentencePiece."""
    values = read_json(path.parent, path.name)
    model = spm.ModelProto()
    model.trainer_spec.model_type = spm.TrainerSpec.ModelType.UNIGRAM
    model.normalizer_spec.name = "from tokenizer.json"
    try:
        unigram, normalizer = values["model"], values["normalizer"]
        parts = (normalizer or {}).get("normalizers", [normalizer] if normalizer else [])
        if unigram["type"] != "Unigram" or {p["type"] for p in parts} - {"Precompiled", "Replace"}:
            raise SourceError(f"{path} holds no unigram model; add the file spiece.model instead")
        model.normalizer_spec.precompiled_charsmap = _find_charsmap(normalizer)
        model.trainer_spec.byte_fallback = bool(unigram.get("byte_fallback"))
        special = {token["content"] for token in values["added_tokens"] if token["special"]}
        for number, (name, score) in enumerate(unigram["vocab"]):
            kind = Kind.CONTROL if name in special else Kind.NORMAL
            if model.trainer_spec.byte_fallback and re.fullmatch("<0x[0-9A-F]{2}>", name):
                kind = Kind.BYTE
            kind = Kind.UNKNOWN if number == unigram["unk_id"] else kind
            model.pieces.add(piece=name, score=score, type=kind)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} is damaged: {error!r}; download it again") from None
    return model


def _count_sentinels(folder: Path) -> int:
    """The sentinels that the tokenizer adds to the pieces of its model."""
    count: Any = 100
    if (folder / "tokenizer_config.json").exists():
        count = read_json(folder, "tokenizer_config.json").get("extra_ids", count)
    if type(count) is not int or count < 0:
        raise SourceError(f"{folder / 'tokenizer_config.json'}: extra_ids={count!r} is no number")
    return count


def _read_ids(path: Path) -> dict[str, int]:
    """Reads {piece: id}; the ids must be 0, 1, 2, ..."""
    ids = read_json(path.parent, path.name)
    if {*ids.values()} != {*range(len(ids))}:
        raise SourceError(f"{path}: the ids are not 0 to {len(ids) - 1}, each once")
    return ids


def _find(ids: Mapping[str, int], name: str, path: Path) -> int:
    if name not in ids:
        raise SourceError(f"{path} has no {name}; use the files of one model")
    return ids[name]


def _read_model(path: Path) -> ModelProto:
    """Reads a SentencePiece model."""
    try:
        check_pointer(path)
        content = path.read_bytes()
        sentencepiece.SentencePieceProcessor(model_proto=content)
    except FileNotFoundError:
        raise SourceError(
            f"{path} is missing; copy it from the original model, or name the folder of its "
            "vocabulary by --tokenizer (of MetricX: hf:google/mt5-large)"
        ) from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {describe_error(error)}") from None
    except RuntimeError:
        raise SourceError(f"{path} is no SentencePiece model; download it again") from None
    return spm.ModelProto.FromString(content)


def _is_text(piece: Any) -> bool:
    return piece.type not in (Kind.CONTROL, Kind.UNKNOWN)


def _build(
    original: ModelProto,
    pieces: Iterable[str],
    path: Path,
    unused: Iterable[str] = (),
    control: Container[str] = (),
) -> Tokenizer:
    """Builds a model that segments text as the original does, with these pieces from id 4 on.

    Pieces that the original lacks, and those of `unused`, are never used. Those of `control` stand
    for no text.
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
    settings.pad_id, settings.bos_id, settings.eos_id, settings.unk_id = SPECIAL
    settings.pad_piece, settings.bos_piece, settings.eos_piece, settings.unk_piece = (
        SPECIAL.values()
    )
    for id_, name in SPECIAL.items():
        kind = Kind.UNKNOWN if id_ == UNK_ID else Kind.CONTROL
        model.pieces.add(piece=name, score=0.0, type=kind)
    taken = {*SPECIAL.values()}
    for number, name in enumerate(pieces, start=len(SPECIAL)):
        piece = own.get(name)
        if not name or name in taken:  # a name that stands for something else here
            name, piece = f"<original {number}: {name}>", None
        taken.add(name)
        # An unused piece of a BPE model is merged after all others, then divided again.
        score, kind = (lowest - 1, Kind.UNUSED) if piece is None else (piece.score, piece.type)
        kind = Kind.CONTROL if piece is None and name in control else kind
        model.pieces.add(piece=name, score=score, type=kind)
    settings.vocab_size = len(model.pieces)
    return Tokenizer(model.SerializeToString(), str(path))
