"""Continues random prompts with t2t and random parameters; prints one line of JSON."""

import argparse
import json
from collections.abc import Sequence

import jax

from benchmarks.contestants.decode_t2t import make_vocabulary
from benchmarks.workload import (
    BOS_ID,
    EOS_ID,
    GENERATED,
    SIZES,
    Outputs,
    draw_prompts,
    time_translation,
)
from t2t.config.fields import Config, DataConfig, DecodingConfig, ModelConfig
from t2t.decoding.beam_search import LengthPenalty
from t2t.decoding.continuation import Continuer
from t2t.decoding.translation import SourcePiece
from t2t.ops.build_model import init_model


def main() -> None:
    """Compiles in a first pass, then measures a second one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--beam", type=int, default=1)
    arguments = parser.parse_args()
    size = SIZES["small"]
    config = Config(
        model=ModelConfig(
            kind="decoder_only", prefix=False, num_layers=size.num_layers, d_model=size.d_model,
            d_ff=size.d_ff, num_heads=size.num_heads, position="learned", max_positions=1024,
            norm_position="pre", feed_forward="gelu", attention_bias=True, dtype="float32",
        ),
        data=DataConfig(objective="lm"),
        decoding=DecodingConfig(
            beam_size=arguments.beam, min_length=GENERATED - 1, max_extra_length=GENERATED - 1
        ),
    )  # fmt: skip
    _, params = init_model(config.model, size.vocab_size, size.vocab_size, jax.random.key(0))
    continuer = Continuer(config, make_vocabulary(size))

    def generate(batches: Sequence[Outputs]) -> None:
        pieces = [
            SourcePiece([EOS_ID, BOS_ID, *ids[:-1].tolist()], first=int(ids[-1]))
            for _, prompts in batches
            for ids in prompts
        ]
        found = continuer.search(params, pieces, 1, (LengthPenalty("gnmt", 0.6),))
        assert all(best.length == GENERATED for [best] in found)

    batches = [(GENERATED, draw_prompts(size, arguments.prompts))]
    generate(batches)
    result = time_translation(batches, generate)
    print(json.dumps(result | {"version": f"jax {jax.__version__}"}))


if __name__ == "__main__":
    main()
