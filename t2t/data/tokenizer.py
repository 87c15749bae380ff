"""SentencePiece: train, save, load, encode, decode. The only owner of the special ids.

Text goes in as it is (normalisation "identity", not SentencePiece's default "nmt_nfkc"): NFKC
turns "½" into "1/2" and "…" into "...", so a model that learnt from such targets could never write
what the references contain. What is lost are spaces at the ends and the second of two; a "▁"
(U+2581), SentencePiece's own sign for a space, becomes one.
"""

import dataclasses
import hashlib
import io
import itertools
import logging
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from t2t.config.fields import ConfigError, TokenizerConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.corpus import Corpus
from t2t.storage.atomic_files import write_file

_MAX_TRAINING_PAIRS = 5_000_000  # of more, every second, third, ... trains the vocabulary
_FILES = {"joint.model", "src.model", "tgt.model"}
_SPECIAL_IDS = {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID, "unk": UNK_ID}


class VocabularyError(ValueError):
    """A vocabulary that is missing or damaged; the message names the file."""


class Tokenizer:
    """One SentencePiece model, from the bytes of its file; `origin` names it in errors."""

    def __init__(self, model: bytes, origin: str):
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise VocabularyError(
                f"{origin} is damaged: SentencePiece cannot read its {len(model)} bytes; "
                "restore it from a copy of the run directory"
            ) from None
        for piece, expected in _SPECIAL_IDS.items():
            if (found := getattr(self._processor, f"{piece}_id")()) != expected:
                raise VocabularyError(
                    f"{origin} gives {piece.upper()} the id {found} instead of {expected}; use a "
                    "vocabulary that this project trained"
                )
        self.model = model

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Reads a model file."""
        try:
            return cls(path.read_bytes(), str(path))
        except OSError as error:
            raise VocabularyError(f"{path} cannot be read: {error.strerror}") from None

    @property
    def vocab_size(self) -> int:
        """V, special pieces included."""
        return int(self._processor.vocab_size())

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each sentence, ending in EOS; an empty sentence is EOS alone."""
        ids: list[list[int]] = self._processor.encode(list(sentences), add_eos=True)
        return ids

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each row up to its first EOS, without special pieces."""
        sentences: list[str] = self._processor.decode([_strip_special(row) for row in ids])
        return sentences

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The spelling of each id, for people: "▁" is a space, "<0xE2>" a byte."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def is_byte(self, token: int) -> bool:
        """Whether a piece is one byte of a character that the vocabulary lacks."""
        return bool(self._processor.is_byte(token))


def _strip_special(row: Sequence[int]) -> list[int]:
    ids = itertools.takewhile(lambda i: i != EOS_ID, map(int, row))
    return [i for i in ids if i not in _SPECIAL_IDS.values()]


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of a run: one object in both places where the languages share it."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def shared(self) -> bool:
        """Whether source and target have the same ids."""
        return self.src is self.tgt

    def fingerprint(self) -> str:
        """SHA-256 of the models."""
        return hashlib.sha256(b"".join(model for _, model in self._files())).hexdigest()

    def save(self, directory: Path) -> None:
        """Writes `joint.model`, or `src.model` and `tgt.model`; no file is ever seen half.

        Raises:
            VocabularyError: The folder cannot be written.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name, model in self._files():
                write_file(directory / name, model)
            for stale in _FILES - {name for name, _ in self._files()}:
                (directory / stale).unlink(missing_ok=True)
        except OSError as error:
            raise VocabularyError(
                f"the vocabulary cannot be written to {directory}: {error.strerror}; free some "
                "space there, or choose another folder"
            ) from None

    @classmethod
    def load(cls, directory: Path) -> "Vocabulary":
        """Reads what `save` wrote.

        Raises:
            VocabularyError: A file is missing or damaged.
        """
        if (joint := directory / "joint.model").exists():
            tokenizer = Tokenizer.load(joint)
            return cls(tokenizer, tokenizer)
        if not cls.is_saved(directory):
            raise VocabularyError(
                f"{directory} holds no vocabulary: neither joint.model, nor both of src.model and "
                "tgt.model; is its parent a run directory?"
            )
        return cls(Tokenizer.load(directory / "src.model"), Tokenizer.load(directory / "tgt.model"))

    @staticmethod
    def is_saved(directory: Path) -> bool:
        """Whether `save` came to its end there."""
        there = {path.name for path in directory.glob("*.model")}
        return "joint.model" in there or {"src.model", "tgt.model"} <= there

    def _files(self) -> list[tuple[str, bytes]]:
        if self.shared:
            return [("joint.model", self.src.model)]
        return [("src.model", self.src.model), ("tgt.model", self.tgt.model)]


def train_vocabulary(
    corpora: Sequence[Corpus], config: TokenizerConfig, directory: Path
) -> Vocabulary:
    """Trains on every sentence of the corpora, which must be training text, and saves.

    The same text and config give the same bytes. Of more than five million pairs, evenly spaced
    ones are used, and a warning says how many.

    Raises:
        ConfigError: The text has too few, or too many, different pieces for `vocab_size`.
    """
    if config.shared:
        joint = _train("training text", _read_sides(corpora, (0, 1)), config)
        vocabulary = Vocabulary(joint, joint)
    else:
        src = _train("training text's source side", _read_sides(corpora, (0,)), config)
        tgt = _train("training text's target side", _read_sides(corpora, (1,)), config)
        vocabulary = Vocabulary(src, tgt)
    vocabulary.save(directory)
    return vocabulary


def _read_sides(corpora: Sequence[Corpus], sides: Sequence[int]) -> Iterator[str]:
    """The sentences of one language or of both."""
    total = sum(map(len, corpora))
    step = math.ceil(total / _MAX_TRAINING_PAIRS)
    if step > 1:
        logging.warning("the vocabulary is trained on one of every %d of %d pairs", step, total)
    for pair in itertools.islice(itertools.chain.from_iterable(corpora), 0, None, step):
        for side in sides:
            yield pair[side]


def _train(text: str, sentences: Iterator[str], config: TokenizerConfig) -> Tokenizer:
    model = io.BytesIO()
    special_ids: dict[str, Any] = {f"{piece}_id": i for piece, i in _SPECIAL_IDS.items()}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity",
            **special_ids,
            max_sentence_length=2**30,  # bytes; longer sentences would be left out without a word
            num_threads=8,  # a part of the result: unigram counts are summed by thread
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ConfigError(_explain(str(error), text, config)) from None
    return Tokenizer(model.getvalue(), "the vocabulary just trained")


def _explain(error: str, text: str, config: TokenizerConfig) -> str:
    """One of our sentences for one of SentencePiece's assertions."""
    field = f"tokenizer.vocab_size={config.vocab_size}"
    if limit := re.search(r"size too high .* <= (\d+)", error):
        return f"{field} is more than the {text} has pieces for; lower it to {limit[1]} or less"
    if required := re.search(r"smaller than required_chars. \d+ vs (\d+)", error):
        return (
            f"{field} is less than the characters, bytes and special pieces of the {text}; "
            f"raise it to more than {required[1]}, or lower tokenizer.character_coverage"
        )
    return f"{field}: SentencePiece cannot train on the {text}: {error.strip()}"
