"""Reads `config.json` of `transformers` field by field, and refuses what may change the model.

A field is known (a family reads it), without effect, or unknown. An unknown one is refused if its
name says that it is part of the computation and its value is not off; any other is listed.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from t2t.data.batch import BOS_ID, EOS_ID, UNK_ID
from t2t.interop.foreign_search import FIELDS
from t2t.interop.hugging_face_folder import SourceError, explain_quantized
from t2t.interop.hugging_face_vocabulary import Rows
from t2t.interop.json_fields import OFF, ForeignFields

# Fields that do not change what a model computes: records, options of training and saving, and
# labels of classifiers. Those of generation are in `foreign_search.py`.
_WITHOUT_EFFECT = """
    model_type _name_or_path name_or_path transformers_version dtype torch_dtype use_cache id2label
    label2id num_labels _num_labels unk_token_id sep_token_id mask_token_id pad_token_id
    bos_token_id eos_token_id eos_token_ids decoder_start_token_id problem_type return_dict
    output_hidden_states output_attentions output_past torchscript use_bfloat16
    chunk_size_feed_forward finetuning_task prefix task_specific_params tokenizer_class
    gradient_checkpointing tf_legacy_loss attn_implementation _attn_implementation
    _attn_implementation_internal _attn_implementation_autoset _commit_hash transformers.js_config
    onnx save_step xla_device init_std initializer_factor initializer_range classif_dropout
    classifier_dropout encoder_layerdrop decoder_layerdrop
""".split()
# Fields that any config may have, with the only value that is supported.
_OF_ALL: Mapping[str, Any] = {
    "is_encoder_decoder": True,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": {},
}
# Parts of the names of fields that change what a model computes, and the one that names code.
_OF_COMPUTATION = re.compile(
    "adapter|attention|attn|expert|lora|moe|norm|quant|rope|rotary|sparse|^auto_map$|"
    "(?:^|_)(?:act|alibi|bias|block|cross|decoder|dim|embed|encoder|eps|ffn|gate|glu|head|hidden|"
    "kernel|layer|logit|mlp|position|relative|residual|scal|share|sliding|soft|tie|vocab|window)"
)
LARGEST = 10_000_000  # a vocabulary or depth; lists of more would fill the memory
# The ids of `model.decoder_start`.
START_IDS = {"bos": BOS_ID, "eos": EOS_ID, "unk": UNK_ID}


def name_depths(encoder: int, decoder: int) -> dict[str, Any]:
    """Returns the fields of `ModelConfig` for these numbers of layers."""
    if encoder == decoder:
        return {"num_layers": encoder}
    return {"encoder_layers": encoder, "decoder_layers": decoder}


class ForeignConfig(ForeignFields):
    """The fields of a `config.json`; `finish` sorts those that nobody has read."""

    def __init__(self, values: Mapping[str, Any], ignored: Collection[str] = ()):
        """Takes the values of the file, without those that the user allows to be ignored.

        Raises:
            SourceError: one of `ignored` is not in the file.
        """
        if missing := [name for name in ignored if name not in values]:
            raise SourceError(
                f"--ignore_fields={missing[0]}: config.json has no such field; leave it out"
            )
        taken = {name: value for name, value in values.items() if name not in ignored}
        super().__init__("config.json", taken, {*_WITHOUT_EFFECT, *FIELDS})
        for name, value in _OF_ALL.items():
            self.allow(name, value, None)

    def find_start(self, rows: Rows, default: Any = None) -> str:
        """Returns `model.decoder_start`; `default` is the original's id if the file has none.

        Raises:
            SourceError: the decoder begins with none of its values.
        """
        start = self.get("decoder_start_token_id")
        start = default if start is None else start
        for name, id_ in START_IDS.items():
            if type(start) is int and rows.row[id_] == start:
                return name
        ids = ", ".join(str(rows.row[id_]) for id_ in START_IDS.values() if rows.row[id_] >= 0)
        raise self.refuse("decoder_start_token_id", f"is not supported; it can be {ids}")

    def list_without_effect(self) -> list[str]:
        """Returns the fields of the file that are known not to change what the model computes."""
        return sorted(self._given & {*_WITHOUT_EFFECT})

    def finish(self) -> dict[str, Any]:
        """Returns the fields that nobody has read, and that do not seem to change the model.

        Raises:
            SourceError: another field that nobody has read is part of the computation.
        """
        unread = self.list_unread()
        for name, value in unread.items():
            if value in OFF:
                continue
            if name == "quantization_config":
                raise explain_quantized(f"config.json: {name}={value!r}")
            if _OF_COMPUTATION.search(name):
                raise SourceError(
                    f"config.json: the field {name}={value!r} is not understood, so the model may "
                    "compute something else; if you know that it has no effect, use "
                    f"--ignore_fields={name}"
                )
        return unread
