"""Vocabularies that are counted and not learned: of symbols, characters and bytes.

All are SentencePiece models, which every reader of a vocabulary takes. Types are counted in the
whole text, so none is unknown because a sample lacked it.

    symbols      what stands between spaces
    characters   Unicode's code points, with the space; others in bytes (`tokenizer.byte_fallback`)
    bytes        the 256 bytes of UTF-8, in order behind the special tokens as in ByT5 (Xue et al.
                 2022). An id is ByT5's plus one, since t2t has BOS, too

Characters and bytes keep every space of a text.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t2t.config.fields import ConfigError, TokenizerConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.corpus import Corpus
from t2t.data.piece_table import SPACE, SPECIAL
from t2t.data.sentences import clean_sentence

_log = logging.getLogger(__name__)

NUM_BYTES = 256
COUNTED = ("symbols", "characters", "bytes")  # of `tokenizer.kind`
_CHUNK = 10_000  # sentences that are normalised at once
_spm: Any = sentencepiece_model_pb2  # whose classes are made when it is imported
_Rules = sentencepiece.SentencePieceNormalizer | sentencepiece.SentencePieceProcessor


def split_words(rules: _Rules, sentences: Sequence[str]) -> list[list[str]]:
    """The words of each sentence, as a model or its rules of normalisation spell them."""
    normalized: list[str] = rules.normalize([*map(clean_sentence, sentences)])
    return [[*filter(None, text.replace(SPACE, " ").split(" "))] for text in normalized]


def count_types(
    corpora: Iterable[Corpus],
    sides: Sequence[int],
    config: TokenizerConfig,
    rules: sentencepiece.SentencePieceNormalizer,
) -> Counter[str]:
    """Counts the symbols, or the characters, of these sides of all pairs, as they are spelled.

    A pair counts as often as the weight of its corpus says. "▁", SentencePiece's sign for a space,
    is no character of the vocabulary: it is spelled in bytes.
    """
    counts = Counter[str]()
    for corpus in corpora:
        own = Counter[str]()
        sentences = (pair[side] for pair in corpus for side in sides)
        while chunk := [*itertools.islice(sentences, _CHUNK)]:
            if config.kind == "symbols":
                own.update(itertools.chain.from_iterable(split_words(rules, chunk)))
            else:
                own.update("".join(map(clean_sentence, chunk)))
        for text, count in own.items():
            is_folded = config.lowercase and config.kind == "characters"
            for each in text.lower() if is_folded else [text]:
                counts[each] += count * corpus.weight  # type: ignore[assignment]  # a fraction
    del counts[SPACE]
    return counts


def count_special(config: TokenizerConfig, tags: int) -> int:
    """Counts the pieces that are not counted in a text: special ones, tags, sentinels and bytes."""
    has_bytes = config.kind == "bytes" or (config.byte_fallback and config.kind != "symbols")
    return len(SPECIAL) + tags + config.sentinels + NUM_BYTES * has_bytes


def count_vocabulary(
    text: str,
    corpora: Iterable[Corpus],
    sides: Sequence[int],
    config: TokenizerConfig,
    tags: Sequence[str],
    rules: sentencepiece.SentencePieceNormalizer,
) -> bytes:
    """Makes the SentencePiece model of these sides, which messages call `text`.

    It has all types of the text, at most `tokenizer.vocab_size` pieces: then the rarest are left
    out, and a warning says so.

    Raises:
        ConfigError: the text is empty, or `vocab_size` leaves no room for a type.
    """
    special = count_special(config, len(tags))
    if config.kind == "bytes":
        return _make_model([], config, tags, rules)
    counts = count_types(corpora, sides, config, rules)
    if not counts:
        raise ConfigError(
            f"the {text} has only empty lines; name other files, or turn off data.filters"
        )
    if config.vocab_size <= special:
        raise ConfigError(
            f"tokenizer.vocab_size={config.vocab_size} leaves no room for {config.kind} beside "
            f"{special} special pieces and bytes; raise it to {special + len(counts)}, which holds "
            f"all {len(counts)} of the {text}"
        )
    ordered = sorted(counts, key=lambda piece: (-counts[piece], piece))
    kept, rare = ordered[: config.vocab_size - special], ordered[config.vocab_size - special :]
    if rare:
        _log.warning(
            "%d of %d %s of the %s are %s, the rarest, such as %r: tokenizer.vocab_size=%d is too "
            "small; %d holds all",
            len(rare), len(counts), config.kind, text,
            "unknown" if config.kind == "symbols" or not config.byte_fallback else
            "spelled in bytes", rare[-1], config.vocab_size, special + len(counts),
        )  # fmt: skip
    return _make_model(kept, config, tags, rules)


def _make_model(
    types: Sequence[str],
    config: TokenizerConfig,
    tags: Sequence[str],
    rules: sentencepiece.SentencePieceNormalizer,
) -> bytes:
    """Makes a SentencePiece model of these types, the most frequent one first."""
    kinds, model = _spm.ModelProto.SentencePiece, _spm.ModelProto()
    is_symbols, is_bytes = config.kind == "symbols", config.kind == "bytes"
    settings = model.trainer_spec
    settings.model_type = _spm.TrainerSpec.WORD if is_symbols else _spm.TrainerSpec.CHAR
    settings.pad_id, settings.bos_id = PAD_ID, BOS_ID
    settings.eos_id, settings.unk_id = EOS_ID, UNK_ID
    settings.byte_fallback = is_bytes or (config.byte_fallback and not is_symbols)
    model.normalizer_spec.ParseFromString(rules.serialized_normalizer_spec())
    if not is_symbols:
        model.normalizer_spec.add_dummy_prefix = False
        model.normalizer_spec.remove_extra_whitespaces = False
        model.normalizer_spec.escape_whitespaces = False

    def add(names: Iterable[str], kind: int) -> None:
        for name in names:
            model.pieces.add(piece=name, score=0.0, type=kind)

    for id_, name in SPECIAL.items():
        add([name], kinds.UNKNOWN if id_ == UNK_ID else kinds.CONTROL)
    control = [*tags, *(f"<extra_id_{n}>" for n in range(config.sentinels))]
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(NUM_BYTES)] * settings.byte_fallback
    if is_bytes:  # as ByT5 orders them
        add(byte_pieces, kinds.BYTE)
        add(control, kinds.CONTROL)
    else:  # as SentencePiece orders them
        add(control, kinds.CONTROL)
        add(byte_pieces, kinds.BYTE)
    add([SPACE + each for each in types] if is_symbols else types, kinds.NORMAL)
    settings.vocab_size = len(model.pieces)
    content: bytes = model.SerializeToString()
    return content
