# ruff: noqa: RUF001  # the text has odd characters
"""Compares published tokenizers with their imports: `python -m benchmarks.check_models FOLDER`.

FOLDER has folders of models with their tokenizers; weights are not needed. Each config is made
small, and gets random weights. The check imports such a model, and compares the ids of 1,000 odd
lines, the logits and the log-probabilities with those of `transformers`. It needs the extra
`transformers`. It fails for any difference that docs/fine-tuning.md does not list.
"""

import json
import logging
import random
import shutil
import sys
import tempfile
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tabulate

import t2t
from t2t.api.import_model import import_model
from t2t.data.corpus import DataError
from t2t.data.sentences import clean_sentence
from t2t.interop.foreign_model import read_model
from t2t.interop.hugging_face_folder import open_tensors, read_json
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.interop.strict_config import START_IDS
from t2t.interop.verify_import import explain_difference

NUM_LINES = 1000
NEAR = 1e-4  # differences of logits, and of log P per sub-word, in float32
SMALL: dict[str, int] = {
    **dict.fromkeys(("d_model", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("num_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_hidden_layers"), 2),
    **dict.fromkeys(("num_layers", "num_decoder_layers"), 2),
    "d_kv": 16,
}
WORDS = """
    the a of and said king queen house little rabbit watch time I'm don't e.g. U.S. Hello World NASA
    iPhone naïve café São Paulo 20 °C Tür Straße größer déjà vu été garçon Ελλάδα мир Привет 世界
    こんにちは 東京 한국어 नमस्ते ไทย العربية שלום ngựa đường ny amin ŋa ğüş łódź ñandú ﬁne ½ № ＡＢＣ
    １２３ ㎏ ℃ ™ ① Ǆ ﷺ
""".split()
SCRIPTS = [
    *(*range(0x370, 0x530), *range(0x5D0, 0x5EB), *range(0x620, 0x64B), *range(0x900, 0x980)),
    *(*range(0xE01, 0xE3B), *range(0x3041, 0x3100), *range(0x4E00, 0xA000), *range(0xAC00, 0xD7A4)),
]
TYPED = "<s> </s> <unk> <pad> <mask> >>fra<< >>xyz<< <2de> <extra_id_0> __en__ eng_Latn".split()


def make_lines(seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yields odd lines with their kinds, the same ones for the same seed."""
    rng = random.Random(seed)

    def word() -> str:
        return rng.choice(WORDS)

    def join(between: str, count: int) -> str:
        return between.join(word() for _ in range(count))

    def mix(characters: Sequence[int | str], count: int) -> str:
        picked = (each if isinstance(each := rng.choice(characters), str) else chr(each)
                  for _ in range(count))  # fmt: skip
        return word() + "".join(each + word() * (rng.random() < 0.5) for each in picked) + word()

    makers: dict[str, Callable[[], str]] = {
        "words": lambda: join(" ", rng.randint(1, 15)),
        "case": lambda: rng.choice([str.upper, str.title, str.swapcase])(join(" ", 4)),
        "digits": lambda: f"{rng.randint(0, 10**9)} 1,234.56 {rng.random():.5f} 3.12.2026 {word()}",
        "quotes": lambda: f"“{word()}” ‘{word()}’ «{word()}» „{word()}‚ \"{word()}\" ''{word()}''",
        "punctuation": lambda: mix(".,;:!?()[]{}<>/\\|@#$%^&*-_=+~…–—•§©®°±²·×÷€£¢†‰′※ ", 12),
        "markup": lambda: f"<b>{word()}</b> &amp; {{x}} <{word()}> http://a.b/c?d=e {word()}_x",
        "scripts": lambda: mix(SCRIPTS, 12),
        "all planes": lambda: mix([*range(0xA1, 0xD800), *range(0xE000, 0x20000)], 4),
        "emoji": lambda: mix(["👩\u200d🚀", "🇩🇪", "👍🏽", "😀", "☕️", "❤️", " "], 4),
        "control": lambda: mix([*range(1, 10), 11, 12, *range(14, 32), 0x7F, 0x85, 0x9F], 4),
        "NUL": lambda: f"{word()}\0{word()} \0\0 {word()}" + "\0" * rng.randint(0, 8) + word(),
        "decomposed": lambda: unicodedata.normalize(rng.choice(["NFD", "NFKD"]), join(" ", 5)),
        "marks": lambda: mix([*range(0x300, 0x36F)], 4),
        "zero width": lambda: mix([*range(0x200B, 0x2010), 0x2060, 0xFEFF, 0xAD, 0xFE0F, " "], 5),
        "private": lambda: mix([0xE000, 0xF8FF, 0xF0000, 0xFFFD, 0xFFFF, " "], 4),
        "long": lambda: join(" ", 200),
        "ends": lambda: (
            rng.choice(" \t\u00a0\u3000") + join(" ", 2) + rng.choice(" \t\u00a0\u2009")
        ),
        "spaces": lambda: join("  ", 3) + join("\t", 3) + join("\u00a0", 2) + join("\u2028", 2),
        "▁": lambda: f"▁{word()} {word()}▁{word()} ▁▁ {word()}",
        "typed symbols": lambda: f"{word()} {rng.choice(TYPED)}{rng.choice(' .')}{word()}",
        "typed codes": lambda: f"{rng.choice(TYPED[5:])} {join(' ', 3)}",
    }
    kinds = [*makers]
    for number in range(NUM_LINES):
        kind = kinds[number % len(kinds)]
        yield kind, makers[kind]()


def check_ids(folder: Path, run: Any, directions: Sequence[str]) -> list[list[Any]]:
    """Compares the ids of both sides; returns rows of the table."""
    import transformers

    original = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    code = ""
    if directions:
        original.src_lang, _, original.tgt_lang = directions[0].partition("-")
        is_marian = read_json(folder, "config.json")["model_type"] == "marian"
        code = f">>{original.tgt_lang}<< " * is_marian
    row, table = Rows.load(run.workdir / "vocab").row, []
    for side, name, prefix in (("src", "text", code), ("tgt", "text_target", "")):
        known: Counter[str] = Counter()
        unknown: Counter[str] = Counter()
        for kind, line in make_lines():
            if not (text := clean_sentence(line)):
                continue
            try:
                [ids] = run.encode([text], side)
            except DataError:
                known["codes before a text are refused"] += 1
                continue
            wanted, found = original(**{name: prefix + text}).input_ids, row[ids].tolist()
            if found != wanted:
                pieces = [original.convert_ids_to_tokens(each) for each in (wanted, found)]
                reason = explain_difference(text, *pieces, is_fast=original.is_fast)
                (known if reason else unknown)[reason or kind] += 1
        table.append([folder.name, side, NUM_LINES, known, unknown])
    return table


def check_logits(folder: Path, run: Any) -> tuple[float, float]:
    """Returns the largest differences of logits, and of log P per sub-word."""
    import torch
    import transformers

    original = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    row, is_output = Rows.load(run.workdir / "vocab")
    worst = np.zeros(2)
    pairs = [("The house of São Paulo.", "Die Tür"), ("20 °C", "été, garçon!"), ("a", "мир 1")]
    for (src, tgt), log_p in zip(pairs, run.score_tokens(pairs), strict=True):
        [src_ids], [tgt_ids] = run.encode([src]), run.encode([tgt], "tgt")
        start = row[START_IDS[run.config.model.decoder_start]]
        with torch.no_grad():
            logits = original.eval()(
                input_ids=torch.tensor(row[None, src_ids]),
                decoder_input_ids=torch.tensor([[start, *row[tgt_ids[:-1]]]]),
            ).logits[0]
        wanted = torch.log_softmax(logits, -1).numpy()[np.arange(len(tgt_ids)), row[tgt_ids]]
        own = np.asarray(run.logits(src, tgt))[0]
        difference = np.abs(own[:, is_output] - logits.numpy()[:, row[is_output]]).max()
        worst = np.maximum(worst, [difference, np.abs(log_p - wanted).max()])
    return worst[0], worst[1]


def make_small(source: Path, folder: Path) -> list[str]:
    """Writes a small model of random weights with a source's config and tokenizer.

    Returns:
        Directions, if the model has languages.
    """
    import torch
    import transformers

    shutil.copytree(source, folder)
    values = json.loads((source / "config.json").read_text("utf-8"))
    values |= {name: size for name, size in SMALL.items() if name in values}
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.1)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(values), "utf-8")  # as it was published
    languages = read_model(folder, values, open_tensors(folder)).vocabulary.languages
    if not languages:
        return []
    src = next((code for code in languages if code.startswith("en")), languages[0])
    return [f"{src}-{next(code for code in languages if code != src)}"]


def main(parent: Path) -> None:
    """Checks all folders; raises `SystemExit` if there is a difference that is not listed."""
    import transformers

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    table, failures = [], 0
    for source in sorted(path.parent for path in parent.glob("*/config.json")):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / source.name
            directions = make_small(source, folder)
            import_model(str(folder), Path(name) / "run", directions=directions)
            run = t2t.load(Path(name) / "run", checkpoint="last")
            logits, log_p = check_logits(folder, run)
            for *row, known, unknown in check_ids(folder, run, directions):
                cells = (
                    "\n".join(f"{n} {kind}" for kind, n in each.items())
                    for each in (known, unknown)
                )
                table.append([*row, *cells, f"{logits:.1e}", f"{log_p:.1e}"])
                failures += unknown.total() + (max(logits, log_p) > NEAR)
    headers = ["model", "side", "lines", "listed", "not listed", "logits", "log P"]
    print(tabulate.tabulate(table, headers, disable_numparse=True))
    if failures or not table:
        sys.exit("check_models: there are differences that docs/fine-tuning.md does not list")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
