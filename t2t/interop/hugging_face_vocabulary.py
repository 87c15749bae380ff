"""Reads the tokenizers of `transformers` as vocabularies with this project's ids.

Text is segmented by the original's SentencePiece model, and its pieces are looked up in a table of
ids (`t2t.data.piece_table`), in which PAD, BOS, EOS and UNK are 0 to 3. `Rows` says which row of
the original's embedding tables each id has.
"""

import base64
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import sentencepiece
from jaxtyping import Bool, Int
from sentencepiece import sentencepiece_model_pb2

from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.piece_table import SPECIAL, AddedPiece, PieceTable
from t2t.data.tokenizer import (
    LINES,
    ORIGINAL_IDS,
    Tokenizer,
    Vocabulary,
    VocabularyError,
    read_share,
)
from t2t.interop.hugging_face_folder import SourceError, check_pointer, read_json
from t2t.storage.atomic_files import write_file
from t2t.storage.paths import describe_error

NO_ROW = -1
# The languages of M2M100Tokenizer, in the order of their ids, by `language_codes` of its settings.
M2M100_LANGUAGES = {
    "m2m100": """
    af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha
    he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne
    nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo
    xh yi yo zh zu
    """.split(),
    "wmt21": "en ha is ja cs ru zh de".split(),
}
MBART50_LANGUAGES = """
    ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV
    my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID
    ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA
    ur_PK xh_ZA gl_ES sl_SI
""".split()  # likewise
_MARIAN_CODE = re.compile(r">>([^-<>{}\s]+)<<")  # of a target language
_NLLB_CODE = re.compile(r"[a-z]{2,3}(_[A-Za-z0-9]{2,8})+")
_MADLAD_CODE = re.compile(r"<2[A-Za-z_]+>")
_SENTINEL = re.compile(r"<extra_id_\d+>")
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_SMALL100 = "SMALL100Tokenizer"
_TOKEN = ("_token", "_tokens")  # ends of the fields of special tokens
# Of a tokenizer.json: what SentencePiece does as well, to spaces and by the precompiled rules.
_NORMALIZERS = {"Precompiled", "Strip", "Replace"}
spm: Any = sentencepiece_model_pb2  # whose classes are made when it is imported
ModelProto: TypeAlias = Any
Kind = spm.ModelProto.SentencePiece.Type


class Rows(NamedTuple):
    """How the ids of an imported vocabulary belong to the rows of the original's tables."""

    row: Int[np.ndarray, "V"]  # the original's id; NO_ROW: it has none
    # False: no output of the original, since it has no row, or has the row of another id.
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

    def count_pieces(self) -> dict[str, int]:
        """Returns the numbers of pieces of text, of added ones, of languages and of spare rows."""
        table = self.vocabulary.src.table
        assert table is not None
        added = {each.id for each in table.added}
        named = {*SPECIAL, *table.pieces.values(), *table.symbols.values(), *added}
        return {
            "pieces": len({*table.pieces.values()} - added),
            "added": len(added),
            "codes": len(self.languages),
            "unused": table.size - len(named),
        }


class _Names(NamedTuple):
    """The names of the rows of an original's table."""

    rows: Mapping[str, int]  # by name
    special: tuple[int, int, int, int]  # the rows of PAD, BOS, EOS and UNK
    codes: Mapping[str, str] = {}  # language of a name
    added: Sequence[AddedPiece] = ()  # with rows for ids

    def make(
        self,
        models: Mapping[Path, bytes],
        path: Path,
        vocab_size: int,
        several: float | None,
        *,
        keeps_space: bool = False,
        has_tasks: bool = False,
    ) -> ImportedVocabulary:
        """Makes the vocabulary.

        Args:
            models: one SentencePiece model for both sides, or that of each, by path.
            path: of the names.
            vocab_size: rows of the original's table.
            several: `Vocabulary.several_sentences`, unless the folder says it.
            keeps_space: of the table.
            has_tasks: of the table.

        Raises:
            SourceError: the names do not fit the table.
        """
        rows = {**{each.text: each.id for each in self.added}, **self.rows}
        names = {row: name for name, row in rows.items()}
        advice = "use the files of one model"
        if clashes := [name for name, row in rows.items() if names[row] != name]:
            raise SourceError(
                f"{path}: {clashes[0]!r} and {names[rows[clashes[0]]]!r} have one id; {advice}"
            )
        if (highest := max(names)) >= vocab_size:
            raise SourceError(
                f"{path} has ids up to {highest}, but config.json has vocab_size={vocab_size}; "
                f"{advice}"
            )
        order = [*self.special, *sorted({*range(vocab_size)} - {*self.special})]
        own = {row: id_ for id_, row in enumerate(order)}
        pieces, symbols = {}, {}
        for row, name in names.items():
            if row in self.special:
                continue
            if name in self.codes:
                symbols[f"<2{self.codes[name]}>"] = own[row]
            elif _is_symbol(name):
                symbols[name] = own[row]
            elif name in self.rows:
                pieces[name] = own[row]
        added = [
            each._replace(id=own[each.id])
            for each in sorted(self.added, key=lambda each: each.id)
            if not (each.id in self.special or each.text in self.codes or _is_symbol(each.text))
        ]
        special = [names[row] for row in self.special if row in names]
        table = PieceTable(
            len(order), pieces, symbols, tuple(added), keeps_space, has_tasks,
            special, [*self.codes],
        )  # fmt: skip
        tokenizers = [Tokenizer(model, str(name), table) for name, model in models.items()]
        is_output = [row != NO_ROW and own[row] == id_ for id_, row in enumerate(order)]
        try:
            share = read_share(path.parent / LINES)
        except VocabularyError as error:
            raise SourceError(str(error)) from None
        return ImportedVocabulary(
            Vocabulary(tokenizers[0], tokenizers[-1], several if share is None else share),
            Rows(np.array(order), np.array(is_output)),
            tuple(sorted(self.codes.values())),
        )


def _is_symbol(name: str) -> bool:
    """Returns whether a name is that of a special symbol, which no text is segmented to."""
    return name in (*SPECIAL.values(), "<mask>") or bool(_SENTINEL.fullmatch(name))


def read_marian(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `source.spm`, `target.spm` and `vocab.json`, which numbers the pieces of both.

    BOS is the original's `<pad>`, with which its decoder begins. PAD has no row: it is never seen.
    The codes of target languages, such as `>>fra<<`, become tags, "<2fra>".

    Raises:
        SourceError: a file is missing or damaged, or they do not fit together.
    """
    path = folder / "vocab.json"
    ids = _read_ids(path)
    models = {folder / name: _read_model(folder / name) for name in ("source.spm", "target.spm")}
    pad, eos, unk = (_find(ids, name, path) for name in ("<pad>", "</s>", "<unk>"))
    names = _Names(
        ids,
        (NO_ROW, pad, eos, unk),
        {name: code[1] for name in ids if (code := _MARIAN_CODE.fullmatch(name))},
        added=_read_added(folder, ids, vocab_size, is_fast=False),
    )
    return names.make(models, path, vocab_size, 0.0)


def read_m2m100(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `vocab.json` and `sentencepiece.bpe.model`; the codes of languages follow the pieces.

    Raises:
        SourceError: a file is missing or damaged, or does not fit the table.
    """
    path, model = folder / "vocab.json", folder / "sentencepiece.bpe.model"
    ids = _read_ids(path)
    kind = _read_settings(folder).get("language_codes", "m2m100")
    if kind not in M2M100_LANGUAGES:
        raise SourceError(
            f"{folder / 'tokenizer_config.json'}: language_codes={kind!r} is not supported; it can "
            f"be {', '.join(M2M100_LANGUAGES)}"
        )
    codes = {f"__{code}__": code for code in M2M100_LANGUAGES[kind]}
    ids |= {name: row for row, name in enumerate(codes, start=len(ids))}
    if len(ids) > vocab_size:
        raise SourceError(
            f"{path} has ids up to {len(ids) - 1} with the {len(codes)} languages of "
            f"language_codes={kind!r} (tokenizer_config.json), but config.json has "
            f"vocab_size={vocab_size}; use the files of one model"
        )
    added = _read_added(folder, ids, vocab_size, is_fast=False)
    names = _Names(ids, _find_special(ids, path), codes, added)
    return names.make({model: _read_model(model)}, path, vocab_size, 0.0)


def begins_with_target(folder: Path) -> bool:
    """Returns whether the sources of an M2M-100 begin with the code of the target, as SMaLL-100's.

    Its targets begin with no code.
    """
    return _read_settings(folder).get("tokenizer_class") == _SMALL100


def read_nllb(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `tokenizer.json`; an older `sentencepiece.bpe.model` beside it is not used.

    Language codes become tags, "<2eng_Latn>".

    Raises:
        SourceError: a file is missing or damaged, or does not fit the table.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise SourceError(
            f"{path} is missing, which has the language codes: load the tokenizer with "
            "transformers, and save it again"
        )
    if _read_settings(folder).get("legacy_behaviour"):
        raise SourceError(
            f"{folder / 'tokenizer_config.json'}: legacy_behaviour=True puts codes at the end, "
            "which is not supported; NLLB was trained with codes at the beginning: set it to false "
            "in a copy"
        )
    values = read_json(folder, path.name)
    try:
        ids = {name: int(row) for name, row in values["model"]["vocab"].items()}
        model = _make_bpe(ids, values["model"]["merges"], _read_charsmap(path, values))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} is no BPE vocabulary of NLLB ({error!r})") from None
    added = _read_added(folder, ids, vocab_size, is_fast=True)
    codes = {a.text: a.text for a in added if a.special and _NLLB_CODE.fullmatch(a.text)}
    names = _Names(ids, _find_special(ids, path), codes, added)
    return names.make({path: model}, path, vocab_size, 0.0, keeps_space=True)


def read_mbart(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `tokenizer.json`, or else `sentencepiece.bpe.model`, of mBART-50.

    The ids are fairseq's: four special symbols, the pieces from the fourth on, the codes of
    languages and `<mask>`.

    Raises:
        SourceError: a file is missing or damaged, does not fit the table, or is of an mBART whose
            codes follow the text.
    """
    kind = _read_settings(folder).get("tokenizer_class")
    if str(kind).removesuffix("Fast") not in ("MBart50Tokenizer", "None"):
        raise SourceError(
            f"{folder / 'tokenizer_config.json'}: tokenizer_class={kind!r} is not supported; it "
            "can be MBart50Tokenizer, which puts the code of a language before its text"
        )
    path = folder / "tokenizer.json"
    if path.exists():
        model, texts = _read_pieces(path)
    else:
        path = folder / "sentencepiece.bpe.model"
        model = _read_model(path)
        pieces = [piece.piece for piece in spm.ModelProto.FromString(model).pieces]
        special = [SPECIAL[id_] for id_ in (BOS_ID, PAD_ID, EOS_ID, UNK_ID)]
        texts = [*special, *pieces[3:], *MBART50_LANGUAGES, "<mask>"]
    ids = {name: row for row, name in enumerate(texts)}
    codes = {name: name for name in MBART50_LANGUAGES if name in ids}
    added = _read_added(folder, ids, vocab_size, is_fast=True)
    names = _Names(ids, _find_special(ids, path), codes, added)
    return names.make({path: model}, path, vocab_size, 0.0, keeps_space=True)


def read_t5(folder: Path, vocab_size: int) -> ImportedVocabulary:
    """Reads `tokenizer.json` and `spiece.model`, or one of them; sentinels follow the pieces.

    The first one has the ids. The second one segments text, unless the first one has other pieces.
    BOS is the original's `<pad>`, with which its decoder begins, or `<s>`. PAD is the last of the
    rows that fill the table up, which stays a possible output, or has no row. Sentinels are control
    symbols.

    Raises:
        SourceError: a file is missing or damaged, or does not fit the table.
    """
    path, saved = folder / "spiece.model", folder / "tokenizer.json"
    model, texts = _read_pieces(saved) if saved.exists() else (b"", [])
    defined: list[str] = []
    if path.exists() or not texts:
        content = _read_model(path)
        own = {p.piece: p.type for p in spm.ModelProto.FromString(content).pieces}
        if {name for name in texts if not _SENTINEL.fullmatch(name)} <= own.keys():
            model, texts = content, texts or [*own]
            defined = [name for name, kind in own.items() if kind == Kind.USER_DEFINED]
    added = _read_added(folder, texts, vocab_size, is_fast=True)
    if not any(map(_SENTINEL.fullmatch, (*texts, *(each.text for each in added)))):
        count = _count_sentinels(folder)
        texts = [*texts, *(f"<extra_id_{number}>" for number in reversed(range(count)))]
    ids = {name: row for row, name in enumerate(texts)}
    added += [AddedPiece(name, ids[name]) for name in defined]
    path = path if path.exists() else saved
    start = "<pad>" if "<pad>" in ids else "<s>"
    spare = {*range(vocab_size)} - {*ids.values(), *(each.id for each in added)}
    bos, eos, unk = (_find(ids, name, path) for name in (start, "</s>", "<unk>"))
    names = _Names(ids, (max(spare, default=NO_ROW), bos, eos, unk), added=added)
    is_madlad = any(map(_MADLAD_CODE.fullmatch, ids))
    several = 0.0 if is_madlad else None
    return names.make({path: model}, path, vocab_size, several, has_tasks=True)


def _read_pieces(path: Path) -> tuple[bytes, list[str]]:
    """Reads a model of `tokenizers`: as one of SentencePiece, and its pieces by row."""
    values = read_json(path.parent, path.name)
    try:
        unigram = values["model"]
        kind = unigram.get("type", "BPE" if "merges" in unigram else "Unigram")
        if kind == "BPE":
            ids = {str(name): int(row) for name, row in unigram["vocab"].items()}
            model = _make_bpe(ids, unigram["merges"], _read_charsmap(path, values))
            return model, sorted(ids, key=ids.__getitem__)
        if kind != "Unigram":
            raise SourceError(f"{path} holds a model {kind!r}; it can be 'Unigram' or 'BPE'")
        vocab = [(str(name), float(score)) for name, score in unigram["vocab"]]
        model = _make_model(
            "UNIGRAM",
            vocab,
            vocab[unigram["unk_id"]][0],
            {token["content"] for token in values["added_tokens"] if token["special"]},
            _read_charsmap(path, values),
            has_bytes=bool(unigram.get("byte_fallback")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} is damaged: {error!r}; download it again") from None
    return model, [name for name, _ in vocab]


def _make_bpe(ids: Iterable[str], merges: Sequence[Any], charsmap: bytes) -> bytes:
    """Makes a BPE model, in which the score of a piece is its place among the merges."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault(left + right, rank)
    # A longer piece without a merge is none that text is segmented to.
    names = [name for name in ids if len(name) == 1 or name in ranks or name in SPECIAL.values()]
    scores = [(name, -float(ranks.get(name, len(merges)))) for name in names]
    return _make_model("BPE", scores, SPECIAL[UNK_ID], {*SPECIAL.values(), "<mask>"}, charsmap)


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
        kind: BPE or UNIGRAM.
        scores: of the pieces.
        unknown: the piece of what has none.
        control: pieces that no text is segmented to.
        charsmap: the precompiled rules of normalisation.
        has_bytes: whether characters without a piece are spelled in bytes.
    """
    model = spm.ModelProto()
    settings = model.trainer_spec
    settings.model_type = spm.TrainerSpec.ModelType.Value(kind)
    settings.byte_fallback = has_bytes
    settings.unk_piece, settings.bos_id, settings.eos_id, settings.pad_id = unknown, -1, -1, -1
    model.normalizer_spec.name = "from tokenizer.json"
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


def _read_charsmap(path: Path, values: Mapping[str, Any]) -> bytes:
    """Returns the rules of normalisation in a `tokenizer.json`; empty if there are none.

    Raises:
        SourceError: it has others than SentencePiece.
    """
    normalizer = values["normalizer"] or {"normalizers": []}
    parts = normalizer.get("normalizers", [normalizer])
    if others := [part["type"] for part in parts if part["type"] not in _NORMALIZERS]:
        raise SourceError(
            f"{path}: its normaliser ({', '.join(part['type'] for part in parts)}) is not "
            f"supported, because of {', '.join(others)}; a SentencePiece model has one with "
            "precompiled rules"
        )
    return b"".join(base64.b64decode(part.get("precompiled_charsmap") or "") for part in parts)


def _read_added(
    folder: Path, known: Collection[str], vocab_size: int, *, is_fast: bool
) -> list[AddedPiece]:
    """Reads the added tokens of all files, with their rows for ids.

    Special ones without a row get the next ones, if the table has them.

    Args:
        folder: of the tokenizer.
        known: the pieces of its model.
        vocab_size: rows of the table.
        is_fast: whether `tokenizers` finds them, which may search normalised text.

    Raises:
        SourceError: a file is damaged.
    """
    files = {
        name: read_json(folder, name) if (folder / name).exists() else {}
        for name in (
            *("added_tokens.json", "special_tokens_map.json"),
            *("tokenizer_config.json", "tokenizer.json"),
        )
    }
    older, names, settings, saved = files.values()
    tokens = [*names.values(), *(value for key, value in settings.items() if key.endswith(_TOKEN))]
    nested = (token if isinstance(token, list) else [token] for token in tokens)
    special = [text for own in nested for token in own if (text := _find_text(token))]
    try:
        given = [
            *(
                {"id": row, "content": text, "special": text in special}
                | {"normalized": text not in special}
                for text, row in older.items()
            ),
            *({"id": row} | own for row, own in settings.get("added_tokens_decoder", {}).items()),
            *saved.get("added_tokens", ()),
        ]
        found = {
            token["content"]: AddedPiece(
                str(token["content"]),
                int(token["id"]),
                is_fast and bool(token.get("normalized")),
                *(bool(token.get(flag)) for flag in ("single_word", "lstrip", "rstrip", "special")),
            )
            for token in given
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(f"{folder}: the list of added tokens is damaged: {error!r}") from None
    row = max([len(known), *(each.id + 1 for each in found.values())])
    for text in dict.fromkeys(special):
        is_new = text not in found and text not in known and not _SENTINEL.fullmatch(text)
        if is_new and row < vocab_size:
            found[text] = AddedPiece(text, row, special=True)
            row += 1
    return [*found.values()]


def _find_text(token: Any) -> str:
    """Returns the text of a special token, which may be a dictionary; "" if it is none."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _count_sentinels(folder: Path) -> int:
    """The sentinels that the tokenizer adds to the pieces of its model."""
    count: Any = _read_settings(folder).get("extra_ids", 100)
    if type(count) is not int or count < 0:
        raise SourceError(f"{folder / 'tokenizer_config.json'}: extra_ids={count!r} is no number")
    return count


def _read_settings(folder: Path) -> dict[str, Any]:
    name = "tokenizer_config.json"
    return read_json(folder, name) if (folder / name).exists() else {}


def _read_ids(path: Path) -> dict[str, int]:
    """Reads {piece: id}; the ids must be 0, 1, 2, ..."""
    ids = read_json(path.parent, path.name)
    if {*ids.values()} != {*range(len(ids))}:
        raise SourceError(f"{path}: the ids are not 0 to {len(ids) - 1}, each once")
    return ids


def _find_special(ids: Mapping[str, int], path: Path) -> tuple[int, int, int, int]:
    """Returns the rows of PAD, BOS, EOS and UNK by their names."""
    pad, bos, eos, unk = (_find(ids, SPECIAL[id_], path) for id_ in range(len(SPECIAL)))
    return pad, bos, eos, unk


def _find(ids: Mapping[str, int], name: str, path: Path) -> int:
    if name not in ids:
        raise SourceError(f"{path} has no {name}; use the files of one model")
    return ids[name]


def _read_model(path: Path) -> bytes:
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
    return content
