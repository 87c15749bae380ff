"""The table of parametrisations: what is multiplied by what, for which kind of parameter.

With `model.parametrization="mup"` a learning rate that was tuned at `model.base_width` serves all
widths. All widths (d_ff, and heads times d_k) are taken to grow with d_model. In the table

    m = d_model / base_width    k = d_k / base_d_k    l = layers / base_layers

and an empty cell is the factor 1. With "standard", and at the base, all of them are 1.

    part of the model            factor                                            source
    embeddings, learned
      positions: initial values  those of base_width                               [Y] [D]
      their multiplier           that of base_width, sqrt(base_width)              [Y] [D]
    logits                       1 / m                                             [Y] [D]
    logits of attention          1 / sqrt(k), so 1 / d_k beside 1 / sqrt(d_k);
                                 1 / k with model.attention_scale=False            [Y]
    residual branches            1 / l                                             [D]
    router: initial values       1 / sqrt(m)                                       [M]
    other matrices: initial
      values                     Glorot's variance falls as 1 / m by itself        [Y]

    rate of                      Adam, nadamw    Muon                              source
    tables, vectors, scalars                                                       [Y] [D]
    hidden matrices              1 / m           1 / sqrt(m)                       [Y] [D]; [S] [G]
    matrices of attention        1 / m           sqrt(k) / m                       [Y] [D]; [S]
    router, experts              1 / m           1 / m, since Adam updates them    [M]

    epsilon of Adam              1 / (m l) in blocks; elsewhere 1 / m, scalars 1   [D]; [E]
    weight decay                 1 / (factor of the rate)                          [D]
    d_model in the rate of noam  base_width                                        equation 3

[Y] Yang et al. 2022, arXiv 2203.03466, table 8, and its definition of attention (section 4). Its
    lines were compared with github.com/microsoft/mup at 1981497.
[D] Dey et al. 2025 (CompleteP, alpha = 1), arXiv 2505.01618, table 1, of which each line was
    compared. It is for pre-norm.
[E] The table of [D] has the epsilon of blocks alone. Outside of them a gradient has the size 1 / m
    for the same reason. The code of [D] takes 1 / (m l) there, too.
[M] Malasnicki et al. 2025, arXiv 2508.09752: experts are hidden matrices, the router is an output
    of finite width; this is its form without a multiplier (Yang et al. 2022, table 3).
[S] Yang, Simon and Bernstein 2023, arXiv 2310.17813: an update of a matrix from N to M features has
    the spectral norm sqrt(M / N) times a constant. That of Muon here is 0.2 sqrt(max(M, N)) times
    the rate (`t2t/training/muon.py`). For a matrix whose sides both grow as m this asks for
    1 / sqrt(m). A head has matrices of its own: from d_model to d_k features it may have
    sqrt(k / m), and the outputs of all m / k heads add up, so that each may have sqrt(k / m), too.
    It has sqrt(m) times a constant, which leaves sqrt(k) / m.
[G] Gupta et al. 2026, arXiv 2602.20937, derives Muon's from the same condition.

A scalar is added to logits, of attention or of the output, and depends on no width: relative
positions and the bias of the output. ALiBi and sinusoids have no parameters and no factor.
"""

from typing import Literal, NamedTuple

from jaxtyping import Array, Float

from t2t.config.fields import ModelConfig

# The kind of a parameter, which is metadata of it. The default is "vector": a bias of activations,
# or a gain of a norm.
Kind = Literal["table", "hidden", "attention", "router", "vector", "scalar"]


class Growth(NamedTuple):
    """The ratios of widths and depths of a model to those of its base; 1 with "standard"."""

    width: float = 1.0  # m of the table
    key: float = 1.0  # k
    depth: float = 1.0  # l

    @classmethod
    def of(cls, config: ModelConfig) -> "Growth":
        """Compares a model with its base."""
        if config.parametrization == "standard" or config.kind == "rnn":  # which has no other
            return cls()
        assert config.base_width
        width = config.d_model / config.base_width
        key = config.key_width / config.base_d_k if config.base_d_k else width
        layers = config.depth[config.kind == "decoder_only"]
        return cls(width, key, layers / config.base_layers if config.base_layers else 1.0)


def find_logit_factor(config: ModelConfig) -> float:
    """Returns the factor of the logits, without their bias."""
    return 1 / Growth.of(config).width


def find_query_factor(config: ModelConfig) -> float:
    """Returns the factor of the queries, and so of the logits of attention without their bias."""
    return Growth.of(config).key ** (-0.5 if config.attention_scale else -1.0)


def find_branch_factor(config: ModelConfig) -> float:
    """Returns the factor of a sub-layer's output, before it is added to the residual stream."""
    return 1 / Growth.of(config).depth


def find_router_factor(config: ModelConfig) -> float:
    """Returns the factor of the initial values of a router."""
    return Growth.of(config).width ** -0.5


class Factors(NamedTuple):
    """Factors of an optimiser's settings, for one parameter."""

    rate: float = 1.0
    epsilon: float = 1.0  # of Adam
    decay: float = 1.0  # of training.weight_decay, which an update multiplies with the rate, too


def find_factors(config: ModelConfig, kind: Kind, *, in_block: bool, by_muon: bool) -> Factors:
    """Returns the factors for a parameter.

    Args:
        config: of the model.
        kind: of the parameter.
        in_block: whether it belongs to a block, and so to a residual branch.
        by_muon: whether Muon updates it, and not Adam.
    """
    growth, rate = Growth.of(config), 1.0
    match kind:
        case "hidden" | "attention" | "router" if not by_muon:
            rate = 1 / growth.width
        case "hidden":
            rate = growth.width**-0.5
        case "attention":
            rate = growth.key**0.5 / growth.width
    epsilon = 1.0 if kind == "scalar" else 1 / growth.width
    if in_block:
        epsilon /= growth.depth
    return Factors(rate, epsilon, 1 / rate)


def scale(x: Float[Array, "..."], factor: float) -> Float[Array, "..."]:
    """Returns x times the factor in the dtype of x; x itself if the factor is 1."""
    return x if factor == 1 else x * factor
