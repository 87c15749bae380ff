"""Roles of the config's fields, and the search for lists of fields by hand."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

import t2t
from t2t.config import variants
from t2t.config.field_types import Role
from t2t.config.fields import FIELD_TYPES, PluginOptions, fields_with
from t2t.config.variants import EXTENSIBLE, find_role, register

LIBRARY = Path(t2t.__file__).parent
NAMES = {name for name in FIELD_TYPES if "." in name}

# Names of fields in the library, outside of config/fields.py and of messages; a reason for each. A
# single field that takes registered values needs none: its name is the key of its variants.
ALLOWED = {
    # the fields that take registered values
    "config/variants.py": "model.kind model.attention model.feed_forward model.norm model.position "
    "data.objective data.source training.optimizer training.loss training.schedule",
    # rules between fields, which say the longer or the first of several
    "config/rules.py": "data.max_length data.packed_length decoding.max_source_length "
    "training.validate_every training.translate_every",
    "config/data_rules.py": "data.max_length data.packed_length data.train_weights "
    "data.temperature data.stages",
    # a vocabulary has sentinels for the longest text
    "config/fitted_config.py": "data.max_length",
    # each dataset in TFDS has its field, which an error names
    "data/parts.py": "data.tfds_name data.tfds_held_out_name",
    # facts of a saved run, whose config is flat
    "evaluation/systems.py": "tokenizer.kind tokenizer.lowercase",
    # what was measured to help
    "evaluation/validation_scores.py": "model.norm_position model.position training.optimizer",
    # what makes a family, and the width of a rung
    "sweeps/family_rows.py": "data.packed_length data.subword_sampling model.decoder_layers "
    "model.encoder_layers model.kind model.max_positions model.num_layers training.clip_norm",
    "scaling/rungs.py": "model.d_model",
    # one field is set
    "api/encoder_states.py": "model.dtype",
    "evaluation/evaluator.py": "decoding.alpha",
    "evaluation/load_models.py": "decoding.max_source_length",
    # which placeholders texts have, which texts hold others, and what is no folder beside TFDS
    "workshop/inputs.py": "data.directions data.directory data.mixture",
    # which dimension of the model is divided
    "runtime/mesh.py": "model.d_model model.d_ff model.num_heads model.num_kv_heads "
    "model.num_experts tokenizer.vocab_size",
    # with which a direction is one of several tasks
    "evaluation/passport.py": "data.directions",
    # with what training depends on the search
    "workshop/records.py": "training.translate_every",
    # what an open-ended schedule leaves free, and what --extend sets
    "training/resume.py": "training.steps training.schedule_start",
}


def find_names(tree: ast.AST) -> Iterator[str]:
    """The names of fields in literals, but for a single one that is a key of the registry."""
    for node in ast.walk(tree):
        texts: list[Any] = []
        match node:
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                texts = [part.value for part in parts if isinstance(part, ast.Constant)]
            case ast.Dict(keys=keys):
                texts = [key.value for key in keys if isinstance(key, ast.Constant)]
            case ast.Constant(value=str(text)):
                words = [word.removeprefix("config.") for word in text.replace(",", " ").split()]
                texts = words if {*words} <= NAMES else []  # else a message
        found = [text for text in texts if str(text).removeprefix("config.") in NAMES]
        if len(found) > 1 or {*found} - EXTENSIBLE.keys():
            yield from (name.removeprefix("config.") for name in found)


def test_no_list_of_fields_is_kept_by_hand() -> None:
    found = dict[str, set[str]]()
    for path in LIBRARY.rglob("*.py"):
        name = path.relative_to(LIBRARY).as_posix()
        if name != "config/fields.py":
            found[name] = {*find_names(ast.parse(path.read_text("utf-8")))}
    allowed = {name: {*names.split()} for name, names in ALLOWED.items()}
    assert {name: names for name, names in found.items() if names} == allowed


def test_each_field_has_a_role() -> None:
    assert [name for name, kind in FIELD_TYPES.items() if kind.role is None] == []
    of_text = Role.TEXT, Role.LANGUAGES, Role.FILES, Role.STORE, Role.HELD_OUT, Role.BATCHES
    of_data = {name for name in NAMES if name.startswith("data.")}
    assert of_data - {*fields_with(*of_text)} == {"data.encoder", "data.decoder"}


def test_option_of_a_plugin_may_have_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "_registered", {})

    @register("plugin", "own")
    @dataclasses.dataclass
    class _Own(PluginOptions):
        mix: float = 0.5
        report_every: Annotated[int, Role.LOGGING] = 10

    assert find_role("plugin.own.mix") is find_role("plugin.missing.mix") is Role.OPTIONS
    assert find_role("plugin.own.report_every") is find_role("training.log_every") is Role.LOGGING
