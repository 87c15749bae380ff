"""Vocabularies and tokenisation with SentencePiece.

Text is not normalised ("identity", instead of SentencePiece's default "nmt_nfkc"): NFKC turns "½"
into "1/2" and "…" into "...", so a model trained on such targets could never produce the text of
the references. Only spaces change: white space at both ends and repeated spaces are dropped, line
breaks and "▁" (U+2581), SentencePiece's own symbol for a space, become spaces, and a sentence
without a visible character is empty (`sentences`). Vocabularies of characters and bytes keep
repeated spaces and "▁" (`counted_vocabulary`). With `tokenizer.lowercase` the model file itself
holds the rules that lower-case text, so every reader of the file applies them.
"""

import copy
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import sentencepiece

from t2t.config.fields import ConfigError, DecodingConfig, TokenizerConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.corpus import Corpus, DataError, sample_pairs
from t2t.data.counted_vocabulary import COUNTED, count_vocabulary, split_words
from t2t.data.piece_table import SPACE, PieceTable
from t2t.data.sentences import clean_sentence, split_sentences
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.storage.paths import describe_error, make_path

SENTINEL = "<extra_id_{}>"  # as T5 names them; control symbols, which no text is tokenised to
_MAX_TRAINING_PAIRS = 5_000_000  # of a larger corpus, only every second, third, ... pair is used
_SAMPLED_LINES = 20_000  # whose sentences are counted
# With split_sentences=auto, lines stay whole if at least this share of the source lines of training
# holds several sentences (docs/decoding.md has the measurement).
SEVERAL = 0.1
_MODEL, _TABLE = ".model", ".pieces.json"  # ends of a tokenizer's files
_FILES = {name + end for name in ("joint", "src", "tgt") for end in (_MODEL, _TABLE)}
# In the vocab/ of an imported model: the original's ids, for the way out (t2t/interop).
ORIGINAL_IDS = "original_ids.json"
LINES = "lines.json"  # about the text on which a vocabulary was trained
_SPECIAL_IDS = {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID, "unk": UNK_ID}
_SYMBOL = re.compile(r"<(?:/?s|pad|unk|mask|extra_id_\d+)>")
# The task at the beginning of a text of T5, or the target language of MADLAD-400.
_TASK = re.compile(
    r"\s*(?:(?:translate [\w ()]{1,30} to [\w ()]{1,30}|summarize): |(?P<code><2[A-Za-z_]+>))",
    re.IGNORECASE,
)
SYMBOL = re.compile(r"<[^<>\s]+>")  # a word of `data.prefix` that is one id
# What may be the code of a language before a text.
_FIRST_WORD = re.compile(r">>\S+?<<|\S+(?=\s)")


class Piece(NamedTuple):
    """A sub-word of the vocabulary."""

    id: int
    score: float  # bpe: higher is merged earlier; unigram: log-probability


class VocabularyError(ValueError):
    """A vocabulary that is missing or damaged; the message names the file."""


class Tokenizer:
    """A SentencePiece model, from the bytes of its file; `origin` names it in error messages.

    With a table, as of an imported vocabulary, the ids are the table's.
    """

    # Ids that `encode` puts in front of a sentence (`directions`): a tag, and a prefix.
    tag_ids: tuple[int, ...] = ()
    prefix = ""  # the text of the latter
    _has_warned = False  # of special symbols in a text
    # Segments sentences anew, given their ids; `stream` names its random numbers
    # (`subword_sampling`).
    resample: Callable[[Sequence[str], list[list[int]]], list[list[int]]] | None = None
    stream: bytes = b""

    def __init__(self, model: bytes, origin: str, table: PieceTable | None = None):
        try:
            processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise VocabularyError(
                f"{origin} is damaged: SentencePiece cannot read its {len(model)} bytes; "
                "restore it from a copy of the run directory"
            ) from None
        for piece, expected in ({} if table else _SPECIAL_IDS).items():
            if (found := getattr(processor, f"{piece}_id")()) != expected:
                raise VocabularyError(
                    f"{origin} gives {piece.upper()} the id {found} instead of {expected}; use a "
                    "vocabulary that this project trained, or one that SentencePiece trained with "
                    "pad_id=0, bos_id=1, eos_id=2 and unk_id=3"
                )
        self._processor = _number_pieces(processor, table)
        self.model, self.table = model, table
        self.vocab_size = int(self._processor.vocab_size())  # V, special pieces included

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Reads a model file, and the table beside it if there is one."""
        try:
            model = path.read_bytes()
        except OSError as error:
            raise VocabularyError(f"{path} cannot be read: {describe_error(error)}") from None
        table = path.with_suffix(_TABLE)
        if not table.exists():
            return cls(model, str(path))
        try:
            return cls(model, str(path), PieceTable.parse(table.read_bytes()))
        except VocabularyError:  # of the model
            raise
        except (OSError, *PieceTable.ERRORS) as error:
            raise VocabularyError(
                f"{table} cannot be read: {describe_error(error)}; restore it from a copy of the "
                "run directory"
            ) from None

    def with_tag(self, tag: str) -> Self:
        """The tokenizer that puts a tag in front of each sentence, except an empty one.

        Raises:
            VocabularyError: the vocabulary has no such tag.
        """
        assert not self.tag_ids, "a sentence has one tag"
        tagged = copy.copy(self)
        tagged.tag_ids = (int(self._processor.piece_to_id(tag)),)
        if tagged.tag_ids == (UNK_ID,):
            raise VocabularyError(
                f"the vocabulary has no tag {tag}; a run keeps the data.directions with which its "
                "vocabulary was trained"
            )
        return tagged

    def with_prefix(self, prefix: str) -> Self:
        """The tokenizer that puts `data.prefix` in front of each sentence, behind a tag.

        Words in angle brackets are symbols. The other words are segmented as text, as they would be
        in front of a sentence.

        Raises:
            VocabularyError: the vocabulary has no such symbol, or spells a word as unknown.
        """
        prefixed, ids, unknown = copy.copy(self), list[int](), list[str]()
        for is_symbol, words in itertools.groupby(prefix.split(), SYMBOL.fullmatch):
            if is_symbol:
                for word in words:
                    ids.append(int(self._processor.piece_to_id(word)))
                    unknown += [word] * (ids[-1] == UNK_ID)
            else:
                text = " ".join(words)
                ids += self.encode_words([text])[0][:-1]
                unknown += self.find_unknown([text])[0]
        if UNK_ID in ids:
            lacking = ", ".join(map(repr, dict.fromkeys(unknown))) or "a piece"
            raise VocabularyError(
                f"the vocabulary lacks {lacking} of data.prefix={prefix!r}; use only symbols and "
                "characters that it has"
            )
        prefixed.tag_ids, prefixed.prefix = (*self.tag_ids, *ids), " ".join(prefix.split())
        return prefixed

    @functools.cached_property
    def kind(self) -> str:
        """`tokenizer.kind`: symbols are whole words; scores of bpe are ranks, without fractions."""
        pieces = self.list_pieces()
        if not pieces:
            return "bytes"
        if all(text.startswith(SPACE) and text != SPACE for text in pieces):
            return "symbols"
        if all(len(text) == 1 for text in pieces):
            return "characters"
        is_bpe = all(piece.score == int(piece.score) for piece in pieces.values())
        return "bpe" if is_bpe else "unigram"

    @functools.cached_property
    def has_bytes(self) -> bool:
        """`tokenizer.byte_fallback`: whether characters without a piece are spelled in bytes."""
        return any(map(self.is_byte, range(self.vocab_size)))

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each sentence, from a tag to EOS; an empty sentence is EOS alone.

        Raises:
            DataError: a sentence begins with the code of a language, for which a tag stands, or
                with the prefix that would be put there.
        """
        if self.table:
            self._check_typed(sentences, self.table)
        for sentence in sentences if self.prefix else ():
            if sentence.lstrip().startswith(self.prefix):
                raise DataError(
                    f"{sentence[:40]!r} begins with data.prefix={self.prefix!r}, which is put in "
                    "front of each source; remove it from the text, or leave data.prefix empty"
                )
        rows = self.encode_words([*map(clean_sentence, sentences)])
        if self.resample:
            rows = self.resample(sentences, rows)
        return [[*self.tag_ids, *row] if len(row) > 1 else row for row in rows]

    def _check_typed(self, sentences: Sequence[str], table: PieceTable) -> None:
        """Warns of special symbols that a text spells, and refuses codes before it."""
        for sentence in sentences:
            spelled = () if self._has_warned else _SYMBOL.finditer(sentence)
            if symbol := next((each for each in spelled if table.has_symbol(each[0])), None):
                logging.warning(
                    "%r spells the special symbol %s, which is text here, and a symbol in "
                    "transformers; other such lines are not named", sentence[:40], symbol[0],
                )  # fmt: skip
                self._has_warned = True
            found = _FIRST_WORD.match(sentence.lstrip()) if self.tag_ids else None
            if found and found[0] in table.codes:
                raise DataError(
                    f"{sentence[:40]!r} begins with the code of a language; remove {found[0]} from "
                    "the text: the tag of the direction stands for it (--task, "
                    "data.directions)"
                )

    def find_task(self, sentence: str) -> str:
        """Returns what a text begins with to tell an imported model what to do with it, or ""."""
        found = _TASK.match(sentence) if self.table and self.table.has_tasks else None
        code = found["code"] if found else None
        is_text = code is not None and self._processor.piece_to_id(code) == UNK_ID
        return found[0] if found and not is_text else ""

    def is_plain(self, sentence: str) -> bool:
        """Returns whether a sentence is segmented word by word.

        It is not with "▁", which SentencePiece treats as a space of another kind, or with added
        pieces.
        """
        is_cut = self.table is not None and self._processor.has_added(sentence)
        return SPACE not in sentence and not is_cut

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of each text as it is, ending in EOS, also if no character of it is visible."""
        ids: list[list[int]] = self._processor.encode(list(words), add_eos=True)
        return ids

    def encode_behind(self, text: str) -> list[int]:
        """Ids, without EOS, of a text that follows another character than a space.

        It begins no word, unless each piece of the vocabulary is a whole one.
        """
        processor = self._processor if self.kind == "symbols" else self._without_prefix
        [ids] = processor.encode([text], add_eos=False)
        return [*ids]

    @functools.cached_property
    def _without_prefix(self) -> Any:
        """The processor that puts no space before a text."""
        from sentencepiece import sentencepiece_model_pb2 as spm  # here because few need it

        proto = spm.ModelProto.FromString(self.model)  # type: ignore[attr-defined]
        proto.normalizer_spec.add_dummy_prefix = False
        model = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        return _number_pieces(model, self.table)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row up to its first EOS, without special pieces."""
        special = _SPECIAL_IDS.values()
        rows = (itertools.takewhile(lambda i: i != EOS_ID, map(int, row)) for row in ids)
        return [self._processor.decode([i for i in row if i not in special]) for row in rows]

    def decode_behind(self, ids: Sequence[int]) -> str:
        """The text of ids that follow others: a space before it stays."""
        begin, whole = self.decode([self._anchor, [*self._anchor, *ids]])
        return whole[len(begin) :]

    @functools.cached_property
    def _anchor(self) -> list[int]:
        """The ids of a visible text."""
        pieces = ([piece.id] for text, piece in self._iterate_pieces() if text.strip(SPACE))
        return next(pieces, self.encode_words(["x"])[0][:-1])  # the latter if there are only bytes

    def find_unknown(self, texts: Sequence[str]) -> list[list[str]]:
        """The characters of each text that are UNK to the model; of symbols, the whole symbols.

        A piece that the table of an imported vocabulary lacks is named whole.
        """
        if not self.table and self.has_bytes:
            return [[] for _ in texts]
        cleaned = [*map(clean_sentence, texts)]
        rows = self.encode_words(cleaned)
        return [
            [*self._list_unknown(text)] if UNK_ID in ids else []
            for text, ids in zip(cleaned, rows, strict=True)
        ]

    def _list_unknown(self, text: str) -> Iterator[str]:
        for piece in self._processor.encode_as_pieces(text):
            if self._processor.piece_to_id(piece) == UNK_ID:
                words = [*filter(None, piece.split(SPACE))]
                characters = "" if self.kind == "symbols" else "".join(words)
                yield from [c for c in characters if self._is_unknown(c)] or words

    def _is_unknown(self, character: str) -> bool:
        """Returns whether a character has no piece; a table may lack a piece of known ones."""
        return not self.table or UNK_ID in self.encode_words([character])[0]

    def explain_unwritable(self, text: str) -> str:
        """Returns why no sub-words spell a text, in words, or "" if some do."""
        [found] = self._processor.normalize([clean_sentence(f"0{text}0")])
        spelled = found.replace(SPACE, " ").strip()[1:-1]
        if spelled.split(" ") != text.split(" "):
            return f"the vocabulary spells it {spelled!r}"
        known = {" ", *"".join(self.list_pieces())}
        missing = "".join(c for c in dict.fromkeys(text) if c not in known)
        return f"the vocabulary lacks {missing!r}" if missing and not self.has_bytes else ""

    def split_words(self, sentences: Sequence[str]) -> list[list[str]]:
        """The words between spaces, as the vocabulary spells them: lower-case, if it is."""
        return split_words(self._processor, sentences)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each piece; "▁" stands for a space, "<0xE2>" for a byte."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def list_pieces(self) -> dict[str, Piece]:
        """The pieces that text is made of, without special pieces and bytes."""
        return dict(self._iterate_pieces())

    def _iterate_pieces(self) -> Iterator[tuple[str, Piece]]:
        model = self._processor
        kinds = model.is_control, model.is_unknown, model.is_byte, model.is_unused
        for i in range(self.vocab_size):
            if not any(is_kind(i) for is_kind in kinds):
                yield model.id_to_piece(i), Piece(i, model.get_score(i))

    @property
    def sentinel_ids(self) -> list[int]:
        """The ids of the sentinels, in order (`tokenizer.sentinels`)."""
        ids = (self._processor.piece_to_id(SENTINEL.format(n)) for n in itertools.count())
        return [*itertools.takewhile(lambda i: i != UNK_ID, map(int, ids))]

    @property
    def word_ids(self) -> list[int]:
        """The ids of all pieces that text is made of, bytes included."""
        others = {UNK_ID, *self.sentinel_ids}
        return [i for i in range(self.vocab_size) if not (i in others or self.is_control(i))]

    def is_byte(self, token: int) -> bool:
        """Returns whether a piece is a byte, used to spell characters without a piece."""
        return bool(self._processor.is_byte(token))

    def is_control(self, token: int) -> bool:
        """Returns whether an id stands for no text: BOS, EOS, PAD, tags, sentinels, spare rows."""
        return bool(self._processor.is_control(token))


def _number_pieces(processor: Any, table: PieceTable | None) -> Any:
    """Gives a model's pieces the ids of a table, if there is one."""
    if table is None:
        return processor
    from t2t.data.table_processor import TableProcessor  # of imported vocabularies alone

    return TableProcessor(processor, table)


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of a run; a shared one is the same object in both fields.

    `several_sentences` is the share of training's source lines that hold several sentences; None if
    it is not known, as of a vocabulary without `lines.json`.
    """

    src: Tokenizer
    tgt: Tokenizer
    several_sentences: float | None = None

    @property
    def shared(self) -> bool:
        """True if source and target share one model."""
        return self.src.model is self.tgt.model

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of pieces, of the source and of the target."""
        return self.src.vocab_size, self.tgt.vocab_size

    @property
    def has_common_ids(self) -> bool:
        """True if each id is the same piece on both sides, so that one table serves both."""
        src_size, tgt_size = self.sizes
        return self.shared or (
            src_size == tgt_size
            and self.src.pieces(range(src_size)) == self.tgt.pieces(range(tgt_size))
        )

    def with_tag(self, tag: str, prefix: str = "") -> "Vocabulary":
        """The vocabulary of a task: its source tokenizer puts a tag and `data.prefix` in front.

        Of two tags, "<2en> <2de>", the target tokenizer puts the second in front of targets. Empty
        ones change nothing.

        Raises:
            VocabularyError: the vocabulary has no such tag or prefix.
        """
        if prefix:
            tagged = self.with_tag(tag)
            return dataclasses.replace(tagged, src=tagged.src.with_prefix(prefix))
        sides = {
            side: getattr(self, side).with_tag(each)
            for side, each in zip(("src", "tgt"), tag.split(), strict=False)
        }
        return dataclasses.replace(self, **sides) if tag else self

    def encode_pairs(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """The ids of pairs (source, target), each side ending in EOS."""
        texts = list(pairs)
        src = self.src.encode([src for src, _ in texts])
        tgt = self.tgt.encode([tgt for _, tgt in texts])
        return list(zip(src, tgt, strict=True))

    def splits_sentences(self, decoding: DecodingConfig) -> bool:
        """Returns whether a search translates the sentences of a line one by one."""
        if decoding.split_sentences != "auto":
            return decoding.split_sentences == "yes"
        return self.several_sentences is not None and self.several_sentences < SEVERAL

    def fingerprint(self) -> str:
        """SHA-256 of the SentencePiece models, of how text is sampled, and of a tag."""
        digest = hashlib.sha256()
        for side in [self.src] if self.src is self.tgt else [self.src, self.tgt]:
            table = side.table.dump() if side.table else b""
            tag = str(side.tag_ids).encode() if side.tag_ids else b""
            digest.update(side.model + table + side.stream + tag)
        return digest.hexdigest()

    def save(self, directory: Path) -> None:
        """Writes `joint.model`, or `src.model` and `tgt.model`, and `lines.json`; atomically each.

        The table of an imported one is written beside its model, as `joint.pieces.json`.

        Raises:
            VocabularyError: The folder cannot be written.
        """
        sides = {"joint": self.src} if self.shared else {"src": self.src, "tgt": self.tgt}
        files = {name + _TABLE: each.table.dump() for name, each in sides.items() if each.table}
        # Last, since with them a vocabulary is complete.
        files |= {name + _MODEL: each.model for name, each in sides.items()}
        with explain_write_errors(VocabularyError, directory):
            for stale in _FILES - files.keys():
                (directory / stale).unlink(missing_ok=True)
            write_share(directory / LINES, self.several_sentences)
            for name, content in files.items():
                write_file(directory / name, content)

    @classmethod
    def load(cls, directory: Path) -> "Vocabulary":
        """Reads the files that `save` wrote.

        Raises:
            VocabularyError: A file is missing or damaged.
        """
        if not cls.is_saved(directory):
            raise VocabularyError(
                f"{directory} holds no vocabulary: neither joint.model, nor both of src.model and "
                "tgt.model; is its parent a run directory?"
            )
        names = ["joint"] if (directory / "joint.model").exists() else ["src", "tgt"]
        tokenizers = [Tokenizer.load(directory / f"{name}.model") for name in names]
        return cls(tokenizers[0], tokenizers[-1], read_share(directory / LINES))

    @staticmethod
    def is_saved(directory: Path) -> bool:
        """Returns whether the folder holds a complete vocabulary."""
        names = {path.name for path in directory.glob("*.model")}
        return "joint.model" in names or {"src.model", "tgt.model"} <= names


def write_share(path: Path, share: float | None) -> None:
    """Writes `Vocabulary.several_sentences`; removes the file if it is not known."""
    if share is None:
        path.unlink(missing_ok=True)
    else:
        write_file(path, json.dumps({"several_sentences": share}) + "\n")


def read_share(path: Path) -> float | None:
    """Reads `Vocabulary.several_sentences`; None if it was not saved.

    Raises:
        VocabularyError: the file is damaged.
    """
    try:
        return float(json.loads(path.read_text("utf-8"))["several_sentences"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise VocabularyError(
            f"{path} cannot be read: {describe_error(error)}; remove it, and lines are no longer "
            "split into sentences unless decoding.split_sentences says so"
        ) from None


def open_given(given: str) -> Vocabulary:
    """Reads the vocabulary that `tokenizer.path` names: a SentencePiece model, or a vocab/ folder.

    Raises:
        ConfigError: it cannot be read, or its special tokens have other ids than t2t's.
    """
    path = make_path(given)
    try:
        if path.is_dir():
            return Vocabulary.load(path)
        tokenizer = Tokenizer.load(path)
        return Vocabulary(tokenizer, tokenizer)
    except VocabularyError as error:
        raise ConfigError(f"tokenizer.path: {error}") from None


def train_vocabulary(
    corpora: Sequence[Corpus],
    config: TokenizerConfig,
    directory: Path,
    tags: Sequence[str] = (),
    *,
    is_sample: bool = False,
) -> Vocabulary:
    """Trains a vocabulary on the corpora, which must be training text, and saves it.

    `tags` become control symbols: pieces that stand for no text (`directions`). The pairs
    of a corpus are read as often as its weight says. The result is deterministic. If there are more
    than five million pairs, every second, third, ... is used, and a warning says so; symbols and
    characters are counted in all of them. The corpora may be a sample of the text: then the result
    may be smaller than `vocab_size`.

    Raises:
        ConfigError: `vocab_size` is too large or too small for the text.
    """
    if config.shared:
        src = tgt = _train("training text", corpora, (0, 1), config, tags, is_sample=is_sample)
    else:
        src, tgt = (
            _train(f"training text's {name} side", corpora, (side,), config, tags,
                   is_sample=is_sample)
            for side, name in enumerate(("source", "target"))
        )  # fmt: skip
    is_language = config.kind != "symbols"  # of which no line is split into sentences
    vocabulary = Vocabulary(src, tgt, measure_several(corpora) if is_language else None)
    vocabulary.save(directory)
    return vocabulary


def measure_several(corpora: Sequence[Corpus]) -> float:
    """Measures the share of source lines with several sentences on a sample of all corpora.

    For text alone it measures the lines of the text.
    """
    stride = max(1, sum(map(len, corpora)) // _SAMPLED_LINES)
    lines = several = 0
    for corpus, pair in sample_pairs(corpora, stride):
        lines += 1
        several += len(split_sentences(pair[corpus.sides[0]])) > 1
    return several / max(lines, 1)


def _read_sides(corpora: Sequence[Corpus], sides: tuple[int, ...]) -> Iterator[str]:
    """Yields the sentences of one language or of both.

    Each pair is read as often as its corpus's weight says, fractions spread evenly.
    """
    total = sum(len(corpus) * corpus.weight for corpus in corpora)
    step = math.ceil(total / _MAX_TRAINING_PAIRS)
    if step > 1:
        logging.warning("the vocabulary is trained on one of every %d of %d pairs", step, total)
    first = 0.0  # sum of the weights of all pairs before this corpus
    for corpus in corpora:
        for index, pair in enumerate(corpus):
            begin, end = (math.ceil((first + n * corpus.weight) / step) for n in (index, index + 1))
            for side in sides * (end - begin):
                # SentencePiece skips sentences with this character, its mark of unknown text.
                yield clean_sentence(pair[side]).replace("\N{LOWER FIVE EIGHTHS BLOCK}", " ")
        first += len(corpus) * corpus.weight


def _train(
    text: str,
    corpora: Sequence[Corpus],
    sides: tuple[int, ...],
    config: TokenizerConfig,
    tags: Sequence[str],
    *,
    is_sample: bool,
) -> Tokenizer:
    origin, rules = "the vocabulary just trained", make_normalizer(config.lowercase)
    if config.kind in COUNTED:
        return Tokenizer(count_vocabulary(text, corpora, sides, config, tags, rules), origin)
    model = io.BytesIO()
    special_ids: dict[str, Any] = {f"{piece}_id": i for piece, i in _SPECIAL_IDS.items()}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_read_sides(corpora, sides),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            hard_vocab_limit=not is_sample,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalizer=rules,
            control_symbols=[*tags, *map(SENTINEL.format, range(config.sentinels))],
            **special_ids,
            max_sentence_length=2**30,  # bytes; SentencePiece silently skips longer sentences
            num_threads=8,  # fixed, because the result of "unigram" depends on it
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ConfigError(_explain(str(error), text, config)) from None
    return Tokenizer(model.getvalue(), origin)


def make_normalizer(lowercase: bool) -> sentencepiece.SentencePieceNormalizer:
    """Makes the rules by which a vocabulary that is trained here spells text."""
    if not lowercase:
        return sentencepiece.SentencePieceNormalizer(rule_name="identity")
    sentencepiece.set_min_log_level(2)
    characters = map(chr, range(sys.maxunicode + 1))
    rules = [(upper, lower) for upper in characters if (lower := upper.lower()) != upper]
    return sentencepiece.SentencePieceNormalizer(norm_map=rules)


def _explain(error: str, text: str, config: TokenizerConfig) -> str:
    """An error message that names the field to change, from SentencePiece's error."""
    if "sentences_.empty" in error:
        return f"the {text} has only empty lines; name other files, or turn off data.filters"
    field = f"tokenizer.vocab_size={config.vocab_size}"
    if limit := re.search(r"size too high .* <= (\d+)", error):
        return f"{field} is more than the pieces in the {text}; lower it to {limit[1]} or less"
    if required := re.search(r"smaller than required_chars. \d+ vs (\d+)", error):
        return (
            f"{field} is less than the characters, bytes and special pieces of the {text}; "
            f"raise it to {required[1]} or more, or lower tokenizer.character_coverage"
        )
    return f"{field}: SentencePiece cannot train on the {text}: {error.strip()}"
