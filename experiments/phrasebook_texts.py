"""Measures how many generated sentences are well formed: `python -m experiments.phrasebook_texts`.

A language model of the phrasebook's German side continues the first two words of test sentences.
A text is well formed if all its clauses have skeletons that the grammar generates
(`tools/phrasebook/skeletons.py`). The skeletons are those of many sentences, but not all, so a
share is to be read beside that of the grammar's own test sentences, and beside that of test
sentences in which two neighbouring words have changed places, or one word is another sentence's.
"""

import argparse
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import t2t
from tools.phrasebook.generation import generate
from tools.phrasebook.sampler_sentences import SentenceSampler
from tools.phrasebook.skeletons import list_skeletons

SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam 4": {"beam_size": 4},
    **{
        f"sampling, temperature {temperature}": {
            "strategy": "sampling",
            "temperature": temperature,
        }
        for temperature in (0.5, 0.8, 1.0)
    },
}


def list_known(count: int) -> set[str]:
    """The skeletons of so many sentences of the grammar, with words that no split lacks."""
    sampler = SentenceSampler(random.Random("skeletons"), novel=True)
    sentences = (sampler.sentence().german for _ in range(count))
    return {skeleton for sentence in sentences for skeleton in list_skeletons(sentence)}


def measure(texts: list[str], known: set[str]) -> dict[str, Any]:
    """The share of texts that are well formed, with Wilson's 95% interval."""
    n, fine = len(texts), sum(known.issuperset(list_skeletons(text)) for text in texts)
    share, z = fine / n, 1.96
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    interval = [round(center - half, 4), round(center + half, 4)]
    return {"well_formed": round(share, 4), "interval": interval, "texts": n}


def exchange(words: list[str], draw: random.Random) -> str:
    """Exchanges two neighbouring words."""
    at = draw.randrange(len(words) - 1)
    words[at : at + 2] = reversed(words[at : at + 2])
    return " ".join(words)


def replace(words: list[str], draw: random.Random, others: list[str]) -> str:
    """Puts a word of another sentence into the place of one."""
    words[draw.randrange(len(words) - 1)] = draw.choice(draw.choice(others).split())
    return " ".join(words)


def main() -> None:
    """Prints and writes the shares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workdir", required=True, help="run of data.objective=lm")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--known", type=int, default=400_000, help="sentences with known skeletons")
    arguments = parser.parse_args()
    test, draw = [german for _, german in generate("test", 1000)], random.Random(0)
    starts = dict.fromkeys(" ".join(text.split()[:2]) for text in test)
    prompts = [*itertools.islice(starts, arguments.prompts)]
    run = t2t.load(arguments.workdir)
    texts = {name: run.generate(prompts, **search) for name, search in SEARCHES.items()}
    train = {german for _, german in generate("train", 40_000)}
    known = list_known(arguments.known)
    result: dict[str, Any] = {
        "command": f"python -m experiments.phrasebook_texts --prompts={len(prompts)}"
    }
    rows = {
        "sentences of the test split": test,
        "two neighbouring words exchanged": [exchange(text.split(), draw) for text in test],
        "a word of another sentence": [replace(text.split(), draw, test) for text in test],
        **texts,
    }
    for name, own in rows.items():
        row = measure(own, known) | {
            "different": round(len(set(own)) / len(own), 4),
            "in_training": round(sum(text in train for text in own) / len(own), 4),
        }
        print(f"{name}: {row}", flush=True)
        result[name] = row | ({"sample": own} if name in texts else {})
    arguments.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
