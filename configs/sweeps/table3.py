r"""Table 3 of the paper, rows A to E and big, on any base recipe, and a recurrent model.

    python -m t2t.sweep --sweep=configs/sweeps/table3.py --config=configs/base.py \
        --workdir=runs/table3
    python -m t2t.sweep --sweep=configs/sweeps/table3.py --config=configs/multi30k.py:en-de \
        --workdir=runs/table3 --only=A,B

Rows are named by the paper's values. On a base of another size, sizes keep their ratio to the base:
with 4 heads instead of 8, A-h4 has 2, and with 3 layers instead of 6, C-N2 has 1 (rounded). The
row with a single head and the rates of dropout and label smoothing do not scale. Key/value heads
(model.num_kv_heads) are shared by as many heads as in the base, where that is possible. Where
d_model changes, the peak learning rate scales with d_model^-0.5 in every schedule (equation 3).
"""

import math

from t2t.config import Config, ModelConfig
from t2t.evaluation.published import Published
from t2t.sweeps.family_rows import make_recurrent
from t2t.sweeps.sweep_rows import Row

SOURCE = (
    "Vaswani et al. 2017, table 3, newstest2013, no checkpoint averaging, compounds split; compare "
    "differences from base, not values"
)


def get_rows(base: Config) -> list[Row]:
    """Returns the rows: base with three seeds, every other row with one."""
    return [
        Row("base", {}, publish(4.92, 25.8, 65), seeds=(0, 1, 2)),
        *split_heads(base.model),
        *narrow_keys(base.model),
        *change_size(base),
        *regularize(base),
        learn_positions(base),
        recur(base),
        enlarge(base),
    ]


def publish(perplexity: float, bleu: float, parameters: int | None = None) -> Published:
    """The paper's values of a row: of one seed, per sub-word, and millions of parameters."""
    scores = {"perplexity": (perplexity,), "bleu": (bleu,)}
    return Published(SOURCE, scores, parameters=parameters, is_comparable=False)


def split_heads(model: ModelConfig) -> list[Row]:
    """Rows A: number of heads, at constant total width of all heads."""
    papers = {
        1: publish(5.29, 24.9),
        4: publish(5.00, 25.5),
        16: publish(4.91, 25.8),
        32: publish(5.01, 25.4),
    }
    rows = []
    for number, paper in papers.items():
        heads = 1 if number == 1 else max(model.num_heads * number // 8, 1)
        overrides = {
            "model.num_heads": heads,
            "model.d_k": model.num_heads * model.key_width // heads,
            "model.d_v": model.num_heads * model.value_width // heads,
        }
        if model.num_kv_heads is not None:
            shared = max(heads * model.num_kv_heads // model.num_heads, 1)
            overrides["model.num_kv_heads"] = math.gcd(shared, heads)
        rows.append(Row(f"A-h{number}", overrides, paper))
    return rows


def narrow_keys(model: ModelConfig) -> list[Row]:
    """Rows B: d_k, at constant d_v."""
    papers = {16: publish(5.16, 25.1, 58), 32: publish(5.01, 25.4, 60)}
    return [
        Row(
            f"B-dk{number}",
            {"model.d_k": model.key_width * number // 64, "model.d_v": model.value_width},
            paper,
        )
        for number, paper in papers.items()
    ]


def change_size(base: Config) -> list[Row]:
    """Rows C: number of layers, d_model and d_ff, at a constant number of heads."""
    model = base.model

    def stack(number: int, paper: Published) -> Row:
        depths = ("num_layers", "encoder_layers", "decoder_layers")
        given = {name: depth for name in depths if (depth := getattr(model, name)) is not None}
        overrides = {f"model.{name}": round(depth * number / 6) for name, depth in given.items()}
        return Row(f"C-N{number}", overrides, paper)

    def widen(number: int, paper: Published) -> Row:
        overrides = {
            **change_width(base, model.d_model * number // 512),
            "model.d_k": model.key_width * number // 512,
            "model.d_v": model.value_width * number // 512,
        }
        return Row(f"C-dmodel{number}", overrides, paper)

    def widen_inside(number: int, paper: Published) -> Row:
        return Row(f"C-dff{number}", {"model.d_ff": model.d_ff * number // 2048}, paper)

    return [
        stack(2, publish(6.11, 23.7, 36)),
        stack(4, publish(5.19, 25.3, 50)),
        stack(8, publish(4.88, 25.5, 80)),
        widen(256, publish(5.75, 24.5, 28)),
        widen(1024, publish(4.66, 26.0, 168)),
        widen_inside(1024, publish(5.12, 25.4, 53)),
        widen_inside(4096, publish(4.75, 26.2, 90)),
    ]


def change_width(base: Config, d_model: int) -> dict[str, float]:
    """Overrides d_model and scales the learning rate; the schedule noam scales it itself."""
    rate = base.training.learning_rate
    if base.training.schedule != "noam":
        rate = round(rate * (base.model.d_model / d_model) ** 0.5, 6)
    return {"model.d_model": d_model, "training.learning_rate": rate}


def regularize(base: Config) -> list[Row]:
    """Rows D: rates of dropout and label smoothing, whatever the base has.

    With R-Drop, which compares two passes with different dropout, there is no row without dropout.
    """
    no_dropout = Row("D-dropout0.0", {"model.dropout": 0.0}, publish(5.77, 24.6))
    return [
        *([] if base.training.r_drop else [no_dropout]),
        Row("D-dropout0.2", {"model.dropout": 0.2}, publish(4.95, 25.5)),
        Row("D-smoothing0.0", {"training.label_smoothing": 0.0}, publish(4.67, 25.3)),
        Row("D-smoothing0.2", {"training.label_smoothing": 0.2}, publish(5.47, 25.7)),
    ]


def learn_positions(base: Config) -> Row:
    """Row E: learned positions."""
    lengths = base.data.max_length, base.data.packed_length, base.decoding.min_length + 1
    rows = max(base.model.max_positions, *lengths)
    overrides = {"model.position": "learned", "model.max_positions": rows}
    return Row("E-learned", overrides, publish(4.92, 25.7))


def recur(base: Config) -> Row:
    """A recurrent row with the base's number of parameters."""
    overrides = make_recurrent(base)
    width = overrides.get("model.d_model", base.model.d_model)
    return Row("rnn", overrides | change_width(base, width))


def enlarge(base: Config) -> Row:
    """Row big: twice the width, three times the steps, dropout 0.3."""
    overrides = {
        **change_width(base, 2 * base.model.d_model),
        "model.d_ff": 2 * base.model.d_ff,
        "model.num_heads": 2 * base.model.num_heads,
        "model.dropout": 0.3,
        "training.steps": 3 * base.training.steps,
    }
    if base.model.num_kv_heads is not None:
        overrides["model.num_kv_heads"] = 2 * base.model.num_kv_heads
    return Row("big", overrides, publish(4.33, 26.4, 213))
