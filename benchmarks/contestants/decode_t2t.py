"""Decodes with t2t and random parameters; prints one line of JSON."""

import argparse
import json
import types
from collections.abc import Sequence
from typing import cast

import jax
import numpy as np

from benchmarks.workload import (
    EOS_ID,
    SIZES,
    Ids,
    Outputs,
    Size,
    group_outputs,
    time_translation,
)
from t2t.config.fields import Config, DataConfig, DecodingConfig, ModelConfig
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.beam_search import LengthPenalty
from t2t.decoding.translation import SourcePiece
from t2t.decoding.translator import Translator
from t2t.model.parameters import Params
from t2t.ops.build_model import init_model

PENALTY = LengthPenalty("gnmt", 0.6)


def make_config(size: Size, beam_size: int = 4, dtype: str = "auto") -> Config:
    """Returns the config for a size."""
    return Config(
        model=ModelConfig(
            num_layers=size.num_layers,
            d_model=size.d_model,
            d_ff=size.d_ff,
            num_heads=size.num_heads,
            dtype=dtype,
        ),
        data=DataConfig(max_length=1024),  # the longest source
        decoding=DecodingConfig(beam_size=beam_size),
    )


def draw_params(size: Size) -> Params:
    """Draws random parameters under which EOS never comes before the length limit."""
    _, params = init_model(
        make_config(size).model, size.vocab_size, size.vocab_size, jax.random.key(0)
    )
    last = params["decoder"][size.num_layers - 1]["feed_forward_residual"]["norm"]
    table = params["tgt_embedding"]["table"]
    direction = table[EOS_ID] / np.linalg.norm(table[EOS_ID])
    last["bias"] = 8 * direction
    params["tgt_embedding"]["table"] = table.at[EOS_ID].set(-8 * direction)
    return params


class ForcedSource(list[int]):
    """A source with the length that its output must have."""

    def __init__(self, ids: Ids, output_length: int):
        """`ids` and `output_length` include EOS."""
        super().__init__(ids.tolist())
        self.output_length = output_length


class ForcedTranslator(Translator):
    """A translator whose outputs are token ids, of the length that each `ForcedSource` requires."""

    def _find_max_tokens(self, source: list[int]) -> int:
        assert isinstance(source, ForcedSource)
        return source.output_length


def make_vocabulary(size: Size) -> Vocabulary:
    """Returns a vocabulary without words, for a translator from ids to ids."""
    tokenizer = types.SimpleNamespace(
        vocab_size=size.vocab_size,
        decode=lambda sentences: [" ".join(map(str, ids)) for ids in sentences],
        decode_behind=lambda ids: " ".join(map(str, ids)),
    )
    vocabulary = types.SimpleNamespace(
        src=tokenizer,
        tgt=tokenizer,
        sizes=(size.vocab_size, size.vocab_size),
        splits_sentences=lambda decoding: False,
    )
    return cast(Vocabulary, vocabulary)


def main() -> None:
    """Compiles all shapes in a first pass, then measures a second pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    params = draw_params(size)
    config = make_config(size, dtype=arguments.dtype)
    translator = ForcedTranslator(config, make_vocabulary(size))

    def translate(batches: Sequence[Outputs]) -> None:
        sources = [ForcedSource(ids, length) for length, group in batches for ids in group]
        pieces = [SourcePiece(source) for source in sources]
        found = translator.search(params, pieces, 1, (PENALTY,))
        for source, [best] in zip(sources, found, strict=True):
            assert best.length == source.output_length

    batches = group_outputs(size, arguments.sentences)
    translate(batches)
    result = time_translation(batches, translate)
    result["compile_seconds"] = translator.compile_seconds
    result["version"] = f"jax {jax.__version__}"
    print(json.dumps(result))


if __name__ == "__main__":
    main()
