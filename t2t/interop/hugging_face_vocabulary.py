"""Reads the tokenizers of `transformers` as vocabularies with this project's ids.

Text is segmented by the original's SentencePiece model, and its pieces are looked up in a table of
ids (`t2t.data.piece_table`), in which PAD, BOS, EOS and UNK are 0 to 3. `Rows` says which row of
the original's embedding tables each id has.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from t2t.config.fields import TokenizerConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.counted_vocabulary import NUM_BYTES, count_vocabulary
from t2t.data.piece_table import SPECIAL, AddedPiece, PieceTable
from t2t.data.tokenizer import (
    LINES,
    ORIGINAL_IDS,
    Tokenizer,
    Vocabulary,
    VocabularyError,
    make_normalizer,
    read_share,
)
from t2t.interop.hugging_face_folder import SourceError, read_json
from t2t.interop.tokenizer_json import (
    Kind,
    Spaces,
    TokenizerFile,
    check_same_model,
    check_same_rows,
    read_plain_sentencepiece,
    read_sentencepiece,
    read_tokenizer_json,
    spm,
)
from t2t.interop.tokenizer_settings import BYT5, GENERIC, SENTINEL, SMALL100, TokenizerSettings
from t2t.storage.atomic_files import write_file

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
_NLLB = "NllbTokenizer"


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
        if table is None:  # of bytes
            return {"bytes": NUM_BYTES, "sentinels": len(self.vocabulary.src.sentinel_ids)}
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
        share = _read_share(path.parent)
        return ImportedVocabulary(
            Vocabulary(tokenizers[0], tokenizers[-1], several if share is None else share),
            Rows(np.array(order), np.array(is_output)),
            tuple(sorted(self.codes.values())),
        )


def _is_symbol(name: str) -> bool:
    """Returns whether a name belongs to a special symbol, which no text is segmented to."""
    return name in (*SPECIAL.values(), "<mask>") or bool(SENTINEL.fullmatch(name))


def read_marian(settings: TokenizerSettings, vocab_size: int) -> ImportedVocabulary:
    """Reads `source.spm`, `target.spm` and `vocab.json`, which numbers the pieces of both.

    BOS is the original's `<pad>`, with which its decoder begins. PAD has no row: it is never seen.
    The codes of target languages, such as `>>fra<<`, become tags, "<2fra>".

    Raises:
        SourceError: a file is missing or damaged, or they do not fit together.
    """
    settings.check_class("MarianTokenizer", "MarianTokenizer")
    path = settings.folder / "vocab.json"
    ids = _read_ids(path)
    models = {
        name: read_sentencepiece(name)
        for name in (settings.folder / "source.spm", settings.folder / "target.spm")
    }
    check_same_rows(path, ids, settings.folder / "tokenizer.json")
    pad, eos, unk = (_find(ids, name, path) for name in ("<pad>", "</s>", "<unk>"))
    names = _Names(
        ids,
        (NO_ROW, pad, eos, unk),
        {name: code[1] for name in ids if (code := _MARIAN_CODE.fullmatch(name))},
        added=settings.read_added(ids, vocab_size, is_fast=False),
    )
    return names.make(models, path, vocab_size, 0.0)


def read_m2m100(settings: TokenizerSettings, vocab_size: int) -> ImportedVocabulary:
    """Reads the files of M2M100Tokenizer, or those of NllbTokenizer.

    Raises:
        SourceError: a file is missing or damaged, or does not fit the table.
    """
    kind = settings.check_class("M2M100Tokenizer", "M2M100Tokenizer", _NLLB, SMALL100)
    read = _read_nllb if kind == _NLLB else _read_m2m100
    return read(settings, vocab_size)


def _read_m2m100(settings: TokenizerSettings, vocab_size: int) -> ImportedVocabulary:
    """Reads `vocab.json` and `sentencepiece.bpe.model`; the codes of languages follow the pieces.

    A `tokenizer.json` beside them, which this class does not read, must have the same ids.
    """
    folder = settings.folder
    path, model = folder / "vocab.json", folder / "sentencepiece.bpe.model"
    if not path.exists() and (folder / "tokenizer.json").exists():
        raise SourceError(
            f"{path} is missing, which M2M100Tokenizer reads; an NLLB has tokenizer_class="
            f"{_NLLB!r} in its tokenizer_config.json: copy that file from the original"
        )
    ids = _read_ids(path)
    settings.fill(language_codes="m2m100")
    kind = settings.translate("language_codes", {name: name for name in M2M100_LANGUAGES})
    codes = {f"__{code}__": code for code in M2M100_LANGUAGES[kind]}
    ids |= {name: row for row, name in enumerate(codes, start=len(ids))}
    if len(ids) > vocab_size:
        raise SourceError(
            f"{path} has ids up to {len(ids) - 1} with the {len(codes)} languages of "
            f"language_codes={kind!r} (tokenizer_config.json), but config.json has "
            f"vocab_size={vocab_size}; use the files of one model"
        )
    check_same_rows(path, ids, folder / "tokenizer.json")
    added = settings.read_added(ids, vocab_size, is_fast=False)
    names = _Names(ids, _find_special(ids, path), codes, added)
    return names.make({model: read_sentencepiece(model)}, path, vocab_size, 0.0)


def _read_nllb(settings: TokenizerSettings, vocab_size: int) -> ImportedVocabulary:
    """Reads `tokenizer.json`; a `sentencepiece.bpe.model` beside it may have fewer pieces.

    Language codes become tags, "<2eng_Latn>".
    """
    path = settings.folder / "tokenizer.json"
    if not path.exists():
        raise SourceError(
            f"{path} is missing, which has the language codes: load the tokenizer with "
            "transformers, and save it again"
        )
    if settings.flag("legacy_behaviour"):
        raise SourceError(
            f"{settings.folder / settings.file}: legacy_behaviour=True puts codes at the end, "
            "which is not supported; NLLB was trained with codes at the beginning: set it to false "
            "in a copy"
        )
    file = _read_fairseq(path)
    added = settings.read_added(file.rows, vocab_size, is_fast=True)
    codes = {a.text: a.text for a in added if a.special and _NLLB_CODE.fullmatch(a.text)}
    if not codes:
        raise SourceError(
            f"{path} has no codes of languages, such as eng_Latn, among its special tokens; copy "
            "the file from the original"
        )
    names = _Names(file.rows, _find_special(file.rows, path), codes, added)
    return names.make({path: file.model}, path, vocab_size, 0.0, keeps_space=True)


def read_mbart(settings: TokenizerSettings, vocab_size: int) -> ImportedVocabulary:
    """Reads `tokenizer.json`, or else `sentencepiece.bpe.model`, of mBART-50.

    The ids are fairseq's: four special symbols, the pieces from the fourth on, the codes of
    languages and `<mask>`.

    Raises:
        SourceError: a file is missing or damaged, does not fit the table, or is of an mBART whose
            codes follow the text.
    """
    settings.check_class("MBartTokenizer", "MBart50Tokenizer")
    path = settings.folder / "tokenizer.json"
    if path.exists():
        file = _read_fairseq(path)
        model, ids = file.model, file.rows
    else:
        path = settings.folder / "sentencepiece.bpe.model"
        model = read_plain_sentencepiece(path)
        pieces = [piece.piece for piece in spm.ModelProto.FromString(model).pieces]
        special = [SPECIAL[id_] for id_ in (BOS_ID, PAD_ID, EOS_ID, UNK_ID)]
        texts = [*special, *pieces[3:], *MBART50_LANGUAGES, "<mask>"]
        ids = {name: row for row, name in enumerate(texts)}
    codes = {name: name for name in MBART50_LANGUAGES if name in ids}
    if not codes:
        raise SourceError(
            f"{path} has no codes of languages, such as en_XX; copy it from the original"
        )
    added = settings.read_added(ids, vocab_size, is_fast=True)
    names = _Names(ids, _find_special(ids, path), codes, added)
    return names.make({path: model}, path, vocab_size, 0.0, keeps_space=True)


def _read_fairseq(path: Path) -> TokenizerFile:
    """Reads a `tokenizer.json` whose class puts the code of a language before a text."""
    file, other = read_tokenizer_json(path, sets_template=True), "sentencepiece.bpe.model"
    if path.with_name(other).exists():
        check_same_model(file, path.with_name(other))
    return file


def read_t5(settings: TokenizerSettings, vocab_size: int) -> ImportedVocabulary:
    """Reads `tokenizer.json` and `spiece.model`, or one of them; sentinels follow the pieces.

    The first one has the ids. The second one segments text, unless the first one has more pieces.
    BOS is the original's `<pad>`, with which its decoder begins, or `<s>`. PAD is the last of the
    rows that fill the table up, which stays a possible output, or has no row. Sentinels are control
    symbols.

    Raises:
        SourceError: a file is missing or damaged, or does not fit the table.
    """
    is_generic, file = settings.is_generic, None
    if (saved := settings.folder / "tokenizer.json").exists():
        file = read_tokenizer_json(saved, is_t5=not is_generic)
    settings.check_class("T5Tokenizer", "T5Tokenizer", "MT5Tokenizer", *GENERIC)
    path, model, ids, defined = _read_t5_model(settings.folder / "spiece.model", file)
    if not (settings.adds_sentinels or any(map(SENTINEL.fullmatch, ids))):
        sentinels = (f"<extra_id_{n}>" for n in reversed(range(settings.count_sentinels())))
        ids |= {name: row for row, name in enumerate(sentinels, start=len(ids))}
    added = settings.read_added(ids, vocab_size, is_fast=True)
    added += [AddedPiece(name, ids[name]) for name in defined]
    spaces = file.spaces if file and is_generic else Spaces()
    if spaces.scheme == "first" and not all(_is_symbol(each.text) for each in added):
        raise SourceError(
            f"{saved}: pre_tokenizer has Metaspace with prepend_scheme='first', which "
            "SentencePiece does not do after an added token; use this model in transformers"
        )
    if spaces.keeps_space and spaces.strips:
        added = [each if each.normalized else each._replace(lstrip=True) for each in added]
    start = "<pad>" if "<pad>" in ids else "<s>"
    spare = {*range(vocab_size)} - {*ids.values(), *(each.id for each in added)}
    bos, eos, unk = (_find(ids, name, path) for name in (start, "</s>", "<unk>"))
    names = _Names(ids, (max(spare, default=NO_ROW), bos, eos, unk), added=added)
    several = 0.0 if any(map(_MADLAD_CODE.fullmatch, ids)) else None
    return names.make(
        {path: model}, path, vocab_size, several, keeps_space=spaces.keeps_space, has_tasks=True
    )


def read_byt5(settings: TokenizerSettings, vocab_size: int) -> ImportedVocabulary:
    """Makes the vocabulary of ByT5 (Xue et al. 2022), which has no file: bytes and sentinels.

    It is that of `tokenizer.kind=bytes`, whose ids are the original's plus one: PAD has no row, and
    BOS is the original's `<pad>`, with which its decoder begins.

    Raises:
        SourceError: the table has another number of rows, or tokens were added.
    """
    settings.check_class(BYT5, BYT5)
    count = settings.count_sentinels(default=125)
    sentinels = [f"<extra_id_{n}>" for n in range(count)]
    first = 3 + NUM_BYTES
    known = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {
        name: row for row, name in enumerate(sentinels, start=first)
    }
    if first + count != vocab_size:
        raise SourceError(
            f"config.json: vocab_size={vocab_size}, but {BYT5} has {first + count} ids: 3 special "
            f"ones, {NUM_BYTES} bytes and {count} sentinels; use the files of one model"
        )
    added = settings.read_added(known, vocab_size, is_fast=False)
    if new := [each.text for each in added if each.text not in known]:
        raise SourceError(
            f"{settings.folder}: the added token {new[0]!r} is no byte, which is not supported; "
            "use this model in transformers"
        )
    config = TokenizerConfig(kind="bytes", sentinels=count)
    model = count_vocabulary("", (), (), config, (), make_normalizer(lowercase=False))
    tokenizer = Tokenizer(model, BYT5)
    rows = number_bytes(tokenizer.vocab_size)
    share = _read_share(settings.folder)
    return ImportedVocabulary(Vocabulary(tokenizer, tokenizer, share), rows)


def number_bytes(size: int) -> Rows:
    """Returns ByT5's ids of a vocabulary of bytes; that of BOS is 0."""
    row = np.arange(size) - 1
    row[PAD_ID] = NO_ROW
    return Rows(row, row != NO_ROW)


def _read_share(folder: Path) -> float | None:
    """Reads `Vocabulary.several_sentences` of a model that t2t has exported."""
    try:
        return read_share(folder / LINES)
    except VocabularyError as error:
        raise SourceError(str(error)) from None


def _read_t5_model(
    path: Path, file: TokenizerFile | None
) -> tuple[Path, bytes, dict[str, int], list[str]]:
    """Returns the path of the SentencePiece model, the model, rows, and user-defined pieces."""
    if file and not path.exists():
        return file.path, file.model, dict(file.rows), []
    content = read_plain_sentencepiece(path)
    pieces = spm.ModelProto.FromString(content).pieces
    own = {piece.piece: row for row, piece in enumerate(pieces)}
    defined = [each.piece for each in pieces if each.type == Kind.USER_DEFINED]
    if not file:
        return path, content, own, defined
    check_same_model(file, path)
    if {name for name in file.rows if not SENTINEL.fullmatch(name)} <= own.keys():
        return path, content, dict(file.rows), defined
    return path, file.model, dict(file.rows), []


def _read_ids(path: Path) -> dict[str, int]:
    """Reads {piece: id}; the ids must be 0, 1, 2, ..."""
    ids = read_json(path.parent, path.name)
    if not all(type(row) is int for row in ids.values()) or {*ids.values()} != {*range(len(ids))}:
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
