"""The optimiser. Its state and updates are sharded over the mesh axis `data`, as the batch is.

Some optimisers are evaluated at other parameters than those at which gradients are computed: an
`Optimizer` has a function for them, which training applies before validation and checkpoints.

Data parallelism replicates the parameters, and every replica would compute the same update. Instead
each device computes one shard of the update, and the new parameters are gathered (Xu et al. 2020;
stage 1 of ZeRO):

    updates, opt_state = optimizer.update(gradient, opt_state, params)  # both sharded over `data`
    params = apply_updates(params, updates, where=finite)  # gathered again
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import optax
from jax.tree_util import DictKey, tree_leaves_with_path
from jaxtyping import Array, Bool

from t2t.config.fields import Config, ConfigError, TrainingConfig
from t2t.config.variants import CHOICES, call_variant, explain_shardings
from t2t.data.batch import Route
from t2t.model.parameters import Params, find_name, name_leaves
from t2t.model.parametrization import Factors
from t2t.ops.build_model import list_parameters
from t2t.runtime.mesh import reshard_like, shard_over_data
from t2t.training.muon import make_muon
from t2t.training.parameter_groups import (
    combine,
    find_factor,
    generalize,
    group_parameters,
    scale_settings,
    select,
)
from t2t.training.schedule import make_schedule
from t2t.training.sharing import Sharing, remove_owner


class Optimizer(NamedTuple):
    """An `optax.GradientTransformation`, with the parameters that it is evaluated at."""

    init: Callable[[Params], optax.OptState]
    update: Callable[[Params, optax.OptState, Params], tuple[Params, optax.OptState]]
    # Maps the state and the parameters to those that validation scores and checkpoints offer to all
    # programs. None: the parameters themselves.
    evaluation_params: Callable[[optax.OptState, Params], Params] | None = None


def make_run_optimizer(config: Config) -> Optimizer:
    """Returns the optimiser whose trees are those of the run; its tasks may have own stacks.

    `update` is for plain models, as a step has them: of a run with own stacks it must not be
    called.
    """
    sharing = Sharing(config)
    if sharing.is_plain:
        return make_optimizer(config)
    by_route = {
        route: make_optimizer(config, functools.partial(sharing.name_of, route=route))
        for route in sharing.tasks
    }
    first, *_ = by_route.values()

    def init(params: Params) -> optax.OptState:
        return sharing.join(lambda route: by_route[route].init(sharing.pick(params, route)))

    def update(*_: Any) -> Any:
        raise AssertionError("a step updates a plain model")

    def evaluation_params(state: optax.OptState, params: Params) -> Params:
        def evaluate(route: Route) -> Params:
            own = by_route[route].evaluation_params
            assert own is not None
            return own(sharing.pick(state, route), sharing.pick(params, route))

        return sharing.join(evaluate)

    return Optimizer(init, update, first.evaluation_params and evaluation_params)


def make_optimizer(config: Config, name_of: Callable[[str], str] = str) -> Optimizer:
    """Section 5.3: Adam, or another optimiser that the config names, with a schedule.

    A registered one (`config/variants.py`) is an `optax.GradientTransformation` or an `Optimizer`.
    With `training.clip_norm`, gradients are clipped before the optimiser sees them.

    `training.rate_factors` and `model.parametrization` group parameters, each group with an
    optimiser of its own. With `training.frozen` nothing here sees the frozen parameters or their
    gradients: they have neither state nor update nor weight decay, and the norm for clipping is
    that of the others. `name_of` maps the name of a parameter to its name in the run, which the
    patterns of both fields mean.
    """
    training = config.training
    schedule = make_schedule(training, config.model.reference_width)
    find_factors, factors = group_parameters(config, name_of)
    groups = [_make_one(scale_settings(config, each), _scale(schedule, each)) for each in factors]
    optimizer = groups[0]
    if len(groups) > 1:
        optimizer = _group(groups, lambda name: factors.index(find_factors(name)))
    if training.clip_norm:
        optimizer = _clip(optimizer, training.clip_norm)
    if training.frozen:
        optimizer = _group(
            [optimizer], lambda name: None if find_factor(training, name_of(name)) is None else 0
        )
    return shard_update(optimizer)


def _make_one(config: Config, schedule: optax.Schedule) -> Optimizer:
    """Creates the optimiser that `training.optimizer` names, with this schedule."""
    training = config.training
    b1, b2, eps = training.adam_b1, training.adam_b2, training.adam_eps
    optimizer: optax.GradientTransformation | Optimizer
    match training.optimizer:
        case "adam":
            optimizer = optax.adam(schedule, b1, b2, eps)
        case "nadamw":
            optimizer = optax.nadamw(schedule, b1, b2, eps, weight_decay=training.weight_decay)
        case "schedule_free_adamw":
            optimizer = _make_schedule_free(training, schedule)
        case "muon":
            optimizer = make_muon(config, schedule, list_parameters(config.model))
        case _:
            optimizer = _call_registered(config, schedule)
    return Optimizer(*optimizer)


def _scale(schedule: optax.Schedule, factors: Factors) -> optax.Schedule:
    return schedule if factors.rate == 1 else lambda count: factors.rate * schedule(count)


def _group(optimizers: Sequence[Optimizer], choose: Callable[[str], int | None]) -> Optimizer:
    """Returns the optimiser that updates parameter `name` with `optimizers[choose(name)]`.

    None: the parameter has no update, and the tree of updates lacks it. The state is a list with
    the state of each optimiser.
    """

    def split(params: Params) -> list[Params]:
        """Returns the parts of the tree that the optimisers update."""
        names = name_leaves(params)
        groups = [{name for name in names if choose(name) == i} for i in range(len(optimizers))]
        return [select(params, group.__contains__) for group in groups]

    def init(params: Params) -> list[optax.OptState]:
        return [own.init(part) for own, part in zip(optimizers, split(params), strict=True)]

    def update(
        gradient: Params, states: list[optax.OptState], params: Params
    ) -> tuple[Params, list[optax.OptState]]:
        parts = zip(optimizers, split(gradient), states, split(params), strict=True)
        done = [own.update(*arguments) for own, *arguments in parts]
        return combine(updates for updates, _ in done), [state for _, state in done]

    def evaluation_params(states: list[optax.OptState], params: Params) -> Params:
        evaluated = [
            own.evaluation_params(state, part)
            for own, state, part in zip(optimizers, states, split(params), strict=True)
            if own.evaluation_params
        ]
        return combine([params, *evaluated])

    has_own = any(own.evaluation_params for own in optimizers)
    return Optimizer(init, update, evaluation_params if has_own else None)


def _call_registered(
    config: Config, schedule: optax.Schedule
) -> optax.GradientTransformation | Optimizer:
    return call_variant(
        "training.optimizer", config.training.optimizer,
        config, schedule, list_parameters(config.model),
        is_valid=lambda value: isinstance(value, optax.GradientTransformation | Optimizer)
        and all(each is None or callable(each) for each in value),
    )  # fmt: skip


def describe_optimizer(config: Config, optimizer: Optimizer, params: Params) -> list[str]:
    """Says which parameters have another rate, and what else the log does not show.

    `optimizer` is the config's. Of the parameters only the shapes are read.

    Raises:
        ConfigError: `training.rate_factors` have no effect, since the rate is not the schedule's.
    """
    training, lines = config.training, []
    if optimizer.evaluation_params:
        lines.append(
            f"training.optimizer={training.optimizer!r} is evaluated at other parameters than "
            "those that it trains: train/loss is of the latter, validation scores and checkpoints "
            "are of the former"
        )
    is_registered = training.optimizer not in CHOICES["training.optimizer"]
    if is_registered and not _uses_schedule(config, params):
        own = f"training.optimizer={training.optimizer!r} has a rate of its own"
        if training.rate_factors:
            raise ConfigError(
                f"training.rate_factors={training.rate_factors} have no effect: {own}; leave them "
                "out, or use training.frozen"
            )
        lines.append(
            f"{own}: the rate in the log is that of training.schedule={training.schedule!r}, which "
            "it does not use"
        )
    lines += _describe_partition(config, optimizer, params)
    find_factors, _ = group_parameters(config)
    sizes: dict[float, int] = {}
    for name, leaf in name_leaves(params).items():
        is_frozen = find_factor(training, name) is None
        factor = 0.0 if is_frozen else find_factors(name).rate
        sizes[factor] = sizes.get(factor, 0) + leaf.size
    total = sum(sizes.values())
    for factor, size in sorted(sizes.items()):
        if factor != 1:
            what = f"trained at {factor:g} times the learning rate" if factor else "frozen"
            lines.append(f"{size} of {total} parameters are {what}")
    return lines


def _describe_partition(config: Config, optimizer: Optimizer, params: Params) -> list[str]:
    """Says what each optimiser updates, if there are several (`optax.partition`)."""
    members = _find_partition(jax.eval_shape(optimizer.init, params))
    if not members:
        return []
    leaves, plain = name_leaves(params), list_parameters(config.model)
    declared = {name: plain[remove_owner(name)] for name in leaves if remove_owner(name) in plain}

    def list_sizes(names: Iterable[str]) -> str:
        sizes = Counter[str]()
        for name in names:
            sizes[generalize(name)] += leaves[name].size
        return ", ".join(f"{name} ({size})" for name, size in sorted(sizes.items()))

    lines, start = [], f"training.optimizer={config.training.optimizer!r}: "
    trained = {name for name in leaves if find_factor(config.training, name) is not None}
    for label, names in members.items():
        if not (own := trained & names):
            continue
        matrices = {name for name in own if name in declared and declared[name].matrix}
        others = [n for n in own - matrices if leaves[n].ndim >= 2 and not n.endswith("bias")]
        line = f"{start}{label} updates {sum(leaves[name].size for name in own)} parameters"
        if matrices:
            count = 0
            for name in matrices:
                # The product of the other dimensions is the number of matrices.
                shape, sides = leaves[name].shape, declared[name].matrix or ()
                count += math.prod(size for i, size in enumerate(shape) if i not in sides)
            line += f", {count} matrices"
        if others:
            line += "; arrays of two or more dimensions that are no matrices: " + list_sizes(others)
        lines.append(line)
    if left := trained - set[str]().union(*members.values()):
        lines.append(f"{start}no optimiser has a state for {list_sizes(left)}")
    return lines


def _find_partition(state: optax.OptState) -> dict[str, set[str]]:
    """Returns the parameters that each part of `optax.partition` has a state for."""
    members: dict[str, set[str]] = {}
    for node in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.PartitionState)):
        if isinstance(node, optax.PartitionState):
            for label, own in node.inner_states.items():
                for path, _ in tree_leaves_with_path(own):
                    # The last keys of the path are those of the parameter.
                    outer = [i for i, part in enumerate(path) if not isinstance(part, DictKey)]
                    name = find_name(path[max(outer, default=-1) + 1 :])
                    members.setdefault(label, set()).add(name)
    return members


@explain_shardings()
def _uses_schedule(config: Config, params: Params) -> bool:
    """Returns whether a registered optimiser asks for rates of `training.schedule`."""
    used = []
    schedule = make_schedule(config.training, config.model.reference_width)

    def record(count: jax.typing.ArrayLike) -> jax.typing.ArrayLike:
        used.append(count)
        return schedule(count)

    own = _call_registered(config, record)
    state = jax.eval_shape(own.init, params)
    jax.eval_shape(own.update, params, state, params)
    return bool(used)


def _make_schedule_free(training: TrainingConfig, schedule: optax.Schedule) -> Optimizer:
    """Schedule-Free AdamW (Defazio et al. 2024, https://arxiv.org/abs/2405.15682).

    Training holds y = (1 - beta) z + beta x, at which gradients are computed. AdamW without
    momentum moves z. x is the average of all z so far, each weighted by the square of the largest
    learning rate until then, and it is what is evaluated.
    """
    optimizer = optax.contrib.schedule_free_adamw(
        schedule,
        b1=training.adam_b1,
        b2=training.adam_b2,
        eps=training.adam_eps,
        weight_decay=training.weight_decay,
    )
    return Optimizer(optimizer.init, optimizer.update, optax.contrib.schedule_free_eval_params)


def _clip(optimizer: Optimizer, norm: float) -> Optimizer:
    """Returns the optimiser for gradients that are first clipped to this global norm."""
    init, update = optax.chain(
        optax.clip_by_global_norm(norm),
        optax.GradientTransformation(optimizer.init, optimizer.update),
    )
    own = optimizer.evaluation_params
    return Optimizer(init, update, own and (lambda state, params: own(state[1], params)))


def shard_update(optimizer: Optimizer) -> Optimizer:
    """Returns the optimiser with its state and updates sharded over `data` (`shard_over_data`).

    Evaluation parameters are computed sharded, too, and gathered as the parameters are.
    """

    def init(params: Params) -> optax.OptState:
        return optimizer.init(jax.tree.map(shard_over_data, params))

    def update(
        gradient: Params, state: optax.OptState, params: Params
    ) -> tuple[Params, optax.OptState]:
        gradient, params = jax.tree.map(shard_over_data, (gradient, params))
        return optimizer.update(gradient, state, params)

    own = optimizer.evaluation_params
    if own is None:
        return Optimizer(init, update)

    @jax.jit
    def evaluation_params(state: optax.OptState, params: Params) -> Params:
        sharded = own(state, jax.tree.map(shard_over_data, params))
        return jax.tree.map(reshard_like, sharded, params)

    return Optimizer(init, update, evaluation_params)


def apply_updates(params: Params, updates: Params, where: Bool[Array, ""]) -> Params:
    """Returns params + updates if `where` is True, else params.

    The sum is sharded as `updates`, the result as `params`. Parameters that `updates` lacks, which
    are frozen, stay.
    """
    trained = select(params, name_leaves(updates).__contains__)
    old = jax.tree.map(reshard_like, trained, updates)
    new = optax.tree.where(where, optax.apply_updates(old, updates), old)
    return combine([params, jax.tree.map(reshard_like, new, trained)])
