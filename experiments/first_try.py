"""First tries on texts of many sizes, with three recipes: `python -m experiments.first_try RUNS`.

    fitted  configs/text.py, which fits itself to the text
    fixed   what configs/text.py was before: post-norm, Noam, width 256, 8,000 sub-words
    tuned   configs/quickstart.py on the phrasebook, configs/multi30k.py on Multi30k

Each text is the beginning of a corpus: of the phrasebook (English-German), of Multi30k
English-German and German-French. All recipes have the same number of steps on a text: what
configs/text.py chooses, but at most --steps. Test sets are scored with beam search and the last
checkpoint. RUNS/first_try.json has a row for each run; the same command does what is missing.

T2T_MULTI30K=FOLDER is the folder of Multi30k (train.de.gz and so on).
"""

import argparse
import gzip
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from configs.text import get_config
from t2t.config.fitted_config import check_config
from t2t.data.corpus import Pair
from t2t.data.phrasebook import read_pairs
from t2t.storage.atomic_files import write_file
from t2t.training.provenance import find_revision
from t2t.training.run_directory import read_curve

ROOT = Path(__file__).parents[1]
SIZES = {
    "phrasebook": (500, 2000, 10_000, 40_000),
    "en-de": (300, 1000, 5000, 29_000),
    "de-fr": (300, 1000, 5000, 29_000),
}
FIXED = [
    "--config=configs/base.py", "--config.model.num_layers=4", "--config.model.d_model=256",
    "--config.model.d_ff=1024", "--config.model.num_heads=4", "--config.model.dropout=0.3",
    "--config.data.max_length=128", "--config.data.batch_tokens=4096",
    "--config.tokenizer.vocab_size=8000",
]  # fmt: skip


class Try(NamedTuple):
    """A run: the first `pairs` of a corpus, with a recipe."""

    corpus: str
    pairs: int
    recipe: str
    seed: int = 0

    @property
    def name(self) -> str:
        """The name of its run directory and of its row."""
        return "-".join(map(str, [self.corpus, self.pairs, self.recipe, self.seed]))


def read_splits(corpus: str, multi30k: Path) -> dict[str, list[Pair]]:
    """Returns train, validation and test."""
    if corpus == "phrasebook":
        return {split: read_pairs(split) for split in ("train", "validation", "test")}

    def read(name: str) -> list[Pair]:
        files = [multi30k / f"{name}.{language}.gz" for language in corpus.split("-")]
        sides = [gzip.decompress(file.read_bytes()).decode().splitlines() for file in files]
        return [*zip(*sides, strict=True)]

    names = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    return {split: read(name) for split, name in names.items()}


def write_texts(folder: Path, multi30k: Path) -> None:
    """Writes the texts of all sizes, and the held-out ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for corpus, sizes in SIZES.items():
        splits = read_splits(corpus, multi30k)
        texts = {str(size): splits["train"][:size] for size in sizes}
        for name, pairs in (texts | {key: splits[key] for key in ("validation", "test")}).items():
            for side in (0, 1):
                text = "".join(f"{pair[side]}\n" for pair in pairs)
                write_file(folder / f"{corpus}.{name}.{side}", text)


def list_texts(folder: Path, each: Try) -> list[str]:
    """Returns the flags that name the texts of a run."""
    src, _, tgt = each.corpus.partition("-")
    flags = ["--config.data.source=text", f"--config.data.src_language={src if tgt else 'en'}"]
    flags += [f"--config.data.tgt_language={tgt or 'de'}", "--config.data.filters="]
    flags += ["--config.training.translate_every=0", "--config.checkpoints.best_metric=loss"]
    for split, name in (("train", each.pairs), ("validation", "validation"), ("test", "test")):
        for number, side in enumerate(("src", "tgt")):
            path = folder / f"{each.corpus}.{name}.{number}"
            flags.append(f"--config.data.{split}_{side}={path}")
    return flags


def choose_steps(folder: Path, each: Try, most: int) -> int:
    """Returns the number of steps of all recipes on a text."""
    config = get_config()
    config.data.train_src, config.data.train_tgt = (
        (str(folder / f"{each.corpus}.{each.pairs}.{side}"),) for side in (0, 1)
    )
    return min(check_config(config).training.steps, most)


def list_recipe(each: Try, steps: int) -> list[str]:
    """Returns the recipe of a run, as flags."""
    if each.recipe == "fitted":
        return [f"--config=configs/text.py:steps={steps}"]
    names = "training.validate_every", "checkpoints.every"
    every = [f"--config.{name}={steps // 10}" for name in names]
    warmup = [f"--config.training.steps={steps}", f"--config.training.warmup_steps={steps // 10}"]
    if each.recipe == "fixed":
        return [*FIXED, *warmup, *every]
    quickstart = each.corpus == "phrasebook"
    recipe = "configs/quickstart.py" if quickstart else f"configs/multi30k.py:{each.corpus}"
    cased = [] if quickstart else ["--config.tokenizer.lowercase=False"]
    return [f"--config={recipe}", *warmup, *every, *cased]


def run(folder: Path, each: Try, steps: int, dtype: str, core: int) -> dict[str, Any]:
    """Trains and scores one run on one core; returns its row."""
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    started = time.time()
    workdir = runs / each.name
    train = ["t2t.train", *list_recipe(each, steps), *list_texts(folder / "text", each)]
    train += [f"--config.seed={each.seed}", f"--config.model.dtype={dtype}"]
    output = workdir / "first_try.json"
    score = ["t2t.evaluate", "--split=test", "--checkpoint=last", f"--output={output}"]
    start = ["taskset", "-c", str(core), sys.executable, "-m"]
    with (runs / f"{each.name}.log").open("a") as log:
        for command in (train, score):
            subprocess.run(
                [*start, *command, f"--workdir={workdir}"],
                cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=True,
            )  # fmt: skip
    scores = json.loads(output.read_text("utf-8"))
    use = read_curve(workdir, "validation/source_use")
    return {
        "corpus": each.corpus, "pairs": each.pairs, "recipe": each.recipe, "seed": each.seed,
        "steps": steps, "seconds": round(time.time() - started),
        "source_use": use[-1][1],
        **{
            name: {key: scores["measures"][name][key] for key in ("value", "interval")}
            for name in ("bleu", "chrf")
        },
    }  # fmt: skip


def list_tries(seeds: Sequence[int]) -> Iterator[Try]:
    """Yields all runs, those of the fitted recipe first.

    The vocabularies of tuned recipes and of the fixed one need a text of some size.
    """
    for recipe in ("fitted", "tuned", "fixed"):
        for corpus, sizes in SIZES.items():
            for pairs in sizes:
                if recipe == "fitted" or pairs >= (500 if corpus == "phrasebook" else 5000):
                    yield from (Try(corpus, pairs, recipe, seed) for seed in seeds)


def main() -> None:
    """Runs what is missing, two runs at a time, and prints each row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="the folder of the runs")
    parser.add_argument("--steps", type=int, default=2000, help="at most so many: %(default)s")
    parser.add_argument("--dtype", default="auto", help="model.dtype: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", help="beginnings of names, such as en-de-300-fitted")
    flags = parser.parse_args()
    texts, output = flags.runs / "text", flags.runs / "first_try.json"
    write_texts(texts, Path(os.environ.get("T2T_MULTI30K", "~/.cache/t2t/multi30k")).expanduser())
    rows = json.loads(output.read_text("utf-8"))["runs"] if output.exists() else {}
    facts = {
        "command": shlex.join(["python", "-m", "experiments.first_try", *sys.argv[1:]]),
        **find_revision(),
    }
    tries = [
        each
        for each in list_tries(flags.seeds)
        if each.name not in rows and (not flags.only or each.name.startswith(tuple(flags.only)))
    ]
    cores, lock = [0, 1], threading.Lock()

    def make_row(each: Try) -> None:
        core = cores.pop()
        try:
            row = run(flags.runs, each, choose_steps(texts, each, flags.steps), flags.dtype, core)
        finally:
            cores.append(core)
        with lock:
            rows[each.name] = row
            write_file(output, json.dumps({**facts, "runs": rows}, indent=1) + "\n")
            print(row, flush=True)

    with ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(make_row, tries))


if __name__ == "__main__":
    main()
