"""Parameters that the tasks of a run share, and encoders, decoders and tables of their own.

All tasks share all parameters, unless a task names its encoder or its decoder (`data.encoder`,
`data.decoder`). Tasks that name the same stack share it. With `model.own_tables` the tables of
embeddings belong to the stacks that read them, else all tasks share them.

A batch holds examples that go through the same stacks, its route. A training step is the step of a
plain model, whose parameters and optimiser state are picked from those of the run. So no device
computes a stack for rows of another one, and a stack that a batch does not use stays as it is: it
has no update, and its moments do not decay. All stacks share the optimiser's counters of steps.

In the trees of a run a part of the model that belongs to a stack with a name has this name behind
its own: encoder@de.0.self_attention.output.weight.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import jax

from t2t.config.fields import Config, ConfigError, DataConfig, ModelConfig
from t2t.config.rules import fit_task
from t2t.data.batch import Route
from t2t.data.directions import find_route, list_tasks
from t2t.model.parameters import Params
from t2t.ops.build_model import find_family
from t2t.ops.flops import describe_params

Tree = TypeVar("Tree")  # parameters, or a tree with parts that are keyed as parameters are

# Tables of embeddings, and the bias of the logits, by the stack that reads them.
_TABLES = {
    "encoder": ("src_embedding",),
    "decoder": ("tgt_embedding", "own_output_embedding", "output_bias"),
}


class Sharing:
    """The stacks of a run, and the trees of plain models in the trees of the run."""

    def __init__(self, config: Config):
        """Reads which stacks the tasks name.

        Raises:
            ConfigError: a task names a stack that the model's family does not have.
        """
        self.tasks: dict[Route, list[str]] = {}  # the names of the tasks of each route
        for task in list_tasks(config.data):
            self.tasks.setdefault(find_route(task), []).append(task.task)
        self.is_plain = [*self.tasks] == [Route()]
        self._names = {route: _name_parts(config.model, route) for route in self.tasks}
        # The first keys of parameters, in a run whose tasks have own stacks.
        self._parts = set[str]()
        if not self.is_plain:
            self._parts = {*describe_params(config.model, 1, 1)}

    def pick(self, tree: Tree, route: Route) -> Tree:
        """Returns the tree of the plain model of a route, from one of the run."""
        names = self._names[route]

        def choose(node: Any) -> Any:
            if not self._is_keyed_by_parts(node):
                return node
            shared = {
                key: leaf for key, leaf in node.items() if key not in names and "@" not in str(key)
            }
            return shared | {part: node[own] for part, own in names.items() if own in node}

        if self.is_plain:
            return tree
        return jax.tree.map(choose, tree, is_leaf=self._is_keyed_by_parts)

    def put(self, whole: Tree, part: Any, route: Route) -> Tree:
        """Returns the tree of the run with what `pick` returns for a route replaced."""

        def replace(node: Any, own: Any) -> Any:
            return {**node, **self._rename(own, route)} if self._is_keyed_by_parts(node) else own

        return jax.tree.map(replace, whole, part, is_leaf=self._is_keyed_by_parts)

    def join(self, make: Callable[[Route], Tree]) -> Tree:
        """Returns the tree of the run from the trees of its routes; shared parts are the first's.

        `make` is called once for each route.
        """
        first, *others = self._names
        whole = jax.tree.map(
            lambda node: self._rename(node, first) if self._is_keyed_by_parts(node) else node,
            make(first),
            is_leaf=self._is_keyed_by_parts,
        )
        for route in others:
            added = self.put(whole, make(route), route)
            whole = self.put(added, self.pick(whole, first), first)
        return whole

    def name_of(self, name: str, route: Route) -> str:
        """Returns the name in the run of a parameter of the plain model of a route."""
        part, dot, rest = name.partition(".")
        return f"{self._names[route].get(part, part)}{dot}{rest}"

    def describe(self, params: Params) -> list[str]:
        """Returns a line for each route of a run with own stacks: its tasks and parameters.

        Of the parameters only the shapes are read.
        """
        if self.is_plain:
            return []
        sizes = {
            route: sum(leaf.size for leaf in jax.tree.leaves(self.pick(params, route)))
            for route in self.tasks
        }
        return [
            f"{', '.join(filter(None, tasks)) or 'all text'}: "
            f"encoder {route.encoder or 'shared'}, decoder {route.decoder or 'shared'}, "
            f"{sizes[route]} parameters"
            for route, tasks in self.tasks.items()
        ]

    def _rename(self, node: Mapping[str, Any], route: Route) -> dict[str, Any]:
        names = self._names[route]
        return {names.get(key, key): leaf for key, leaf in node.items()}

    def _is_keyed_by_parts(self, node: Any) -> bool:
        """Returns whether all keys of a node are parts of the model, with or without an owner."""
        return isinstance(node, dict) and all(
            str(key).partition("@")[0] in self._parts for key in node
        )


def _name_parts(model: ModelConfig, route: Route) -> dict[str, str]:
    """Returns the names in the run of the parts that belong to the stacks of a route.

    Raises:
        ConfigError: the family of the model does not have such a stack.
    """
    names = dict[str, str]()
    for side, stack in vars(route).items():
        if not stack:
            continue
        family = find_family(model)
        parts = {"encoder": family.encoder_parts, "decoder": family.decoder_parts}[side]
        if not parts:
            raise ConfigError(
                f"data.{side}={stack!r}: model.kind={model.kind!r} has no {side} of its own; leave "
                f"data.{side} empty"
            )
        if model.own_tables:
            parts += _TABLES[side]
        names |= {part: f"{part}@{stack}" for part in parts}
    return names


def make_plain(config: Config, task: DataConfig) -> Config:
    """Returns the config of a run of one task, whose model is what `pick` returns."""
    model = dataclasses.replace(config.model, own_tables=False)
    fitted = fit_task(config, dataclasses.replace(task, encoder="", decoder=""))
    return dataclasses.replace(fitted, model=model)


def count_run_parameters(config: Config, src_vocab_size: int, tgt_vocab_size: int) -> int:
    """Returns the number of parameters of a run, all stacks of its tasks included."""
    plain = describe_params(config.model, src_vocab_size, tgt_vocab_size)
    whole = Sharing(config).join(lambda route: plain)
    return sum(leaf.size for leaf in jax.tree.leaves(whole))


def has_own_stacks(params: Params) -> bool:
    """Returns whether parameters are those of a run with several stacks, not of a plain model."""
    return any("@" in str(key) for key in params)


def remove_owner(name: str) -> str:
    """Returns the name in a plain model of a run's parameter: encoder.0 of encoder@de.0."""
    part, dot, rest = name.partition(".")
    return f"{part.partition('@')[0]}{dot}{rest}"


def list_stacks(names: Collection[str]) -> list[str]:
    """Returns the parts with an owner among names of a run's parameters, such as encoder@de."""
    parts = (name.partition(".")[0] for name in names)
    return [*dict.fromkeys(part for part in parts if "@" in part)]
