"""Decodes with the Marian model of Hugging Face and random parameters; prints one line of JSON.

Needs torch and transformers, not JAX.
"""

import argparse
import json
from collections.abc import Sequence

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from benchmarks.workload import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SIZES,
    Ids,
    Outputs,
    Size,
    group_outputs,
    time_translation,
)


def make_model(size: Size) -> transformers.MarianMTModel:
    """Creates a model of this size, ready to generate."""
    both = {}
    for stack in ("encoder", "decoder"):
        both[f"{stack}_layers"] = size.num_layers
        both[f"{stack}_ffn_dim"] = size.d_ff
        both[f"{stack}_attention_heads"] = size.num_heads
    config = transformers.MarianConfig(
        **both,
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        activation_function="relu",
        max_position_embeddings=512,
        scale_embedding=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=BOS_ID,
        forced_eos_token_id=None,
    )
    return transformers.MarianMTModel._from_config(config, attn_implementation="sdpa").eval()


def main() -> None:
    """Measures a pass over all batches, after a warm-up of one batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    size = SIZES[arguments.size]
    model = make_model(size)

    def generate(length: int, sources: list[Ids]) -> None:
        rows = [torch.as_tensor(source, dtype=torch.long) for source in sources]
        src = pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
        with torch.inference_mode():
            found = model.generate(
                input_ids=src,
                attention_mask=(src != PAD_ID).long(),
                num_beams=4,
                do_sample=False,
                min_new_tokens=length,
                max_new_tokens=length,
            )
        assert found.shape[1] == length + 1

    def translate(batches: Sequence[Outputs]) -> None:
        for length, sources in batches:
            generate(length, sources)

    batches = group_outputs(size, arguments.sentences)
    translate(batches[:1])
    result = time_translation(batches, translate)
    print(json.dumps(result | {"version": f"transformers {transformers.__version__}"}))


if __name__ == "__main__":
    main()
