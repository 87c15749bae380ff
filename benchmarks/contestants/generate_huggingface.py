"""Continues random prompts with the GPT-2 of Hugging Face and random parameters; prints JSON.

Needs torch and transformers, not JAX.
"""

import argparse
import json
from collections.abc import Sequence

import numpy as np
import torch
import transformers

from benchmarks.workload import (
    BOS_ID,
    EOS_ID,
    GENERATED,
    PAD_ID,
    SIZES,
    Outputs,
    draw_prompts,
    time_translation,
)


def main() -> None:
    """Measures a pass after a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    size = SIZES["small"]
    config = transformers.GPT2Config(
        vocab_size=size.vocab_size,
        n_positions=1024,
        n_embd=size.d_model,
        n_inner=size.d_ff,
        n_layer=size.num_layers,
        n_head=size.num_heads,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").eval()

    def generate(batches: Sequence[Outputs]) -> None:
        for length, prompts in batches:
            rows = torch.as_tensor(np.stack(prompts), dtype=torch.long)
            with torch.inference_mode():
                found = model.generate(
                    input_ids=rows,
                    attention_mask=torch.ones_like(rows),
                    num_beams=arguments.beam,
                    do_sample=False,
                    min_new_tokens=length,
                    max_new_tokens=length,
                )
            assert found.shape[1] == rows.shape[1] + length

    batches = [(GENERATED, draw_prompts(size, arguments.prompts))]
    generate(batches)
    result = time_translation(batches, generate)
    print(json.dumps(result | {"version": f"transformers {transformers.__version__}"}))


if __name__ == "__main__":
    main()
