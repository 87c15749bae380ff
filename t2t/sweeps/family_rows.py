"""Other families of models as overrides of a recipe, with about as many parameters as it has."""

import dataclasses
from typing import Any

from t2t.config.fields import Config, ModelConfig
from t2t.sweeps.sweep_rows import match_depth, match_size_of


def make_prefix_lm(base: Config) -> dict[str, Any]:
    """Returns overrides for a prefix language model: as wide as the base, with more layers."""
    model = dataclasses.replace(
        base.model, kind="decoder_only", encoder_layers=None, decoder_layers=None, num_layers=1
    )
    overrides = {
        "model.kind": "decoder_only",
        "model.num_layers": match_depth(base, model, "num_layers"),
        "model.encoder_layers": None,
        "model.decoder_layers": None,
    }
    if base.model.position == "learned":  # source and target share the positions
        overrides["model.max_positions"] = 2 * base.model.max_positions
    return overrides


def make_recurrent(base: Config, multiple: int = 16) -> dict[str, Any]:
    """Returns overrides for one layer of GRUs (Bahdanau et al. 2015), whose width fits the size.

    The gradient is clipped, since recurrence makes it explode (Pascanu et al. 2013). Sentences are
    not packed, since the state would be carried from one to the next. `multiple` divides the width.
    """
    before = base.model
    narrow = ModelConfig(
        kind="rnn", num_layers=1, dropout=before.dropout, tie_embeddings=before.tie_embeddings
    )
    after = match_size_of(base, narrow, multiple)
    overrides = {
        f"model.{name}": value
        for name, value in dataclasses.asdict(after).items()
        if value != getattr(before, name)
    }
    overrides |= {
        "training.clip_norm": 1.0,
        "data.packed_length": 0,
        "data.subword_sampling": 0.0,  # it needs packed rows
    }
    if base.training.optimizer == "muon":  # which is for Transformers
        overrides["training.optimizer"] = "adam"
    return overrides
