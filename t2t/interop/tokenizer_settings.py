"""Reads what a folder says of its tokenizer beside the vocabulary: its class and added tokens.

These are `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`, the list of added
tokens in `tokenizer.json`, and `tokenizer_class` of `config.json`. Files that disagree are refused.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t2t.data.batch import EOS_ID, UNK_ID
from t2t.data.piece_table import SPECIAL, AddedPiece
from t2t.interop.hugging_face_folder import SourceError, read_json
from t2t.interop.json_fields import OFF, ForeignFields
from t2t.interop.tokenizer_json import NAME, explain_difference

SENTINEL = re.compile(r"<extra_id_\d+>")
# Classes that take tokenizer.json as it is.
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
SMALL100 = "SMALL100Tokenizer"
BYT5 = "ByT5Tokenizer"  # which has no file of a vocabulary
_T5 = {"T5Tokenizer", "MT5Tokenizer", *GENERIC}  # may stand for each other
_SETTINGS, _SPECIAL, _ADDED = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_FILES = (NAME, "vocab.json", "*.spm", "*.model")  # of which a tokenizer has one
_TOKEN = ("_token", "_tokens")  # ends of the fields of special tokens
# Fields that no sub-word depends on, and those that a reader takes.
_WITHOUT_EFFECT = """
    tokenizer_class tokenizer_type processor_class model_type backend legacy use_fast from_slow
    name_or_path special_tokens_map_file tokenizer_file vocab_file _commit_hash revision is_local
    local_files_only transformers_version trust_remote_code device_map model_input_names
    model_max_length max_len max_length padding padding_side pad_to_multiple_of pad_token_type_id
    truncation truncation_side truncation_strategy stride return_tensors chat_template unk_id
    spaces_between_special_tokens num_madeup_words extra_ids language_codes legacy_behaviour
    src_lang tgt_lang source_lang target_lang added_tokens_decoder auto_map tokenizers_version
    vocab_size source_spm target_spm target_vocab_file merges_file full_tokenizer_file bos_token_id
    eos_token_id pad_token_id unk_token_id
""".split()
# Fields with the only values that change no sub-word.
_ALLOWED: Mapping[str, tuple[Any, ...]] = {
    "add_bos_token": (False, None),
    "add_eos_token": (True, None),
    "add_prefix_space": (True, None),
    "add_special_tokens": (True, None),
    "do_lower_case": (False, None),
    "separate_vocabs": (False, None),
    "sp_model_kwargs": ({}, None),
    "split_special_tokens": (False, None),
}
# Parts of the names of other fields that may change sub-words.
_OF_SEGMENTATION = re.compile(
    "accent|bpe|byte|case|drop|lang|lower|merge|nbest|normal|prefix|sampl|sentencepiece|space|"
    "split|strip|suffix|token|unk|vocab"
)
# What other classes do.
_OTHERS = {
    BYT5: "bytes, a vocabulary of T5 alone",
    "MBartTokenizer": "codes of languages that follow the text, as in mBART-25",
    **dict.fromkeys(
        ("BartTokenizer", "GPT2Tokenizer", "RobertaTokenizer", "Qwen2Tokenizer"),
        "a BPE of bytes (ByteLevel)",
    ),
    **dict.fromkeys(("BertTokenizer", "T5PegasusTokenizer"), "WordPiece"),
    **dict.fromkeys(GENERIC, "codes of languages as tokenizer.json has them, for one direction"),
    "LlamaTokenizer": "a BPE without spaces at the beginning, and BOS",
}


class TokenizerSettings(ForeignFields):
    """The settings of the tokenizer of a folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        """Reads the files; `config` has the fields of config.json.

        Raises:
            SourceError: a file is damaged.
        """

        def read(name: str) -> dict[str, Any]:
            return read_json(folder, name) if (folder / name).exists() else {}

        super().__init__(_SETTINGS, read(_SETTINGS), _WITHOUT_EFFECT)
        self.folder, self._config = folder, config
        self._special, self._older, self._saved = map(read, (_SPECIAL, _ADDED, NAME))
        self.ignore(*(name for name in self._values if name.endswith(_TOKEN)))

    def find_class(self, default: str) -> str:
        """Returns the name of the class, without "Fast"; `default` is that of `transformers`."""
        found = self._values.get("tokenizer_class") or self._config.get("tokenizer_class")
        return _shorten(found or default)

    @property
    def is_generic(self) -> bool:
        """True if the class takes tokenizer.json as it is, as umT5's does."""
        found = self.find_class("")
        return found in GENERIC or self._config.get("model_type") == "umt5"

    def check_class(self, default: str, *allowed: str) -> str:
        """Returns `find_class`, after checking it and what may change the sub-words of any class.

        Raises:
            SourceError: it is none of `allowed`, two files disagree, or a setting is not supported.
        """
        own, other = self._values.get("tokenizer_class"), self._config.get("tokenizer_class")
        found = self.find_class(default)
        if found not in allowed:
            file = self.folder / (_SETTINGS if own or not other else "config.json")
            given = f"tokenizer_class={own or other!r}"
            if not own and not other:
                given = f"without a tokenizer_class (nor in config.json), this is {found}"
            does = _OTHERS.get(found, "")
            raise SourceError(
                f"{file}: {given}: {f'{does}, ' * bool(does)}not supported; use transformers (the "
                f"import reads {', '.join(allowed)})"
            )
        if own and other and _shorten(other) != found and not {found, _shorten(other)} <= _T5:
            raise SourceError(
                f"{self.folder / _SETTINGS} and config.json disagree: tokenizer_class is {own!r} "
                f"and {other!r}; correct one of them in a copy"
            )
        if self._values.get("auto_map") and found != SMALL100:
            raise self.refuse("auto_map", "names code of the author's, which is not run")
        for name, values in _ALLOWED.items():
            self.allow(name, *values)
        self._check_special()
        has_file = any(path for pattern in _FILES for path in self.folder.glob(pattern))
        if not has_file and found != BYT5:
            raise SourceError(
                f"{self.folder} has no tokenizer: no file {', '.join(_FILES)}; save it beside the "
                "model with tokenizer.save_pretrained, or name the folder of its vocabulary by "
                "--tokenizer, such as hf:google/mt5-large of a descendant of mT5"
            )
        return found

    def _check_special(self) -> None:
        """Checks the names of EOS and UNK, and that two files have the same special tokens."""
        files = {_SPECIAL: self._special, _SETTINGS: self._values}
        for name, id_ in (("eos_token", EOS_ID), ("unk_token", UNK_ID)):
            for file, values in files.items():
                if (given := values.get(name)) is not None and _find_text(given) != SPECIAL[id_]:
                    raise SourceError(
                        f"{self.folder / file}: {name}={given!r} is not supported; it can be "
                        f"{SPECIAL[id_]!r}"
                    )
        for name in self._special.keys() & self._values.keys():
            first, second = (_find_text(values[name]) for values in files.values())
            if name.endswith("_token") and first != second:
                found = f"{name} is {first!r} and {second!r}"
                raise explain_difference(self.folder / _SPECIAL, self.folder / _SETTINGS, found)

    def finish(self) -> list[str]:
        """Returns warnings of the fields that nobody knows, and that change no sub-word.

        Raises:
            SourceError: another one seems to change some.
        """
        warnings = []
        for name, value in self.list_unread().items():
            effect = "is not known and is ignored"
            if name == "clean_up_tokenization_spaces":
                effect = "is not taken: translations keep spaces before punctuation"
            elif value not in OFF and _OF_SEGMENTATION.search(name):
                raise self.refuse(
                    name, "is not understood, so text may have other sub-words; use transformers"
                )
            if value not in OFF:
                warnings.append(f"{self.file}: {name}={value!r} {effect}")
        return warnings

    def read_language(self, name: str) -> str:
        """Returns the code of a language; "" if there is none.

        Raises:
            SourceError: the field is no text.
        """
        code = self.get(name)
        if not isinstance(code, str | None):
            raise self.refuse(name, "is no code of a language; correct it in a copy of the file")
        return code or ""

    def count_sentinels(self, default: int = 100) -> int:
        """Returns the number of sentinels that the tokenizer adds to the pieces of its model.

        Raises:
            SourceError: it is no number, or the list of special tokens has others.
        """
        self.fill(extra_ids=default)
        count = self.take("extra_ids", int)
        listed = {text for text in self._list_special() if SENTINEL.fullmatch(text)}
        if not count and self.find_class("") == BYT5:  # which saves 0 beside its list
            return len(listed)
        if len(listed) not in (0, count):
            raise self.refuse("extra_ids", f"but {len(listed)} are listed; correct it in a copy")
        return count

    def read_added(
        self, known: Mapping[str, int], vocab_size: int, *, is_fast: bool
    ) -> list[AddedPiece]:
        """Reads the added tokens of all files, with their rows for ids.

        Special ones without a row get the next ones, if the table has them.

        Args:
            known: the pieces of the model, with their rows.
            vocab_size: rows of the table.
            is_fast: whether `tokenizers` finds them, which may search normalised text.

        Raises:
            SourceError: a file is damaged, or two disagree.
        """
        special = [*self._list_special()]
        found: dict[str, tuple[AddedPiece, str]] = {}
        for file, entry in self._list_added(special):
            piece = _read_piece(self.folder / file, entry, is_fast=is_fast)
            row = known.get(piece.text, piece.id)
            before, other = found.get(piece.text, (piece, file))
            if row != piece.id:
                raise SourceError(
                    f"{self.folder / file}: {piece.text!r} has the id {piece.id}, but {row} in the "
                    "vocabulary; use the files of one model"
                )
            if before.id != piece.id:
                text = f"{piece.text!r} is {piece.id} and {before.id}"
                raise explain_difference(self.folder / file, self.folder / other, text)
            found[piece.text] = piece, file
        pieces = [each for each, _ in found.values()]
        if is_fast:
            self._check_numbering(found, known)
        row = max([*known.values(), *(each.id for each in pieces)], default=-1) + 1
        for text in dict.fromkeys(special):
            is_new = text not in found and text not in known and not SENTINEL.fullmatch(text)
            if is_new and row < vocab_size:
                pieces.append(AddedPiece(text, row, special=True))
                row += 1
        return pieces

    def _check_numbering(
        self, found: Mapping[str, tuple[AddedPiece, str]], known: Mapping[str, int]
    ) -> None:
        """Checks that added tokens have the ids that `tokenizers` gives them.

        Those that its model lacks get the next ones, in the order of tokenizer.json.
        """
        listed = (text for text, (_, file) in found.items() if file == NAME)
        order = dict.fromkeys([*listed, *sorted(found, key=lambda text: found[text][0].id)])
        for row, text in enumerate((each for each in order if each not in known), len(known)):
            piece, file = found[text]
            if piece.id != row:
                raise SourceError(
                    f"{self.folder / file}: the added token {text!r} has the id {piece.id}, but "
                    f"tokenizers gives it {row}, the next one; load the tokenizer with "
                    "transformers, and save it again"
                )

    @property
    def adds_sentinels(self) -> bool:
        """True if sentinels are among the added tokens."""
        return any(SENTINEL.fullmatch(_find_text(entry)) for _, entry in self._list_added([]))

    def _list_special(self) -> Iterator[str]:
        """Yields the texts of special tokens, from the fields that `transformers` 5 reads."""
        values = self._special | self._values
        if "added_tokens_decoder" in self._values:
            values = self._values
        if values.get("extra_special_tokens"):
            values = {**values, "additional_special_tokens": None}
        for name, value in values.items():
            if isinstance(value, dict) and "content" not in value:  # texts by their names
                tokens = [*value.values()]
            else:
                tokens = value if isinstance(value, list) else [value]
            yield from filter(None, map(_find_text, tokens if name.endswith(_TOKEN) else ()))

    def _list_added(self, special: list[str]) -> Iterator[tuple[str, Any]]:
        """Yields the entries of added tokens as tokenizer.json writes them, with their files."""
        for text, row in self._older.items():
            yield _ADDED, {"id": row, "content": text, "special": text in special}
        decoder = self._values.get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict):
            raise _damaged(self.folder / _SETTINGS, decoder)
        for row, entry in decoder.items():
            if not (isinstance(entry, dict) and row.isdecimal()):
                raise _damaged(self.folder / _SETTINGS, entry)
            yield _SETTINGS, {"id": int(row)} | entry
        saved = self._saved.get("added_tokens") or []
        for entry in saved if isinstance(saved, list) else [saved]:
            yield NAME, entry


_FLAGS = ("single_word", "lstrip", "rstrip", "special")


def _read_piece(path: Path, entry: Any, *, is_fast: bool) -> AddedPiece:
    if not isinstance(entry, dict):
        raise _damaged(path, entry)
    row: Any = entry.get("id")
    text: Any = entry.get("content")
    flags = [entry.get("normalized", not entry.get("special", False))]
    flags += [entry.get(flag, False) for flag in _FLAGS]
    is_known = entry.keys() <= {"id", "content", "normalized", "__type", *_FLAGS}
    is_whole = type(row) is int and row >= 0 and isinstance(text, str)
    if not (is_whole and is_known and all(isinstance(flag, bool) for flag in flags)):
        raise _damaged(path, entry)
    normalized, *others = flags
    return AddedPiece(text, row, is_fast and normalized, *others)


def _damaged(path: Path, entry: Any) -> SourceError:
    return SourceError(
        f"{path}: the list of added tokens is damaged: {entry!r}; save the tokenizer again"
    )


def _shorten(name: Any) -> str:
    """Returns the name of a class without "Fast", which `transformers` 5 has dropped."""
    return str(name) if name in GENERIC else str(name).removesuffix("Fast")


def _find_text(token: Any) -> str:
    """Returns the text of a special token, which may be a dictionary; "" if it is none."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
