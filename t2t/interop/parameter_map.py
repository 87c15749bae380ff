"""The tensors of a foreign model that make up each parameter of this project's, and the way back.

A family of models (`marian_nllb_mbart.py`) lists its `Link`s. `read_params` follows them one by
one, so that the host holds one tensor at a time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from t2t.config.fields import ConfigError
from t2t.interop.hugging_face_folder import SourceError, Tensors
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.model.parameters import Params

# The logit's bias of an id that is no output of the original: its probability is below 1e-40, and
# label smoothing, which spreads over all ids, still adds little to the loss.
NEVER = -100.0

Arrays = Sequence[np.ndarray]
ParameterPath = tuple[str | int, ...]


class Link(NamedTuple):
    """One parameter: its path, the names of the foreign tensors, and the functions between them."""

    path: ParameterPath
    names: tuple[str, ...]
    read: Callable[[Arrays], np.ndarray]
    write: Callable[[np.ndarray], Arrays]
    optional: bool = False  # if the tensors are missing, the parameter is `read([])`


def vector(path: ParameterPath, name: str) -> Link:
    """A parameter that is the same in both."""
    return Link(path, (name,), lambda tensors: tensors[0], lambda value: [value])


def matrix(path: ParameterPath, name: str) -> Link:
    """A matrix [in, out] from [out, in]."""
    return Link(path, (name,), lambda tensors: tensors[0].T, lambda value: [value.T])


def stacked(path: ParameterPath, *names: str) -> Link:
    """Matrices [in, out], or vectors, stacked: the projections of a feed-forward."""
    return Link(
        path, names,
        lambda tensors: np.stack([tensor.T for tensor in tensors]),
        lambda value: [part.T for part in value],
    )  # fmt: skip


def heads(path: ParameterPath, num_heads: int, *names: str) -> Link:
    """Projections to heads [D, H, P], joined along P, from matrices [H * width, D] of equal width.

    Without D they are biases.
    """

    def read(tensors: Arrays) -> np.ndarray:
        parts = [tensor.T.reshape(*tensor.shape[1:], num_heads, -1) for tensor in tensors]
        return np.concatenate(parts, axis=-1)

    def write(value: np.ndarray) -> Arrays:
        parts = np.split(value, len(names), axis=-1)
        return [part.reshape(*part.shape[:-2], -1).T for part in parts]

    return Link(path, names, read, write)


def from_heads(path: ParameterPath, num_heads: int, name: str) -> Link:
    """The projection from heads [H, width, D], from a matrix [D, H * width]."""

    def read(tensors: Arrays) -> np.ndarray:
        [tensor] = tensors
        return tensor.T.reshape(num_heads, -1, len(tensor))

    return Link(path, (name,), read, lambda value: [value.reshape(-1, value.shape[-1]).T])


def attention(
    path: ParameterPath, num_heads: int, name: str, projections: Sequence[str], *, biased: bool
) -> list[Link]:
    """The links of a multi-head attention.

    Args:
        path: of the attention; the last part says whether it is "cross_attention".
        num_heads: number of heads.
        name: of the original's attention.
        projections: names in it of the projections to queries, keys and values, and of the output.
        biased: whether the projections have biases.
    """
    *inputs, output = (f"{name}.{projection}" for projection in projections)
    own = {"query_key_value": inputs}
    if path[-1] == "cross_attention":
        own = {"query": inputs[:1], "key_value": inputs[1:]}
    links = [
        heads((*path, part, kind), num_heads, *(f"{each}.{kind}" for each in names))
        for part, names in own.items()
        for kind in (("weight", "bias") if biased else ("weight",))
    ]
    links.append(from_heads((*path, "output", "weight"), num_heads, f"{output}.weight"))
    if biased:
        links.append(vector((*path, "output", "bias"), f"{output}.bias"))
    return links


def table(path: ParameterPath, name: str, rows: Rows, scale: float = 1.0) -> Link:
    """A table of embeddings times `scale`, with its rows in the order of the vocabulary's ids."""

    def read(tensors: Arrays) -> np.ndarray:
        [tensor] = tensors
        value: np.ndarray = tensor[rows.row] * np.float32(scale)
        value[rows.row < 0] = 0
        return value

    def write(value: np.ndarray) -> Arrays:
        return [_restore(value, rows) / np.float32(scale)]

    return Link(path, (name,), read, write)


def output_bias(path: ParameterPath, name: str, rows: Rows) -> Link:
    """The bias of the logits, [1, V] in `transformers`; `NEVER` where the original has no output.

    It is 0 if the tensor is missing.
    """

    def read(tensors: Arrays) -> np.ndarray:
        bias = tensors[0][0] if tensors else np.zeros(rows.row.max() + 1, np.float32)
        return np.where(rows.is_output, bias[rows.row], np.float32(NEVER))

    return Link(path, (name,), read, lambda value: [_restore(value, rows)[None]], optional=True)


def barred(path: ParameterPath, rows: Rows) -> Link:
    """A bias of the logits that the original lacks: `NEVER` where it has no output, else 0."""
    bias = np.where(rows.is_output, np.float32(0), np.float32(NEVER))
    return Link(path, (), lambda _: bias, lambda _: [])


def check_barred(bias: np.ndarray, rows: Rows) -> None:
    """Checks that a bias of the logits does not change the probabilities of the original's ids.

    Raises:
        ConfigError: it was trained.
    """
    if np.ptp(bias[rows.is_output]) > 0:
        raise ConfigError(
            "model.output_bias=True was trained, but the original has no such bias; fine-tune "
            "with training.frozen=output_bias, as configs/fine_tune.py does"
        )


def _restore(value: np.ndarray, rows: Rows) -> np.ndarray:
    """Puts rows back into the original's order; drops those that are none of its outputs."""
    restored = np.zeros((rows.row.max() + 1, *value.shape[1:]), value.dtype)
    restored[rows.row[rows.is_output]] = value[rows.is_output]
    return restored


def check_tensors(
    links: Iterable[Link],
    shapes: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
    derived: Iterable[str],
) -> None:
    """Checks names and shapes of the tensors of a folder against the links.

    Args:
        links: of the model.
        shapes: of the folder's tensors.
        expected: of the tensors of the links, as the config has them.
        derived: names of tensors that follow from others, which may be there.

    Raises:
        SourceError: tensors are missing, unknown or of another shape.
    """
    optional = {name for link in links if link.optional for name in link.names}
    advice = "use the config.json and the weights of one model"
    if missing := sorted(expected.keys() - shapes.keys() - optional):
        raise SourceError(f"the weights lack {_list(missing)}; {advice}")
    if unknown := sorted(shapes.keys() - expected.keys() - {*derived}):
        raise SourceError(
            f"the weights have {_list(unknown)}, which such a model does not have; {advice}"
        )
    for name in expected.keys() & shapes.keys():
        if shapes[name] != expected[name]:
            raise SourceError(
                f"tensor {name} has the shape {shapes[name]}, but config.json says "
                f"{expected[name]}; {advice}"
            )


def _list(names: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def find_shapes(links: Iterable[Link], described: Params) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of each link's foreign tensors, from the shapes of the parameters."""
    shapes: dict[str, tuple[int, ...]] = {}
    for link in links:
        # Zeros of NumPy take no memory before they are read.
        value = np.zeros(_find(described, link.path).shape, np.float32)
        shapes |= {n: t.shape for n, t in zip(link.names, link.write(value), strict=True)}
    return shapes


def read_params(links: Iterable[Link], tensors: Tensors, described: Params) -> Params:
    """Reads all parameters, each placed with the sharding that `described` has for it."""
    params: dict[Any, Any] = {}
    for link in links:
        given = all(name in tensors.by_name for name in link.names)
        value = link.read([tensors.read(name) for name in link.names] if given else [])
        like = _find(described, link.path)
        assert value.shape == like.shape, (link.path, value.shape, like.shape)
        if not np.isfinite(value).all():
            raise SourceError(f"{', '.join(link.names)} has numbers that are not finite")
        target = params
        for part in link.path[:-1]:
            target = target.setdefault(part, {})
        placement = like.sharding and like.sharding.spec
        target[link.path[-1]] = jax.device_put(np.ascontiguousarray(value), placement)
    assert {*_list_paths(params)} == {*_list_paths(described)}, "a parameter has no link"
    return params


def write_tensors(links: Iterable[Link], params: Params) -> dict[str, np.ndarray]:
    """Returns the foreign tensors of the parameters, by name: the way back."""
    tensors: dict[str, np.ndarray] = {}
    for link in links:
        value = np.asarray(_find(params, link.path))
        tensors |= dict(zip(link.names, link.write(value), strict=True))
    return tensors


def _find(params: Any, path: ParameterPath) -> Any:
    for part in path:
        params = params[part]
    return params


def _list_paths(params: Params) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)]
