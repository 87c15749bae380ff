"""The table that an import prints: what was understood of a model of `transformers`."""

from t2t.config.fields import Config
from t2t.interop.foreign_model import ForeignModel
from t2t.interop.foreign_search import ForeignSearch
from t2t.ops.flops import count_parameters


def describe_import(config: Config, model: ForeignModel, search: ForeignSearch) -> dict[str, str]:
    """Returns what was understood of the source: parts of the model, with a line for each."""
    own, given, rows = config.model, model.given, model.vocabulary.rows
    architectures = ", ".join(given.get("architectures") or [])
    decoding = config.decoding
    beam = f"beam of {decoding.beam_size}"
    if decoding.strategy == "sampling":
        beam = (
            f"samples, temperature {decoding.temperature:g}, top_k {decoding.top_k}, top_p "
            f"{decoding.top_p:g}"
        )
    elif decoding.beam_size > 1:
        beam += f", log P divided by length ** {decoding.alpha:g}"
    if decoding.min_length:
        beam += f", at least {decoding.min_length} sub-words"
    encoder, decoder = own.depth
    size = len(rows.row)
    limit = f", {own.max_positions} at most" if own.position_limit else ""
    return {
        "family": f"{given.get('model_type')} {architectures}".strip(),
        "layers": f"{encoder} of the encoder, {decoder} of the decoder",
        "widths": f"d_model {own.d_model}, d_ff {own.d_ff}, {own.num_heads} heads of "
        f"{own.key_width}",
        "parameters": f"{count_parameters(own, size, size):,}",
        "positions": own.position + limit,
        "vocabulary": ", ".join(
            f"{n:,} {name}" for name, n in model.vocabulary.count_pieces().items()
        ),
        "search": beam,
        "longest output": f"its source and {decoding.max_extra_length} sub-words; generate() of "
        f"transformers: {search.max_length}",
        "without effect": ", ".join(given.list_without_effect()) or "none",
        "not known": ", ".join(model.unknown) or "none",
    }
