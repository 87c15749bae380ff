"""Reads a model that `transformers` saved, of any family: its config, vocabulary and parameters."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from t2t.config.fields import ModelConfig
from t2t.interop import bart_family, t5_family
from t2t.interop.hugging_face_folder import SourceError, Tensors
from t2t.interop.hugging_face_vocabulary import (
    ImportedVocabulary,
    begins_with_target,
    read_m2m100,
    read_marian,
    read_nllb,
    read_t5,
)
from t2t.interop.parameter_map import Link, check_tensors, find_shapes, read_params
from t2t.model.interface import Params
from t2t.ops.build_model import describe_model

MODEL_TYPES = ("marian", "m2m_100", "t5", "mt5", "umt5")


class ForeignModel(NamedTuple):
    """A model of `transformers`, whose parameters have not been read."""

    config: ModelConfig
    vocabulary: ImportedVocabulary
    links: list[Link]
    derived: tuple[str, ...]  # tensors that may be there, and follow from others
    check_derived: Callable[[Tensors], None]
    tags_both: bool = False  # each side begins with the tag of its language: data.direction_tags

    def read_params(self, tensors: Tensors) -> Params:
        """Reads the parameters, each placed on the current mesh as the model declares.

        Raises:
            SourceError: tensors are missing, unknown or of another shape.
        """
        size = len(self.vocabulary.rows.row)
        _, described = describe_model(self.config, size, size)
        expected = find_shapes(self.links, described)
        check_tensors(self.links, tensors.shapes, expected, self.derived)
        self.check_derived(tensors)
        return read_params(self.links, tensors, described)


def read_model(folder: Path, values: Mapping[str, Any], tensors: Tensors) -> ForeignModel:
    """Reads config and vocabulary of a folder.

    Args:
        folder: the folder of the vocabulary.
        values: those of the model's config.json.
        tensors: of the model; only their names are read.

    Raises:
        SourceError: the model is not supported, or its files do not fit together.
    """
    match values.get("model_type"):
        case "marian" | "m2m_100" as kind:
            if kind == "marian":
                config, vocab_size = bart_family.read_marian_config(values)
                vocabulary = read_marian(folder, vocab_size)
            else:
                config, vocab_size = bart_family.read_m2m100_config(values)
                # NLLB has pieces and ids in one file, M2M-100 in two.
                has_one = (folder / "tokenizer.json").exists()
                is_m2m100 = (folder / "vocab.json").exists() and not has_one
                vocabulary = (read_m2m100 if is_m2m100 else read_nllb)(folder, vocab_size)
            return ForeignModel(
                config,
                vocabulary,
                bart_family.list_links(config, vocabulary.rows),
                bart_family.DERIVED,
                lambda tensors: bart_family.check_derived(tensors, config),
                tags_both=kind == "m2m_100" and not begins_with_target(folder),
            )
        case "t5" | "mt5" | "umt5":
            own_output = t5_family.has_own_output(tensors)
            config, vocab_size = t5_family.read_t5_config(values, own_output=own_output)
            vocabulary = read_t5(folder, vocab_size)
            scaled = t5_family.scales_output(values)
            links = t5_family.list_links(
                config, vocabulary.rows, own_output=own_output, scaled=scaled
            )
            return ForeignModel(
                config, vocabulary, links, t5_family.DERIVED, t5_family.check_derived
            )
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
