"""Exports runs to `transformers`: the folder that its `from_pretrained` loads.

A run is written as Marian, M2M-100, mBART or T5, by its kind of positions, if such a model computes
the same. Its config is compared with the one that the import would read from the folder, so a field
that the family does not have is refused.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t2t.config.field_types import Role
from t2t.config.fields import Config, ConfigError, ModelConfig, fields_with
from t2t.config.rules import list_unused
from t2t.data.batch import BOS_ID
from t2t.data.directions import find_tag, list_tasks
from t2t.data.tokenizer import Vocabulary
from t2t.interop import marian_nllb_mbart, t5_family
from t2t.interop.foreign_search import write_search
from t2t.interop.hugging_face_folder import write_json, write_safetensors
from t2t.interop.hugging_face_tokenizer_files import assign_rows, find_family, write_tokenizer
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.interop.parameter_map import Link, check_barred, write_tensors
from t2t.interop.standard_form import drop_factors, fold_factors
from t2t.interop.strict_config import ForeignConfig
from t2t.model.parameters import Params
from t2t.ops.build_model import abstract_model

_FAMILIES = {
    "sinusoidal": "marian",
    "sinusoidal_halves": "marian",
    "sinusoidal_fairseq": "m2m_100",
    "learned": "mbart",
    "relative": "t5",
    "relative_by_layer": "t5",
}
# Fields whose values are compared with their defaults filled in.
DERIVED = {"num_kv_heads": "kv_heads", "d_k": "key_width", "d_v": "value_width"}
_DEPTHS = ("num_layers", "encoder_layers", "decoder_layers")  # each family has any
# Parameters that a run may lack: zeros are written.
_BIASES = ("attention_bias", "feed_forward_bias", "output_bias")
_NEAR = 1e-5  # a difference of the norms' epsilons that changes logits less than rounding may


class Export(NamedTuple):
    """The parts of a run that an export writes."""

    family: str  # marian, m2m_100, mbart or t5
    model: ModelConfig  # that the import would read
    rows: Rows
    links: list[Link]
    values: dict[str, Any]  # of config.json
    notes: list[str]  # what the user should know


def plan_export(config: Config, vocabulary: Vocabulary, rows: Rows | None) -> Export:
    """Chooses the family of a run.

    Args:
        config: of the run.
        vocabulary: of the run.
        rows: the original's ids, if the vocabulary was imported.

    Raises:
        ConfigError: no family has such a model, or such a vocabulary.
    """
    model = drop_factors(config.model)
    if model.position not in _FAMILIES:
        raise ConfigError(
            f"model.position={model.position!r} is not supported by the export to transformers; "
            f"it supports {', '.join(_FAMILIES)}"
        )
    family = _FAMILIES[model.position]
    if rows is not None and find_family(rows, vocabulary.src.table) != family:
        rows = None
    problems = _check_vocabulary(config, vocabulary, family, imported=rows is not None)
    rows = rows or assign_rows(vocabulary, family)
    if family == "t5":
        values = t5_family.write_config(model, rows)
        own_output = model.tie_embeddings == "input"
        read, _ = t5_family.read_t5_config(ForeignConfig(values), own_output=own_output)
        choices = t5_family.CHOICES
        links = t5_family.list_links(read, rows, own_output=own_output, scaled=False)
    else:
        values = marian_nllb_mbart.write_config(model, rows)
        if family != "mbart":
            longest = config.data.max_length + config.decoding.max_extra_length + 1
            values["max_position_embeddings"] = max(1024, longest)
        read, _ = marian_nllb_mbart.READERS[family](ForeignConfig(values))
        choices = marian_nllb_mbart.CHOICES
        links = marian_nllb_mbart.list_links(read, rows)
    start = ForeignConfig(values).find_start(rows)
    read = dataclasses.replace(read, decoder_start=start)
    of_model, notes = _check_model(model, read, choices, values["architectures"][0])
    if problems := [*of_model, *problems]:
        raise ConfigError("\n".join(problems))
    return Export(family, read, rows, links, values, notes)


def _check_vocabulary(
    config: Config, vocabulary: Vocabulary, family: str, *, imported: bool
) -> list[str]:
    """Returns the reasons why a vocabulary is none of the family."""
    problems = []
    data, advice = config.data, "is not supported by the export to transformers"
    kind = vocabulary.src.kind
    match family:
        case "marian" if data.directions and data.direction_tags != "target":
            problems.append(
                f"data.direction_tags={data.direction_tags!r} {advice}: Marian has tags of targets"
            )
        case "m2m_100" | "mbart" if not imported:
            problems.append(
                f"model.position={config.model.position!r} {advice} with a vocabulary that was not "
                "imported from NLLB, M2M-100 or mBART-50"
            )
        case "m2m_100" | "mbart" if data.direction_tags != "both":
            problems.append(
                f"data.direction_tags={data.direction_tags!r} {advice}: M2M-100 and mBART have "
                "them on both sides"
            )
        case "t5":
            if data.directions:
                problems.append(f"data.directions={data.directions} {advice}: T5 has no tags")
            if not vocabulary.shared:
                problems.append(f"tokenizer.shared=False {advice}: T5 has one vocabulary")
            elif kind not in ("unigram", "bytes"):
                problems.append(
                    f"tokenizer.kind={kind!r} {advice}: T5's is 'unigram', and ByT5's 'bytes'"
                )
            if vocabulary.src.has_bytes and kind != "bytes" and not imported:
                problems.append(
                    f"tokenizer.byte_fallback=True {advice}: T5's tokenizer spells nothing in "
                    "bytes; train with tokenizer.byte_fallback=False"
                )
    return problems


def _check_model(
    model: ModelConfig, read: ModelConfig, choices: Mapping[str, tuple[str, ...]], name: str
) -> tuple[list[str], list[str]]:
    """Compares a config with what the family has.

    Returns:
        The fields that keep the model from being one of the family, and notes on small differences.
    """
    problems, notes = [], []
    ignored = {
        *fields_with(Role.REGULARIZATION, Role.COMPUTATION),
        *list_unused(Config(model=model)),
    }
    for field in dataclasses.fields(model):
        if f"model.{field.name}" in ignored or field.name in _DEPTHS:
            continue
        attribute = DERIVED.get(field.name, field.name)
        default: Any = field.default
        found, wanted = (getattr(each, attribute, default) for each in (model, read))
        allowed = choices.get(field.name, (wanted,))
        if found in allowed or (field.name in _BIASES and wanted):
            continue
        if field.name == "norm_epsilon" and abs(found - wanted) <= _NEAR:
            notes.append(
                f"model.norm_epsilon={found:g} becomes {wanted:g}, the only one of {name}: logits "
                "change by about as much as by rounding in float32"
            )
            continue
        problems.append(
            f"model.{field.name}={found!r} is not supported by {name} of transformers; "
            f"it supports {', '.join(map(str, allowed))}"
        )
    return problems, notes


def write_model(
    export: Export,
    config: Config,
    params: Params,
    vocabulary: Vocabulary,
    folder: Path,
    search: Mapping[str, Any] | None = None,
) -> list[str]:
    """Writes the files.

    Args:
        export: of the config and the vocabulary.
        config: of the run.
        params: of the run.
        vocabulary: of the run.
        folder: an existing folder.
        search: fields of generation from which the run was imported.

    Returns:
        What the user should know.
    """
    params = fold_factors(config.model, params)
    if "output_bias" in params and not export.model.output_bias:
        check_barred(np.asarray(params["output_bias"]), export.rows)
    size = len(export.rows.row)
    _, described = abstract_model(export.model, size, size)
    tensors = write_tensors(export.links, _add_zeros(params, described))
    if config.model.position == "sinusoidal":
        tensors = marian_nllb_mbart.order_as_halves(tensors)
    write_safetensors(folder / "model.safetensors", tensors)
    settings = {"dtype": "float32", "is_encoder_decoder": True}
    write_json(folder / "config.json", {**export.values, **settings})
    names = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    generation, notes = write_search(
        config,
        export.rows,
        {name: export.values[name] for name in names},
        forced=_find_forced(config, vocabulary, export.rows),
        original=search,
        ends_forced=export.family in ("marian", "mbart"),
    )
    write_json(folder / "generation_config.json", generation)
    write_tokenizer(
        vocabulary, export.rows, export.family, _describe_tokenizer(config, export), folder
    )
    if export.family == "t5" and vocabulary.src.has_bytes and vocabulary.src.kind != "bytes":
        notes.append(
            "T5Tokenizer of transformers spells nothing in bytes: tokenizer_config.json names "
            "PreTrainedTokenizerFast, which reads tokenizer.json with them"
        )
    if export.family == "marian" and np.any(np.asarray(params["tgt_embedding"]["table"])[BOS_ID]):
        notes.append(
            "the embedding with which the decoder begins is not zero, for which CTranslate2's "
            "converter takes it; for that engine use --format=ctranslate2"
        )
    return [*export.notes, *notes]


def _find_forced(config: Config, vocabulary: Vocabulary, rows: Rows) -> list[int]:
    """Returns the ids of the tags with which the targets of each direction begin, if they do."""
    if not config.data.directions or config.data.direction_tags != "both":
        return []
    tagged = (vocabulary.with_tag(find_tag(each)).tgt for each in list_tasks(config.data))
    return [int(rows.row[tgt.tag_ids[0]]) for tgt in tagged]


def _add_zeros(params: Params, described: Params) -> Params:
    """Adds the biases that the run does not have."""
    return {
        name: _add_zeros(params.get(name, {}), part)
        if isinstance(part, dict)
        else params.get(name, np.zeros(part.shape, np.float32))
        for name, part in described.items()
    }


def _describe_tokenizer(config: Config, export: Export) -> dict[str, Any]:
    """Settings of the tokenizer: the languages, those of the first direction if there are any."""
    data = config.data
    src, tgt = data.src_language, data.tgt_language
    if data.directions:
        src, _, tgt = data.directions[0].partition("-")
    names = (
        ("source_lang", "target_lang") if export.family == "marian" else ("src_lang", "tgt_lang")
    )
    languages = zip(names, (src, tgt), strict=True) if export.family != "t5" else ()
    return {"model_max_length": data.max_length} | {name: code for name, code in languages if code}
