"""Compares an imported model with the original in `transformers`: sub-words of text, and logits.

It needs the extra `transformers`. Code of the source's folder is not run: `transformers` loads it
with `trust_remote_code=False`.
"""

import dataclasses
import importlib.util
import itertools
import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t2t.config.fields import Config, ConfigError
from t2t.data.batch import BOS_ID, PAD_ID, pad_sentences
from t2t.data.directions import find_tag, list_tasks
from t2t.data.sentences import clean_sentence
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.interop.foreign_model import ForeignModel
from t2t.interop.hugging_face_folder import SourceError
from t2t.interop.strict_config import START_IDS
from t2t.model.parameters import Params, merge
from t2t.ops.build_model import abstract_model
from t2t.runtime.mesh import count_parts, spec
from t2t.storage.paths import first_line

# Special symbols, and codes of languages as the originals spell them.
_SYMBOLS = re.compile(
    r"<(?:/?s|pad|unk|mask|extra_id_\d+)>|>>\S*<<|__[a-z]+__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}"
)
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_NUM_LINES = 200
_NUM_PAIRS = 3
_LONGEST = 40  # sub-words of a side of these pairs
# The largest difference of logits, as a share of the largest logit, that rounding explains.
_TOLERANCE = 1e-3
# What tokenizers treat differently: compatibility characters, marks, scripts, emojis, spaces.
_ODD = tuple(
    "½|№|\ufb01|\uff21\uff22\uff23|e\u0301|\u01c5|\ufdfa|世界|Ελλάδα|мир|שלום|👩\u200d🚀|👍🏽|\u00a0|"
    "\u3000|  |20\u00a0°C|«|“|\u2019|…|—|\u00ad|\u200b|1,234.5|ABC|aBc|&amp;|#|{|}|\\|~|\U00020000|"
    "\ue000".split("|")
)


def check_installed() -> None:
    """Raises `ConfigError` if `transformers` or `torch` is not installed."""
    for name in ("transformers", "torch"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"--verify needs {name}, which is not installed: pip install -e '.[transformers]'"
            )


def compare_with_original(
    folder: Path, tokenizer: Path, config: Config, model: ForeignModel, params: Params
) -> dict[str, Any]:
    """Returns the numbers of compared lines and the largest difference of logits.

    Args:
        folder: of the model.
        tokenizer: of the tokenizer.
        config: of the run; of several directions the first is compared.
        model: as it was imported.
        params: its parameters, on the current mesh.

    Raises:
        SourceError: sub-words or logits differ, or `transformers` cannot load the folder.
    """
    tag = find_tag(list_tasks(config.data)[0])
    vocabulary = model.vocabulary.vocabulary.with_tag(tag)
    lines = make_lines(vocabulary.src, _NUM_LINES)
    different, known = _compare_ids(lines, tokenizer, config, model, vocabulary)
    pairs = vocabulary.encode_pairs(itertools.pairwise(lines))[:_NUM_PAIRS]
    difference, largest = _compare_logits(pairs, folder, model, params)
    for side, texts in different.items():
        if texts:
            raise SourceError(
                f"--verify: {len(texts)} of {len(lines)} lines have other sub-words than in "
                f"transformers as {side}, such as {texts[0]!r}; nothing was written"
            )
    if not difference <= _TOLERANCE * max(1.0, largest):
        raise SourceError(
            f"--verify: logits differ by up to {difference:.3g} from those of transformers, whose "
            f"largest is {largest:.3g}; nothing was written"
        )
    return {
        "lines_of_each_side": len(lines),
        "lines_with_other_ids_for_a_listed_reason": dict(known),
        "pairs": len(pairs),
        "largest_difference_of_logits": difference,
        "largest_logit": largest,
    }


def make_lines(tokenizer: Tokenizer, count: int) -> list[str]:
    """Lines of random pieces of the vocabulary and of odd characters, the same each time."""
    rng = random.Random(0)
    # A vocabulary of bytes has none.
    pieces = [*tokenizer.list_pieces()] or [chr(code) for code in range(ord(" "), 0x250)]
    lines: list[str] = []
    while len(lines) < count:
        parts = rng.choices(pieces, k=rng.randint(1, 12))
        parts[len(parts) // 2 : len(parts) // 2] = rng.choices(_ODD, k=rng.randint(0, 3))
        text = "".join(parts).replace("\u2581", " ")
        # Ours drops what has no ink at both ends.
        if text.strip() and text == clean_sentence(text):
            lines.append(text)
    return lines


def _load(kind: str, folder: Path, **options: Any) -> Any:
    """Loads the original."""
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, **options
        )
    except Exception as error:  # of many types
        raise SourceError(
            f"--verify: {kind} of transformers cannot load {folder}: {first_line(error)}; "
            "import without --verify"
        ) from None


def _compare_ids(
    lines: Sequence[str],
    folder: Path,
    config: Config,
    model: ForeignModel,
    vocabulary: Vocabulary,
) -> tuple[dict[str, list[str]], Counter[str]]:
    """The lines of each side whose ids differ, and the numbers of those with a listed reason."""
    original, code = _load("AutoTokenizer", folder), ""
    if config.data.directions:
        src, _, tgt = config.data.directions[0].partition("-")
        if model.tags_both:
            original.src_lang, original.tgt_lang = src, tgt
        else:
            code = f">>{tgt}<< "  # which users of Marian type
    row = model.vocabulary.rows.row
    different: dict[str, list[str]] = {"source": [], "target": []}
    known: Counter[str] = Counter()
    for side, name in (("source", "text"), ("target", "text_target")):
        tokenizer = vocabulary.src if side == "source" else vocabulary.tgt
        ids, typed = tokenizer.encode(lines), code if side == "source" else ""
        wanted = original(**{name: [typed + line for line in lines]}).input_ids
        for line, own, theirs in zip(lines, ids, wanted, strict=True):
            if (found := row[own].tolist()) == theirs:
                continue
            pieces = map(original.convert_ids_to_tokens, (theirs, found))
            if reason := explain_difference(line, *pieces, is_fast=original.is_fast):
                known[reason] += 1
            else:
                different[side].append(line)
    return different, known


def explain_difference(line: str, wanted: list[str], found: list[str], *, is_fast: bool) -> str:
    """Returns why the pieces of a line differ from those of `transformers`; "" if unknown.

    docs/fine-tuning.md lists the reasons.

    Args:
        line: the text.
        wanted: pieces of `transformers`.
        found: pieces of the import.
        is_fast: whether `tokenizers` segments it there.
    """
    if _SYMBOLS.search(line):
        return "symbols and codes are text"
    if not is_fast:
        return ""
    if "<unk>" in wanted and any(map(_BYTE.fullmatch, found)):
        return "bytes of T5Tokenizer"
    if [each.replace("<unk>", "</s>") for each in found] == wanted:
        return "UNK of T5Tokenizer is EOS"
    if [*wanted[:-2], wanted[-1]] == found and wanted[-2] == "\u2581":
        return "spaces at the end"
    if any(each == "\x85" or unicodedata.category(each) in ("Mn", "Me", "Cf") for each in line):
        return "marks, invisible characters, U+0085"
    return ""


def _compare_logits(
    pairs: Sequence[tuple[list[int], list[int]]], folder: Path, model: ForeignModel, params: Params
) -> tuple[float, float]:
    """The largest difference, and the original's largest logit without its sign."""
    import torch

    num_rows = math.ceil(len(pairs) / count_parts("batch")) * count_parts("batch")
    src, tgt = (
        pad_sentences([side[:_LONGEST] for side in sides], num_rows, _LONGEST)
        for sides in zip(*pairs, strict=True)
    )
    tgt_in = np.concatenate([np.full_like(tgt[:, :1], BOS_ID), tgt[:, :-1]], axis=1)
    row, is_output = model.vocabulary.rows
    config = dataclasses.replace(model.config, dtype="float32")
    structure, _ = abstract_model(config, len(row), len(row))
    with jax.default_matmul_precision("highest"):
        run = jax.jit(lambda params, *ids: merge(structure, params)(*ids))
        found = np.asarray(run(params, *jax.device_put((src, tgt_in), spec("batch"))))
    src, tgt, tgt_in, found = (each[: len(pairs)] for each in (src, tgt, tgt_in, found))
    original = _load("AutoModelForSeq2SeqLM", folder, dtype=torch.float32).eval()
    start = row[START_IDS[model.config.decoder_start]]
    theirs = np.where(tgt_in == BOS_ID, start, np.maximum(row[tgt_in], 0))
    with torch.no_grad():
        wanted = original(
            input_ids=torch.tensor(np.maximum(row[src], 0)),
            attention_mask=torch.tensor(src != PAD_ID).long(),
            decoder_input_ids=torch.tensor(theirs),
        ).logits.numpy()[..., row[is_output]]
    is_token = tgt != PAD_ID
    difference = np.abs(found[..., is_output] - wanted)[is_token].max()
    return float(difference), float(np.abs(wanted[is_token]).max())
