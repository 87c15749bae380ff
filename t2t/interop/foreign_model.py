"""Reads a model that `transformers` saved, of any family: its config, vocabulary and parameters."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from t2t.config.fields import ModelConfig
from t2t.interop import bart_family, t5_family
from t2t.interop.foreign_config import ForeignConfig
from t2t.interop.hugging_face_folder import SourceError, Tensors
from t2t.interop.hugging_face_vocabulary import (
    ImportedVocabulary,
    begins_with_target,
    read_m2m100,
    read_marian,
    read_mbart,
    read_nllb,
    read_t5,
)
from t2t.interop.parameter_map import Link, check_tensors, find_shapes, read_params
from t2t.model.interface import Params
from t2t.ops.build_model import describe_model

MODEL_TYPES = ("marian", "m2m_100", "mbart", "t5", "mt5", "umt5")
_EOS_OF_FAIRSEQ = 2
# Files of which a tokenizer has one.
_TOKENIZERS = ("tokenizer.json", "vocab.json", "*.spm", "*.model")


class ForeignModel(NamedTuple):
    """A model of `transformers`, whose parameters have not been read."""

    config: ModelConfig
    vocabulary: ImportedVocabulary
    links: list[Link]
    complete: Callable[[Tensors], Tensors]  # gives tensors their usual names
    derived: tuple[str, ...]  # tensors that may be there, and follow from others
    check_derived: Callable[[Tensors], None]
    given: ForeignConfig
    unknown: dict[str, Any]  # fields of config.json that are not known, see `ForeignConfig.finish`
    tags_both: bool = False  # each side begins with the tag of its language: data.direction_tags

    @property
    def has_bias(self) -> bool:
        """True if the original adds a bias to its logits."""
        return any("final_logits_bias" in link.names for link in self.links)

    def read_params(self, tensors: Tensors) -> Params:
        """Reads the parameters, each placed on the current mesh as the model declares.

        Raises:
            SourceError: tensors are missing, unknown or of another shape.
        """
        size, tensors = len(self.vocabulary.rows.row), self.complete(tensors)
        _, described = describe_model(self.config, size, size)
        expected = find_shapes(self.links, described)
        check_tensors(self.links, tensors.shapes, expected, self.derived)
        self.check_derived(tensors)
        return read_params(self.links, tensors, described)


def read_model(
    folder: Path, values: Mapping[str, Any], tensors: Tensors, ignored: Collection[str] = ()
) -> ForeignModel:
    """Reads config and vocabulary of a folder.

    Args:
        folder: the folder of the vocabulary.
        values: those of the model's config.json.
        tensors: of the model.
        ignored: fields of config.json that the user allows to be ignored.

    Raises:
        SourceError: the model is not supported, or its files do not fit together.
    """
    given = ForeignConfig(values, ignored)
    match given.get("model_type"):
        case "marian" | "m2m_100" | "mbart" as kind:
            return _read_bart(folder, given, tensors, kind)
        case "t5" | "mt5" | "umt5":
            return _read_t5(folder, given, tensors)
        case "bart":
            raise SourceError(
                "config.json: model_type='bart' is not supported: its vocabulary is a BPE of "
                f"bytes, which no SentencePiece model expresses; it can be {', '.join(MODEL_TYPES)}"
            )
        case other:
            raise SourceError(
                f"config.json: model_type={other!r} is not supported; "
                f"it can be {', '.join(MODEL_TYPES)}"
            )


def _read_bart(folder: Path, given: ForeignConfig, tensors: Tensors, kind: str) -> ForeignModel:
    match kind:
        case "marian":
            config, vocab_size = bart_family.read_marian_config(given)
            config = bart_family.read_positions(config, bart_family.complete(tensors))
            read, start = read_marian, given.get("pad_token_id")
        case "m2m_100":
            config, vocab_size = bart_family.read_m2m100_config(given)
            # NLLB has pieces and ids in one file, M2M-100 in two.
            has_one = (folder / "tokenizer.json").exists()
            is_m2m100 = (folder / "vocab.json").exists() and not has_one
            read, start = read_m2m100 if is_m2m100 else read_nllb, _EOS_OF_FAIRSEQ
        case _:
            config, vocab_size = bart_family.read_mbart_config(given)
            read, start = read_mbart, given.get("eos_token_id")
    unknown = given.finish()
    _check_tokenizer(folder)
    vocabulary = read(folder, vocab_size)
    config = _fit(config, given, vocabulary, start)
    return ForeignModel(
        config,
        vocabulary,
        bart_family.list_links(config, vocabulary.rows),
        bart_family.complete,
        bart_family.DERIVED,
        bart_family.check_derived,
        given,
        unknown,
        tags_both=kind != "marian" and not begins_with_target(folder),
    )


def _read_t5(folder: Path, given: ForeignConfig, tensors: Tensors) -> ForeignModel:
    own_output = t5_family.has_own_output(t5_family.complete(tensors, given))
    config, vocab_size = t5_family.read_t5_config(given, own_output=own_output)
    scaled = t5_family.scales_output(given)
    unknown = given.finish()
    _check_tokenizer(folder)
    vocabulary = read_t5(folder, vocab_size)
    config = _fit(config, given, vocabulary, given.get("pad_token_id") or 0)
    return ForeignModel(
        config,
        vocabulary,
        t5_family.list_links(config, vocabulary.rows, own_output=own_output, scaled=scaled),
        lambda tensors: t5_family.complete(tensors, given),
        t5_family.DERIVED,
        t5_family.check_derived,
        given,
        unknown,
    )


def _check_tokenizer(folder: Path) -> None:
    """Raises `SourceError` if a folder has no tokenizer at all."""
    if not any(path for pattern in _TOKENIZERS for path in folder.glob(pattern)):
        raise SourceError(
            f"{folder} has no tokenizer: no file {', '.join(_TOKENIZERS)}; save it beside the "
            "model with tokenizer.save_pretrained, or name the folder of its vocabulary by "
            "--tokenizer (of MetricX: hf:google/mt5-large)"
        )


def _fit(
    config: ModelConfig, given: ForeignConfig, vocabulary: ImportedVocabulary, start: Any
) -> ModelConfig:
    """Returns the config with what depends on the vocabulary.

    The logits have a bias if an id is no output of the original.
    """
    rows = vocabulary.rows
    return dataclasses.replace(
        config,
        decoder_start=given.find_start(rows, start),
        output_bias=config.output_bias or not rows.is_output.all(),
    )
