"""Decoding by CTranslate2, with the parameters of `decode_t2t`: one JSON line."""

import argparse
import json
import tempfile
from pathlib import Path

import ctranslate2

from benchmarks.contestants.decode_t2t import draw_params, make_config
from benchmarks.workload import SIZES, Ids, group_outputs, translate_all
from t2t.decoding.ctranslate2_format import write_model


def main() -> None:
    """Measures a pass over all batches, after one batch as a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compute_type", default="float32")
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    names = ["<pad>", "<s>", "</s>", "<unk>", *map(str, range(4, size.vocab_size))]
    with tempfile.TemporaryDirectory() as directory:
        write_model(make_config(size).model, draw_params(size), (names, names), Path(directory))
        translator = ctranslate2.Translator(
            directory,
            compute_type=arguments.compute_type,
            inter_threads=1,
            intra_threads=arguments.threads,
        )

    def run(length: int, sources: list[Ids]) -> int:
        found = translator.translate_batch(
            [[names[number] for number in source] for source in sources],
            beam_size=4,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        assert all(len(one.hypotheses[0]) == length for one in found)
        return length * len(sources)

    batches = group_outputs(size, arguments.sentences)
    translate_all(batches[:1], run)
    result = translate_all(batches, run)
    print(json.dumps(result | {"version": f"ctranslate2 {ctranslate2.__version__}"}))


if __name__ == "__main__":
    main()
