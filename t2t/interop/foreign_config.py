"""Reads `config.json` of `transformers` field by field, and refuses what is not understood."""

from collections.abc import Mapping
from typing import Any, TypeVar

from t2t.interop.hugging_face_folder import SourceError

Value = TypeVar("Value")

# Fields that do not change what a model computes: records, options of training and generation, and
# labels of classifiers.
_WITHOUT_EFFECT = """
    model_type _name_or_path transformers_version dtype torch_dtype use_cache id2label label2id
    num_labels _num_labels unk_token_id problem_type return_dict output_hidden_states
    output_attentions torchscript
    use_bfloat16 pruned_heads chunk_size_feed_forward cross_attention_hidden_size finetuning_task
    prefix task_specific_params tokenizer_class gradient_checkpointing is_encoder_decoder
    is_decoder add_cross_attention max_length min_length do_sample early_stopping num_beams
    num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty
    length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens sep_token_id tf_legacy_loss
""".split()


def name_depths(encoder: int, decoder: int) -> dict[str, Any]:
    """Returns the fields of `ModelConfig` for these numbers of layers."""
    if encoder == decoder:
        return {"num_layers": encoder}
    return {"encoder_layers": encoder, "decoder_layers": decoder}


class ForeignConfig:
    """The fields of a `config.json`; `finish` refuses those that nobody has read."""

    def __init__(self, values: Mapping[str, Any]):
        """Takes the values of the file."""
        self._values = values
        self._read = {*_WITHOUT_EFFECT}

    def take(self, name: str, kind: type[Value], default: Value | None = None) -> Value:
        """Returns a number.

        Raises:
            SourceError: it is missing and has no default, or is none.
        """
        self._read.add(name)
        value: Any = self._values.get(name, default)
        if kind is float and type(value) is int:
            value = float(value)
        is_number = type(value) is kind
        if not is_number or value < 0:
            raise SourceError(
                f"config.json: {name}={value!r} is not a non-negative {kind.__name__}; "
                "use the config that was saved with the model"
            )
        return value

    def translate(self, name: str, known: Mapping[str, str]) -> str:
        """Returns this project's name of a value.

        Raises:
            SourceError: the value has none.
        """
        self._read.add(name)
        value: Any = self._values.get(name)
        if value not in known:
            raise SourceError(
                f"config.json: {name}={value!r} is not supported; it can be {', '.join(known)}"
            )
        return known[value]

    def require(self, name: str, *allowed: Any) -> None:
        """Raises `SourceError` unless a field has one of these values; None: or is missing."""
        self._read.add(name)
        value = self._values.get(name)
        if not any(value == each and type(value) is type(each) for each in allowed):
            values = " or ".join(repr(each) for each in allowed if each is not None)
            raise SourceError(f"config.json: {name}={value!r} is not supported; it can be {values}")

    def allow(self, name: str, value: Any) -> None:
        """As `require`, if the field is there."""
        if name in self._values:
            self.require(name, value)

    def ignore(self, *names: str) -> None:
        """Marks fields as read that do not matter for this model."""
        self._read.update(names)

    def finish(self) -> None:
        """Raises `SourceError` if there are fields that were not read."""
        if unknown := sorted(self._values.keys() - self._read):
            name = unknown[0]
            raise SourceError(
                f"config.json: the field {name}={self._values[name]!r} is not understood, so the "
                "model may compute something else; if it has no effect, remove it from a copy"
            )
