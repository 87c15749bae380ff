"""The rungs of a ladder: a recipe at several widths or depths, each with its amount of text.

The base of the sweep is the recipe itself, the largest rung of the family `RUNG`. The others are
named FAMILY-SIZE, such as rung-64, where the size is `model.d_model` or the number of layers; with
several amounts of text FAMILY-SIZE-xMULTIPLE. `t2t.predict_loss` reads them by these names.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t2t.config.fields import Config, ConfigError, ModelConfig
from t2t.config.files import override
from t2t.sweeps.sweep_rows import BASE, Row, scale_steps
from t2t.training.sharing import count_run_parameters
from t2t.training.total_flops import count_flops

RUNG = "rung"  # the family of the base
BY_PARAMETERS, BY_FLOPS = "parameters", "flops"  # rules for the amount of text

# Returns overrides that make another family of a rung's config, at about its size.
Family = Callable[[Config], Mapping[str, Any]]


def list_rungs(
    base: Config,
    sizes: Sequence[float],
    *,
    by_depth: bool = False,
    rule: str = BY_PARAMETERS,
    multiples: Sequence[float] = (1,),
    seeds: Sequence[int] = (0, 1, 2),
    families: Mapping[str, Family] | None = None,
) -> list[Row]:
    """Returns the rows of a ladder: the base, and the rungs of each family by size.

    Args:
        base: the recipe, the largest rung.
        sizes: of the rungs, as shares of the base's width or depth, below 1.
        by_depth: change the number of layers, not the width.
        rule: the text that a rung sees. "parameters": as many target tokens for each parameter as
            the base. "flops": training FLOPs that grow with the square of the parameters, so that
            families of equal size have equal FLOPs. Steps, warm-up and cooldown grow alike.
        multiples: of this text. Several tell parameters and text apart.
        seeds: of each rung.
        families: further families by name, with a rung of the base's size as well.

    If the smallest rung of a family is tuned (`--tune`), its other rungs have the value that is
    chosen for it.

    Raises:
        ConfigError: a size is not between 0 and 1, two sizes give one rung, or a rule is unknown.
    """
    if wrong := [size for size in sizes if not 0 < size < 1]:
        raise ConfigError(f"size {wrong[0]:g} of a rung is no share of the base; give 0.25 or 0.5")
    if rule not in (BY_PARAMETERS, BY_FLOPS):
        raise ConfigError(f"rule={rule!r} is unknown; use {BY_PARAMETERS!r} or {BY_FLOPS!r}")
    change = change_depth if by_depth else change_width
    named = {RUNG: _keep, **(families or {})}
    rows = []
    for name, family in named.items():
        own: list[Row] = []
        for size in [*sorted(sizes), 1.0]:
            label, changes = change(base.model, size)
            changes = {**changes, **family(override(base, changes))}
            for multiple in multiples:
                steps = _scale_text(base, changes, rule, multiple)
                end = "" if multiple == 1 else f"-x{multiple:g}"
                row = f"{name}-{label}{end}"
                is_base = size == multiple == 1 and name == RUNG
                giver = own[0].name if own else ""
                own.append(
                    Row(
                        BASE if is_base else row,
                        {} if is_base else {**changes, **steps},
                        seeds=tuple(seeds),
                        tuned_by=giver,
                    )
                )
        rows += own
    names = [row.name for row in rows]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"two sizes give {repeated[0]}: the base is too small for {len(sizes)} rungs below it; "
            "take a larger base, such as --config.model.d_model=128, or fewer sizes"
        )
    return sorted(rows, key=lambda row: row.name != BASE)


def change_width(model: ModelConfig, share: float) -> tuple[str, dict[str, Any]]:
    """Returns d_model as text, and overrides: heads stay, and what they and d_ff are wide scales.

    The width is a multiple of twice the number of heads, which rotary positions need.
    """
    if model.kind == "rnn":
        width = _round(share * model.d_model, 4)
        return str(width), {"model.d_model": width} if share < 1 else {}
    width = _round(share * model.d_model, 2 * model.num_heads)
    changes: dict[str, Any] = {"model.d_model": width}
    for name, multiple in (("d_ff", 8), ("d_k", 2), ("d_v", 2)):
        if (own := getattr(model, name)) is not None:
            changes[f"model.{name}"] = _round(own * width / model.d_model, multiple)
    return str(width), changes if share < 1 else {}


def match_width(base: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns overrides with which a row with these changes has base's parameters, nearly.

    Those of all stacks of its tasks count. The row is not wider than base.
    """

    def count(fields: Mapping[str, Any]) -> int:
        return count_run_parameters(override(base, fields), *[base.tokenizer.vocab_size] * 2)

    target, step = count({}), 2 * base.model.num_heads
    shares = [width / base.model.d_model for width in range(step, base.model.d_model + 1, step)]
    widths = [change_width(base.model, share)[1] for share in shares]
    return min(widths, key=lambda each: abs(count({**changes, **each}) - target))


def change_depth(model: ModelConfig, share: float) -> tuple[str, dict[str, Any]]:
    """Returns the number of layers as text, and overrides for this share of them."""
    names = ("num_layers", "encoder_layers", "decoder_layers")
    given = {name: own for name in names if (own := getattr(model, name)) is not None}
    changes = {f"model.{name}": max(round(share * own), 1) for name, own in given.items()}
    encoder, decoder = (max(round(share * own), 1) for own in model.depth)
    label = str(encoder) if encoder == decoder else f"{encoder}.{decoder}"
    return label, changes if share < 1 else {}


def _keep(_: Config) -> dict[str, Any]:
    return {}


def _round(value: float, multiple: int) -> int:
    return max(round(value / multiple), 1) * multiple


def _scale_text(
    base: Config, changes: Mapping[str, Any], rule: str, multiple: float
) -> dict[str, Any]:
    """Returns overrides with the steps of a rung."""
    config, size = override(base, changes), base.tokenizer.vocab_size
    own, whole = (count_run_parameters(each, size, size) for each in (config, base))
    ratio = own / whole
    if rule == BY_FLOPS:
        ratio = ratio**2 * count_flops(base, size) / count_flops(config, size)
    return scale_steps(base.training, multiple * ratio)
