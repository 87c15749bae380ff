"""Decodes with CTranslate2 and the parameters of `decode_t2t`; prints one line of JSON."""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ctranslate2

from benchmarks.contestants.decode_t2t import draw_params, make_config
from benchmarks.workload import SIZES, Outputs, group_outputs, time_translation
from t2t.interop.ctranslate2_export import write_model


def main() -> None:
    """Measures a pass over all batches, after a warm-up of one batch per worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="threads per worker")
    parser.add_argument("--compute_type", default="float32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    names = ["<pad>", "<s>", "</s>", "<unk>", *map(str, range(4, size.vocab_size))]
    with tempfile.TemporaryDirectory() as directory:
        write_model(make_config(size).model, draw_params(size), (names, names), Path(directory))
        translator = ctranslate2.Translator(
            directory,
            device=arguments.device,
            compute_type=arguments.compute_type,
            inter_threads=arguments.workers,
            intra_threads=arguments.threads,
            max_queued_batches=-1,
        )

    def translate(batches: Sequence[Outputs]) -> None:
        futures = [
            translator.translate_batch(
                [[names[number] for number in source[:-1]] for source in sources],  # without EOS
                beam_size=4,
                min_decoding_length=length,
                max_decoding_length=length,
                asynchronous=True,
            )
            for length, sources in batches
        ]
        for (length, _), own_futures in zip(batches, futures, strict=True):
            assert all(len(one.result().hypotheses[0]) == length for one in own_futures)

    batches = group_outputs(size, arguments.sentences)
    translate(batches[: arguments.workers])
    result = time_translation(batches, translate)
    print(json.dumps(result | {"version": f"ctranslate2 {ctranslate2.__version__}"}))


if __name__ == "__main__":
    main()
