"""Small SentencePiece models, and odd lines of text to segment with them."""

import base64
import functools
import io
import random
import unicodedata
from typing import Any

import sentencepiece

from t2t.interop.tokenizer_json import spm

_WORDS = """
    the a of and to in was he she it said king queen house garden little white rabbit watch time
    Tür Straße über größer Mädchen läuft schön fährt Kinder spielen draußen été garçon déjà vu
    1 23 4567 89.0 , . ! ? ; : " ' ( ) - running walked walking jumps jumped over under between
    ﬁne ½ № ＡＢＣ naïve coöperate Ελλάδα мир 世界 こんにちは 😀
""".split()  # noqa: RUF001


def make_text(seed: int, lines: int = 400) -> list[str]:
    """Sentences of random words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(_WORDS, k=rng.randint(1, 12))) for _ in range(lines)]


@functools.cache
def train_model(seed: int = 0, size: int = 120, kind: str = "unigram", **options: Any) -> bytes:
    """Trains a model on random sentences, with the ids of SentencePiece: <unk>, <s>, </s>."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(make_text(seed)),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return model.getvalue()


def find_charsmap(model: bytes) -> str:
    """Returns the rules of normalisation as tokenizer.json has them."""
    rules = spm.ModelProto.FromString(model).normalizer_spec.precompiled_charsmap
    return base64.b64encode(rules).decode()


def list_pieces(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.vocab_size())]


def make_odd_lines(count: int, seed: int = 0) -> list[str]:
    """Lines of words, of random characters of all planes, of spaces, digits and controls."""
    rng = random.Random(seed)
    makers = (
        lambda: rng.choice(_WORDS),
        lambda: rng.choice(_WORDS).upper(),
        lambda: rng.choice(_WORDS).title(),
        lambda: "".join(rng.choices("abcdefghijklmnopqrstuvwxyzäöüßé", k=rng.randint(1, 9))),
        lambda: str(rng.randint(0, 10**9)),
        lambda: chr(rng.randint(0x21, 0x2FF)),
        lambda: unicodedata.normalize(rng.choice(["NFD", "NFKD"]), rng.choice(_WORDS)),
        lambda: chr(rng.choice([*range(0x300, 0xD7FF), *range(0xE000, 0x1FFFF)])),
        lambda: rng.choice(
            ["👩\u200d🚀", "🇩🇪", "👍🏽", "é̂", "ﷺ", "…", "<unk>x", "</s", ">>", "&amp;"]
        ),
        lambda: rng.choice(["\t", "\x07", "\x1b", "\u00ad", "\u200b", "\u200e", "\ufeff", "\x85"]),
    )
    spaces = [" ", " ", " ", "", "  ", "\u00a0", "\u3000", " \t "]
    lines = []
    for _ in range(count):
        parts = [rng.choice(makers)() for _ in range(rng.randint(1, 12))]
        lines.append("".join(part + rng.choice(spaces) for part in parts))
    return lines
