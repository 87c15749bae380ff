"""Fine-tuning: a new run begins with parameters of another one (`training.init_from`).

A parameter is taken where its name and shape are those of the new model. Of the tables of
embeddings, rows are taken: those of the special tokens by id, and those of pieces that both
vocabularies have. All else keeps its random initial values.
"""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_map_with_path
from jaxtyping import Int

from t2t.config.fields import ModelConfig
from t2t.config.files import load_config
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.model.parameters import Params, find_name, name_leaves
from t2t.model.parametrization import Growth
from t2t.runtime.mesh import put_like
from t2t.training.checkpoint import list_scored_measures, restore_params
from t2t.training.checkpoint_names import CHECKPOINT_NAMES, split_checkpoint_name
from t2t.training.run_directory import RunError, list_steps
from t2t.training.sharing import has_own_stacks, list_stacks, remove_owner

FLAG = "--init_from"
_LAYER = re.compile(r"([\w@-]+\.)(\d+)(.*)")  # stack, number of the layer, and the part of it
_SPECIAL_IDS = (PAD_ID, BOS_ID, EOS_ID, UNK_ID)
# For each parameter with a row for each piece, those of another model that may hold its rows; the
# first that it has is used.
_TABLES = {
    "tgt_embedding.table": ("tgt_embedding.table",),
    "src_embedding.table": ("src_embedding.table", "tgt_embedding.table"),
    "own_output_embedding.table": ("own_output_embedding.table", "tgt_embedding.table"),
    "output_bias": ("output_bias",),
}
_SOURCE_TABLE, _SHARED_TABLE = "src_embedding.table", "tgt_embedding.table"


class SourceRun(NamedTuple):
    """A run's checkpoint, with which another run begins or from which it learns."""

    run: Path
    checkpoint: str  # as records name it, such as "best-3000"
    params: Params  # NumPy arrays
    vocabulary: Vocabulary
    model: ModelConfig


class Outcome(NamedTuple):
    """The origin of one parameter of the new model."""

    name: str
    text: str  # "taken", or what was taken of it, or why it was not
    size: int  # values that were taken


def read_source(name: str, workdir: Path, flag: str = FLAG) -> SourceRun:
    """Reads a checkpoint, RUN or RUN:CHECKPOINT, for the run `workdir`.

    Without a checkpoint it is the best one by validation, or the last one if none was validated.

    Raises:
        RunError: RUN is no run, holds no such checkpoint or is the new run itself.
        ConfigError, VocabularyError: its config or vocabulary is missing or damaged.
    """
    run, which = split_checkpoint_name(name, flag)
    if run.resolve() == workdir.resolve():
        raise RunError(
            f"{flag}={name} is --workdir itself; choose another --workdir for the new run, or "
            f"leave {flag} out to continue this one"
        )
    if not (run / "config.json").exists():
        raise RunError(
            f"{flag}={name}: {run} is no run directory; write RUN or RUN:CHECKPOINT, where "
            f"CHECKPOINT is {CHECKPOINT_NAMES}"
        )
    if not list_steps(run):
        raise RunError(
            f"{flag}={name}: {run} has no complete checkpoint yet; train it, or choose another run"
        )
    config = load_config(run / "config.json")
    vocabulary = Vocabulary.load(run / "vocab")
    if not which:
        which = "best" if config.checkpoints.best_metric in list_scored_measures(run) else "last"
    params, label = restore_params(run, which, config)
    leaves = name_leaves(params)
    for table, tokenizer in _find_tables(leaves, vocabulary).items():
        if len(leaves[table]) != tokenizer.vocab_size:
            raise RunError(
                f"{flag}={name}: parameter {table} has {len(leaves[table])} rows, but {run}/vocab "
                f"has {tokenizer.vocab_size} pieces; restore the vocab/ that was written with it"
            )
    return SourceRun(run, label, params, vocabulary, config.model)


def check_undivided(source: SourceRun, flag: str) -> None:
    """Raises `RunError` if the source has several stacks, for a run that needs one plain model."""
    if has_own_stacks(source.params):
        stacks = ", ".join(list_stacks(name_leaves(source.params)))
        raise RunError(
            f"{flag}={source.run}: its tasks have their own stacks ({stacks}), and here one model "
            "is needed; "
            f"save one task of it: python -m t2t.evaluate --workdir={source.run} --task=TASK "
            "--save_params=RUN"
        )


def check_fit(model: ModelConfig, described: Params, source: SourceRun) -> None:
    """Raises `RunError` if nothing of the source fits a model with parameters of these shapes.

    The numbers of pieces do not count: special tokens are in every vocabulary. A parameter means
    the same in both only if the factors of `t2t.model.parametrization` are the same.
    """
    if Growth.of(model) != Growth.of(source.model):
        names = ["parametrization", *(n for n in vars(model) if n.startswith("base_"))]
        values = ", ".join(f"model.{name}={getattr(source.model, name)!r}" for name in names)
        raise RunError(
            f"{FLAG}: {source.run} has other factors in its model than this one, so its parameters "
            f"would compute something else; set {values}, as in its config.json"
        )
    theirs = {remove_owner(name): leaf for name, leaf in name_leaves(source.params).items()}
    others = []
    for name, leaf in name_leaves(described).items():
        if name in theirs:
            first = int(name in _TABLES)
            if theirs[name].shape[first:] == leaf.shape[first:]:
                return
            others.append(
                f"{name} has the shape {[*theirs[name].shape]} instead of {[*leaf.shape]}"
            )
    raise RunError(
        f"{FLAG}: no parameter of {source.run} fits this model ({'; '.join(others[-2:])}); use the "
        f"model fields of its config.json, or leave {FLAG} out"
    )


def take_params(
    params: Params, source: SourceRun, vocabulary: Vocabulary
) -> tuple[Params, list[Outcome]]:
    """Replaces a new run's random parameters, on the current mesh, by the source's where they fit.

    Returns the parameters, sharded as before, and what became of each.
    """
    theirs, tables = name_leaves(source.params), _find_tables(name_leaves(params), vocabulary)
    outcomes = []

    def take(path: Sequence[Any], leaf: jax.Array) -> jax.Array:
        name = find_name(path)
        if name in tables:
            taken, outcome = _take_rows(name, leaf, tables, source)
        elif name not in theirs:
            taken, outcome = leaf, Outcome(name, "random: not in the source", 0)
        elif theirs[name].shape != leaf.shape:
            shapes = f"{[*theirs[name].shape]} there, {[*leaf.shape]} here"
            taken, outcome = leaf, Outcome(name, f"random: {shapes}", 0)
        else:
            taken = put_like(theirs[name].astype(leaf.dtype), leaf)
            outcome = Outcome(name, "taken", leaf.size)
        outcomes.append(outcome)
        return taken

    return tree_map_with_path(take, params), outcomes


def _find_tables(names: Collection[str], vocabulary: Vocabulary) -> dict[str, Tokenizer]:
    """Returns a model's parameters with a row for each piece, and the tokenizers of the rows."""
    sides = {_SOURCE_TABLE: vocabulary.src}
    return {name: sides.get(name, vocabulary.tgt) for name in _TABLES if name in names}


def _take_rows(
    name: str, leaf: jax.Array, tables: Mapping[str, Tokenizer], source: SourceRun
) -> tuple[jax.Array, Outcome]:
    """Takes the rows of a table's pieces, each from the source's first table with the piece."""
    theirs = name_leaves(source.params)
    held = _find_tables(theirs, source.vocabulary)
    has_row, rows = np.zeros(len(leaf), bool), np.zeros(leaf.shape, leaf.dtype)
    text = "random: not in the source"
    for other in _choose_tables(name, tables, held):
        if theirs[other].shape[1:] != leaf.shape[1:]:
            text = f"random: rows {[*theirs[other].shape[1:]]} there, {[*leaf.shape[1:]]} here"
            continue
        ids = match_pieces(held[other], tables[name])
        chosen = (ids >= 0) & ~has_row
        rows[chosen] = theirs[other][ids[chosen]]
        has_row |= chosen
    if has_row.any():
        part = f": {has_row.sum()} of {len(leaf)} rows, those of equal pieces"
        text = "taken" + part * (not has_row.all())
    mask = np.broadcast_to(has_row.reshape(-1, *[1] * (leaf.ndim - 1)), leaf.shape)
    taken = jnp.where(put_like(mask, leaf), put_like(rows, leaf), leaf)
    return taken, Outcome(name, text, int(mask.sum()))


def _choose_tables(name: str, ours: Collection[str], theirs: Collection[str]) -> list[str]:
    """Returns the source's tables that one of the new model's takes rows from, best first."""
    if name == _SHARED_TABLE and _SOURCE_TABLE not in ours:
        return [other for other in (_SHARED_TABLE, _SOURCE_TABLE) if other in theirs]
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


def tabulate_outcomes(outcomes: Sequence[Outcome], source: SourceRun) -> list[list[str]]:
    """Returns a table: parameters, what became of them, and the number of values taken.

    Parts of the model and layers of equal outcome share a row. The last rows have the source's
    parameters that the new model does not use.
    """
    names, theirs = {outcome.name for outcome in outcomes}, name_leaves(source.params)
    if not has_own_stacks(source.params):
        names |= {*map(remove_owner, names)}
    ours = names & _TABLES.keys()
    used = (names - ours).union(*(_choose_tables(table, ours, theirs) for table in ours))
    unused = [Outcome(name, "not used: not in the new model", 0) for name in theirs.keys() - used]
    unused.sort()
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
    # Numbers of a run have the same distance from their index.
    groups = itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
