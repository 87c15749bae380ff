"""Fine-tuning: a new run begins with parameters of another one (`training.init_from`).

A parameter is taken where its name and shape are those of the new model. Of the tables of
embeddings, rows are taken: those of the special tokens by id, and those of pieces that both
vocabularies have. All else keeps its random initial values.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from t2t.config.fields import ModelConfig
from t2t.config.files import load_config
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.model.interface import Params
from t2t.runtime.mesh import put_like
from t2t.storage.paths import is_same_folder, make_run_path
from t2t.training.checkpoint import list_measures, restore_params
from t2t.training.parameter_groups import flatten, join_path, replace, unflatten
from t2t.training.run_directory import CHECKPOINT_NAMES, CHECKPOINT_PATTERN, RunError, list_steps

FLAG = "--init_from"
_LAYER = re.compile(r"(\w+\.)(\d+)(.*)")  # stack, number of the layer, and the part of it
_SPECIAL_IDS = (PAD_ID, BOS_ID, EOS_ID, UNK_ID)
# For each table of embeddings, the tables of another model of which the first that it has is used.
_TABLES = {
    "tgt_embedding": ("tgt_embedding",),
    "src_embedding": ("src_embedding", "tgt_embedding"),
    "own_output_embedding": ("own_output_embedding", "tgt_embedding"),
}
_TIED = ("tgt_embedding", "src_embedding")  # the same for a model's only table, which uses both


class Source(NamedTuple):
    """A run's checkpoint, with which another run begins."""

    run: Path
    checkpoint: str  # as records name it, such as "best-3000"
    params: Params  # NumPy arrays
    vocabulary: Vocabulary
    model: ModelConfig


class Outcome(NamedTuple):
    """What became of one parameter of the new model."""

    name: str
    text: str  # "taken", or what was taken of it, or why it was not
    size: int  # values that were taken


def split_name(name: str) -> tuple[Path, str]:
    """Splits RUN:CHECKPOINT; the checkpoint is "" if the name has none.

    Raises:
        PathError: RUN cannot be a run directory.
    """
    matched = re.fullmatch(f"(.*?)(?::({CHECKPOINT_PATTERN}))?", name, re.DOTALL)
    assert matched is not None
    return make_run_path(matched[1], FLAG), matched[2] or ""


def read_source(name: str, workdir: Path) -> Source:
    """Reads a checkpoint for a new run.

    Args:
        name: RUN or RUN:CHECKPOINT; without a checkpoint it is the best one by validation, or the
            last one if none was validated.
        workdir: the new run.

    Raises:
        RunError: RUN is no run, holds no such checkpoint or is the new run itself.
        ConfigError, VocabularyError: its config or vocabulary is missing or damaged.
    """
    run, which = split_name(name)
    if is_same_folder(run, workdir):
        raise RunError(
            f"{FLAG}={name} is --workdir itself; choose another --workdir for the new run, or "
            f"leave {FLAG} out to continue this one"
        )
    if not (run / "config.json").exists():
        raise RunError(
            f"{FLAG}={name}: {run} is no run directory; write RUN or RUN:CHECKPOINT, where "
            f"CHECKPOINT is {CHECKPOINT_NAMES}"
        )
    if not list_steps(run):
        raise RunError(
            f"{FLAG}={name}: {run} has no complete checkpoint yet; train it, or choose another run"
        )
    config = load_config(run / "config.json")
    vocabulary = Vocabulary.load(run / "vocab")
    if not which:
        which = "best" if config.checkpoints.best_metric in list_measures(run) else "last"
    restored, label = restore_params(run, which)
    params = jax.device_get(restored)
    for table, tokenizer in _find_tables(params, vocabulary).items():
        if len(params[table]["table"]) != tokenizer.vocab_size:
            raise RunError(
                f"{FLAG}={name}: parameter {table}.table has {len(params[table]['table'])} rows, "
                f"but {run}/vocab has {tokenizer.vocab_size} pieces; restore the vocab/ that was "
                "written with it"
            )
    return Source(run, label, params, vocabulary, config.model)


def take_params(
    params: Params, source: Source, vocabulary: Vocabulary
) -> tuple[Params, list[Outcome]]:
    """Replaces random initial parameters by those of the source where they fit.

    Args:
        params: of the new model, on the current mesh.
        source: the other run.
        vocabulary: of the new run.

    Returns:
        The parameters, sharded as before, and what became of each.

    Raises:
        RunError: none fits.
    """
    theirs, ours = flatten(source.params), flatten(params)
    tables = _find_tables(params, vocabulary)
    found, outcomes = {}, []
    for path, leaf in ours.items():
        name = join_path(path)
        if path[0] in tables:
            found[path], outcome = _take_rows(path[0], leaf, tables, source)
        elif path not in theirs:
            found[path], outcome = leaf, Outcome(name, "random: not in the source", 0)
        elif theirs[path].shape != leaf.shape:
            shapes = f"{[*theirs[path].shape]} there, {[*leaf.shape]} here"
            found[path], outcome = leaf, Outcome(name, f"random: {shapes}", 0)
        else:
            found[path] = put_like(theirs[path].astype(leaf.dtype), leaf)
            outcome = Outcome(name, "taken", leaf.size)
        outcomes.append(outcome)
    if not any(outcome.size for outcome in outcomes):
        rows = [f"{outcome.name}: {outcome.text}" for outcome in outcomes[:3]]
        raise RunError(
            f"{FLAG}: no parameter of {source.run} fits this model ({'; '.join(rows)}; ...); use "
            f"the model fields of its config.json, or leave {FLAG} out"
        )
    return replace(params, unflatten(found)), outcomes


def _find_tables(params: Params, vocabulary: Vocabulary) -> dict[str, Tokenizer]:
    """Returns the tables of embeddings of a model, each with the tokenizer of its rows."""
    sides = {"src_embedding": vocabulary.src}
    return {name: sides.get(name, vocabulary.tgt) for name in _TABLES if name in params}


def _take_rows(
    name: str, leaf: jax.Array, tables: Mapping[str, Tokenizer], source: Source
) -> tuple[jax.Array, Outcome]:
    """Takes the rows of a table's pieces, each from the source's first table with the piece."""
    held = _find_tables(source.params, source.vocabulary)
    width, has_row = leaf.shape[1], np.zeros(len(leaf), bool)
    rows = np.zeros(leaf.shape, leaf.dtype)
    other_widths = set()
    for other in _choose_tables(name, tables, held):
        table = source.params[other]["table"]
        if table.shape[1] != width:
            other_widths.add(table.shape[1])
            continue
        ids = match_pieces(held[other], tables[name])
        chosen = (ids >= 0) & ~has_row
        rows[chosen] = table[ids[chosen]]
        has_row |= chosen
    if other_widths:
        text = f"random: rows of {other_widths.pop()} values there, {width} here"
    elif has_row.all():
        text = "taken"
    else:
        text = f"taken: {has_row.sum()} of {len(leaf)} rows, those of equal pieces"
    mask = np.broadcast_to(has_row[:, None], rows.shape)
    taken = jnp.where(put_like(mask, leaf), put_like(rows, leaf), leaf)
    return taken, Outcome(f"{name}.table", text, int(has_row.sum()) * width)


def _choose_tables(name: str, ours: Collection[str], theirs: Collection[str]) -> list[str]:
    """Returns the source's tables that one of the new model's takes rows from, best first."""
    if "src_embedding" not in ours:
        return [other for other in _TIED if other in theirs]
    return [other for other in _TABLES[name] if other in theirs][:1]


def match_pieces(old: Tokenizer, new: Tokenizer) -> Int[np.ndarray, "V"]:
    """Returns the id in the old vocabulary of each piece of the new one; -1 if it has none.

    Special tokens are matched by id, and all others by their text; a tag is no text.
    """
    ids = {_identify(old, token): token for token in range(old.vocab_size)}
    return np.array([ids.get(_identify(new, token), -1) for token in range(new.vocab_size)])


def _identify(tokenizer: Tokenizer, token: int) -> object:
    if token in _SPECIAL_IDS:
        return token
    return tokenizer.pieces([token])[0], tokenizer.is_control(token)


def describe_outcomes(outcomes: Sequence[Outcome], source: Source) -> list[list[str]]:
    """Returns a table: parameters, what became of them, and the number of values taken.

    Parts of the model and layers of equal outcome share a row. The last rows have the source's
    parameters that the new model does not use.
    """
    used = {outcome.name for outcome in outcomes}
    ours = [table for table in _TABLES if f"{table}.table" in used]
    chosen = [_choose_tables(table, ours, source.params) for table in ours]
    used = used - {f"{table}.table" for table in _TABLES}
    used |= {f"{table}.table" for tables in chosen for table in tables}
    unused = [
        Outcome(join_path(path), "not used: not in the new model", 0)
        for path in flatten(source.params)
        if join_path(path) not in used
    ]
    texts: dict[str, set[str]] = {}  # of all parameters whose names begin so
    for outcome in (*outcomes, *unused):
        for part in _list_parts(outcome.name):
            texts.setdefault(part, set()).add(outcome.text)
    rows: dict[tuple[str, str], list[tuple[str, int]]] = {}  # (number of the layer, values)
    for outcome in (*outcomes, *unused):
        part = next(part for part in _list_parts(outcome.name) if len(texts[part]) == 1)
        found = _LAYER.fullmatch(part)
        stack, number, rest = found.groups() if found else ("", "", part)
        rows.setdefault((f"{stack}{{}}{rest}", outcome.text), []).append((number, outcome.size))
    return [
        [
            name.replace("{}", _format_numbers({int(number) for number, _ in own if number})),
            text,
            f"{size:,}" if (size := sum(size for _, size in own)) else "",
        ]
        for (name, text), own in rows.items()
    ]


def _list_parts(name: str) -> list[str]:
    """Returns the names of the parts of a model that hold a parameter, largest first.

    A layer is the largest part of a stack.
    """
    names = name.split(".")
    parts = [".".join(names[:count]) for count in range(1, len(names) + 1)]
    return parts[1:] if _LAYER.match(name) else parts


def _format_numbers(numbers: set[int]) -> str:
    """Formats numbers of layers, such as 0-2,5."""
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
