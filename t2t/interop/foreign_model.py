"""Reads a model that `transformers` saved, of any family: its config, vocabulary and parameters."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from t2t.config.fields import ModelConfig
from t2t.config.measures import MEASURES, import_function, list_scored
from t2t.data.batch import EOS_ID
from t2t.interop import marian_nllb_mbart, t5_family
from t2t.interop.hugging_face_folder import SourceError, Tensors, read_json
from t2t.interop.hugging_face_vocabulary import (
    ImportedVocabulary,
    read_byt5,
    read_m2m100,
    read_marian,
    read_mbart,
    read_t5,
)
from t2t.interop.parameter_map import Link, check_tensors, find_shapes, read_params
from t2t.interop.strict_config import ForeignConfig
from t2t.interop.tokenizer_settings import BYT5, SMALL100, TokenizerSettings
from t2t.model.parameters import Params
from t2t.ops.build_model import abstract_model

MODEL_TYPES = ("marian", "m2m_100", "mbart", "t5", "mt5", "umt5")
# The functions that read the vocabularies of the BART family; T5's have another.
_VOCABULARIES = {"marian": read_marian, "m2m_100": read_m2m100, "mbart": read_mbart}
# Other types, and why they are not imported.
_OTHERS = {
    "bart": "its vocabulary is a BPE of bytes, which no SentencePiece model expresses",
    "prophetnet xlm-prophetnet": "ProphetNet predicts several sub-words at once",
    "pegasus pegasus_x bigbird_pegasus": "Pegasus has a vocabulary of its own kind",
    "led longt5": "its attention is local, for long documents",
    "switch_transformers nllb-moe": "it is a mixture of experts",
    "fsmt": "fairseq's WMT19 models have a BPE after a tokenizer of words",
    "blenderbot blenderbot-small plbart mvp": "it is another BART",
    "encoder-decoder vision-encoder-decoder": "it is a pair of other models",
    "t5gemma t5gemma2": "its layers are those of Gemma",
    "seamless_m4t seamless_m4t_v2 whisper speech_to_text": "it is a model of speech",
    "gpt2 gpt_neox llama mistral gemma gemma2 gemma3 qwen2 qwen3 bloom xglm opt phi3": (
        "it is a decoder alone"
    ),
    "bert distilbert roberta xlm-roberta deberta-v2 electra": "it is an encoder alone",
}


class ForeignModel(NamedTuple):
    """A model of `transformers`, whose parameters have not been read."""

    config: ModelConfig
    vocabulary: ImportedVocabulary
    tensors: Tensors  # under their usual names
    family: ModuleType  # names its TABLE, COPIES of it, and DERIVED tensors, which may be there
    links: list[Link]
    given: ForeignConfig
    unknown: dict[str, Any]  # fields of config.json that are not known, see `ForeignConfig.finish`
    warnings: list[str]  # of the tokenizer's settings and the weights
    own_languages: tuple[str, str] = ("", "")  # of source and target, if the tokenizer names them
    tags_both: bool = False  # each side begins with the tag of its language: data.direction_tags

    @property
    def has_bias(self) -> bool:
        """True if the original adds a bias to its logits."""
        return any("final_logits_bias" in link.names for link in self.links)

    def read_params(self) -> Params:
        """Reads the parameters, each placed on the current mesh as the model declares.

        Raises:
            SourceError: tensors are missing, unknown or of another shape.
        """
        size = len(self.vocabulary.rows.row)
        _, described = abstract_model(self.config, size, size)
        expected = find_shapes(self.links, described)
        check_tensors(self.links, self.tensors.shapes, expected, self.family.DERIVED)
        self.tensors.check_copies(self.family.COPIES, self.family.TABLE)
        return read_params(self.links, self.tensors, described)


def read_model(
    folder: Path, values: Mapping[str, Any], tensors: Tensors, ignored: Collection[str] = ()
) -> ForeignModel:
    """Reads config and vocabulary of a folder.

    Args:
        folder: the folder of the vocabulary.
        values: the content of the model's config.json.
        tensors: of the model.
        ignored: fields of config.json that the user allows to be ignored.

    Raises:
        SourceError: the model is not supported, or its files do not fit together.
    """
    given = ForeignConfig(values, ignored)
    if scored := list_scored(given.get("architectures")):
        import_function(MEASURES[scored[0]].importer)(given)
    kind = given.get("model_type")
    if kind not in MODEL_TYPES:
        whys = (f": {why}" for names, why in _OTHERS.items() if str(kind) in names.split())
        reason = next(whys, "")
        raise SourceError(
            f"config.json: model_type={kind!r} is not supported{reason}; it can be "
            f"{', '.join(MODEL_TYPES)}"
        )
    own = read_json(folder, "config.json") if (folder / "config.json").exists() else values
    settings = TokenizerSettings(folder, own)
    if kind in _VOCABULARIES:
        return _read_bart(settings, given, tensors, kind)
    return _read_t5(settings, given, tensors)


def _read_bart(
    settings: TokenizerSettings, given: ForeignConfig, tensors: Tensors, kind: str
) -> ForeignModel:
    tensors = marian_nllb_mbart.complete(tensors)
    config, vocab_size = marian_nllb_mbart.READERS[kind](given)
    if kind == "marian":
        config = marian_nllb_mbart.read_positions(config, tensors)
    # As mBART was trained; `generate()` would begin with `<s>`.
    start = given.get("eos_token_id") if kind == "mbart" else None
    unknown = given.finish()
    vocabulary = _VOCABULARIES[kind](settings, vocab_size)
    config = _fit(config, given, vocabulary, start)
    return ForeignModel(
        config,
        vocabulary,
        tensors,
        marian_nllb_mbart,
        marian_nllb_mbart.list_links(config, vocabulary.rows),
        given,
        unknown,
        settings.finish(),
        (settings.read_language("source_lang"), settings.read_language("target_lang")),
        # The sources of SMaLL-100 begin with the code of the target, and its targets with none.
        tags_both=kind != "marian" and settings.find_class("") != SMALL100,
    )


def _read_t5(settings: TokenizerSettings, given: ForeignConfig, tensors: Tensors) -> ForeignModel:
    tensors = t5_family.complete(tensors, given)
    own_output = t5_family.has_own_output(tensors)
    config, vocab_size = t5_family.read_t5_config(given, own_output=own_output)
    scaled = t5_family.scales_output(given)
    unknown = given.finish()
    read = read_byt5 if settings.find_class("") == BYT5 else read_t5
    vocabulary = read(settings, vocab_size)
    warnings = settings.finish()
    if t5_family.lacks_output(tensors, given):
        warnings.append(
            "config.json: tie_word_embeddings=False, but the weights have no lm_head.weight: the "
            "table of the embeddings stands for it, as in transformers 5 (4 took random numbers)"
        )
    config = _fit(config, given, vocabulary, given.get("pad_token_id"))
    return ForeignModel(
        config,
        vocabulary,
        tensors,
        t5_family,
        t5_family.list_links(config, vocabulary.rows, own_output=own_output, scaled=scaled),
        given,
        unknown,
        warnings,
    )


def _fit(
    config: ModelConfig, given: ForeignConfig, vocabulary: ImportedVocabulary, start: Any
) -> ModelConfig:
    """Returns the config with what depends on the vocabulary, after checking what ends an output.

    The logits have a bias if an id is no output of the original.
    """
    rows = vocabulary.rows
    eos = int(rows.row[EOS_ID])
    given.require("eos_token_id", eos, [eos], None)
    return dataclasses.replace(
        config,
        decoder_start=given.find_start(rows, start),
        output_bias=config.output_bias or not rows.is_output.all(),
    )
