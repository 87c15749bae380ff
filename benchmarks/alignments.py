"""Measures alignment error on the phrasebook: `python -m benchmarks.alignments --workdir=RUN`.

The true links are those of nouns and adjectives (`t2t.data.phrasebook.read_links`). Found links
count if their target word has a true link. References are aligned, not translations.
"""

import argparse
from pathlib import Path

import jax

from benchmarks.contest import write
from t2t.config.files import load_config
from t2t.data.phrasebook import read_links, read_pairs
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.word_alignments import Links, WordAligner
from t2t.training.checkpoint import restore_params
from t2t.training.provenance import find_versions


def keep_known(found: list[Links], sure: list[Links]) -> list[Links]:
    """Keeps the links whose target word has a true link."""
    known = [{target for _, target in links} for links in sure]
    return [
        {link for link in links if link[1] in targets}
        for links, targets in zip(found, known, strict=True)
    ]


def alignment_error_rate(found: list[Links], sure: list[Links]) -> float:
    """1 - 2 |A and S| / (|A| + |S|) over all pairs (Och and Ney 2003, with sure links alone)."""
    hits = sum(len(a & s) for a, s in zip(found, sure, strict=True))
    return 1 - 2 * hits / sum(len(links) for links in [*found, *sure])


def main() -> None:
    """Measures each layer on validation and test, and writes the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/decoding/alignments.json")
    )
    arguments = parser.parse_args()
    config = load_config(arguments.workdir / "config.json")
    vocabulary = Vocabulary.load(arguments.workdir / "vocab")
    restored, label = restore_params(arguments.workdir, "best")
    params = jax.device_put(restored)  # once, not for each batch
    rates: dict[str, dict[int, float]] = {}
    counts = {}
    for split in ("validation", "test"):
        pairs, sure = read_pairs(split), read_links(split)
        counts[split] = sum(map(len, sure))
        rates[split] = {
            layer: alignment_error_rate(
                keep_known(WordAligner(config, vocabulary, layer).align(params, pairs), sure), sure
            )
            for layer in range(1, config.model.depth[1] + 1)
        }
    result = {
        "what": "alignment error rate of references by decoder layer, mean of heads",
        "checkpoint": label,
        "true_links": counts,
        "rates": rates,
        "versions": find_versions(("jax",)),
    }
    write(arguments.output, result)


if __name__ == "__main__":
    main()
