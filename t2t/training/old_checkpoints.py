"""Names of parameters in older checkpoints, and the way to those of today.

The trees here are training states or parts of them. Their dicts are trees of parameters, or of an
optimiser's states that have such trees.
"""

import itertools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

Path = tuple[Any, ...]  # names and numbers of modules, and the name of the parameter
_ATTENTIONS = ("self_attention", "cross_attention")
_PROJECTIONS = ("query_key_value", "query", "key_value", "output")  # the library's own
_PARTS = (  # of a block
    *_ATTENTIONS, "attention", "feed_forward", "self_residual", "cross_residual",
    "attention_residual", "feed_forward_residual",
)  # fmt: skip
_UNREAD = "tgt_embedding"


class Layout(NamedTuple):
    """Differences of a checkpoint from those that are written today."""

    flat: bool  # weights and biases are not in a module of their own: inner, inner_bias
    encoder_apart: bool  # encoder layers have attention, attention_residual
    unread: bool  # `model.kind=encoder_only` has a table of targets that nothing reads


def find_layout(params: Any) -> Layout:
    """Returns the layout of a tree of parameters, of which a checkpoint's metadata are one."""
    paths = [*flatten_dict(params)]
    return Layout(
        flat=any(path[-1] == "output" and "attention" in str(path[-2:-1]) for path in paths),
        encoder_apart=any(_split(path)[1][:1] == ("attention",) for path in paths),
        unread=_UNREAD in params and _is_masked(params),
    )


def to_old(tree: Any, layout: Layout) -> Any:
    """Gives the parameters in a tree of shapes, arrays or anything the names of a layout."""
    if not isinstance(tree, dict):
        return _map_dicts(lambda part: to_old(part, layout), tree)
    leaves = {_find_old(path, layout): to_old(x, layout) for path, x in flatten_dict(tree).items()}
    if layout.unread and _is_masked(tree):
        leaves[_UNREAD, "table"] = tree["own_output_embedding"]["table"]
    return unflatten_dict(leaves)


def from_old(tree: Any, described: Any, layout: Layout) -> Any:
    """The inverse of `to_old`; `described` is the tree that it should become."""
    if not isinstance(tree, dict):
        return _map_dicts(lambda part, wanted: from_old(part, wanted, layout), tree, described)
    leaves = flatten_dict(tree)
    return unflatten_dict(
        {
            path: from_old(leaves[_find_old(path, layout)], x, layout)
            for path, x in flatten_dict(described).items()
        }
    )


def rename_params(params: Any) -> Any:
    """Gives the parameters of a model the names of today."""
    layout, leaves = find_layout(params), flatten_dict(params)
    if not any(layout):
        return params
    own = {  # the blocks whose feed-forward is the library's
        path[:-3]
        for path, x in leaves.items()
        if path[-3:] == ("feed_forward", "feed_forward", "inner")
        if (x.ndim, getattr(leaves.get((*path[:-1], "outer")), "ndim", None)) == (3, 2)
    }
    return unflatten_dict(
        {
            _find_new(path, own): x
            for path, x in leaves.items()
            if not (layout.unread and path[0] == _UNREAD)
        }
    )


def _find_old(path: Path, layout: Layout) -> Path:
    block, names = _split(path)
    if not layout.flat or not block:
        return path
    match names:
        case ["feed_forward_residual", *rest]:
            names = ("feed_forward", "residual", *rest)
        case ["feed_forward", ("inner" | "outer") as name, ("weight" | "bias") as kind]:
            names = ("feed_forward", "feed_forward", name + ("_bias" if kind == "bias" else ""))
        case ["feed_forward", *rest]:
            names = ("feed_forward", "feed_forward", *rest)
        case [attention, name, ("weight" | "bias") as kind] if attention in _ATTENTIONS and (
            name in _PROJECTIONS
        ):
            names = (attention, name + ("_bias" if kind == "bias" else ""))
    if layout.encoder_apart and block[-2] == "encoder":
        oldest = {"self_attention": "attention", "self_residual": "attention_residual"}
        names = (oldest.get(names[0], names[0]), *names[1:])
    return (*block, *names)


def _find_new(path: Path, own: Collection[Path]) -> Path:
    block, names = _split(path)
    if names and names[0] in ("attention", "attention_residual"):
        names = ({"attention": "self_attention"}.get(names[0], "self_residual"), *names[1:])
    match names:
        case ["feed_forward", "residual", *rest]:
            names = ("feed_forward_residual", *rest)
        case ["feed_forward", "feed_forward", *rest]:
            is_own = block in own and len(rest) == 1
            names = ("feed_forward", *(_open(rest[0]) if is_own else rest))
        case [attention, name] if attention in _ATTENTIONS and (
            name.removesuffix("_bias") in _PROJECTIONS
        ):
            names = (attention, *_open(name))
    return (*block, *names)


def _open(name: str) -> Path:
    """Returns the module of a weight or bias, and the parameter's name in it."""
    return (name.removesuffix("_bias"), "bias") if name.endswith("_bias") else (name, "weight")


def _split(path: Path) -> tuple[Path, Path]:
    """Returns the block of a stack that a parameter belongs to, and its names there."""
    for i, (number, part) in enumerate(itertools.pairwise(path)):
        if str(number).isdecimal() and part in _PARTS:
            return path[: i + 1], path[i + 1 :]
    return (), path


def find_old_name(name: str) -> str:
    """Returns the name that a parameter had before weights and biases were in modules."""
    return ".".join(_find_old(tuple(name.split(".")), Layout(True, False, False)))


def _is_masked(params: dict[Any, Any]) -> bool:
    """Returns whether these are parameters of an encoder alone, with tables of its own."""
    tables = {"encoder", "src_embedding", "own_output_embedding"}
    return tables <= params.keys() and "decoder" not in params


def _map_dicts(change: Callable[..., Any], tree: Any, *others: Any) -> Any:
    def apply(part: Any, *others: Any) -> Any:
        return change(part, *others) if isinstance(part, dict) else part

    return jax.tree.map(apply, tree, *others, is_leaf=lambda part: isinstance(part, dict))
