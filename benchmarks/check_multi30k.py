"""A short end-to-end check on real text: `python -m benchmarks.check_multi30k FOLDER`.

Trains a small model for a few steps, with an interruption, checks the batches of an epoch of
`configs/multi30k.py:en-de`, and evaluates the model on the first test sentences. FOLDER contains
Multi30k. It checks that the parts work together, not the quality of the model, which needs an hour
of training (see README.md).
"""

import gzip
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from t2t.config.files import load_config
from t2t.data.corpus_sources import open_training
from t2t.data.packing import make_plan
from t2t.data.token_cache import tokenize_corpus
from t2t.data.tokenizer import Vocabulary
from t2t.runtime.command_line import INTERRUPTED

STEPS = 40
NUM_SENTENCES = 50
MAX_PADDING = 0.1  # share of the target positions of an epoch


def main(folder: Path) -> None:
    """Runs all checks; raises `SystemExit` with the first failure."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        interrupt_and_resume(folder, run)
        check_plan(run)
        check_scores(folder, run)


def interrupt_and_resume(folder: Path, run: Path) -> None:
    """Stops training after its first report, and finishes it by the same command."""
    command = [
        *(sys.executable, "-m", "t2t.train", f"--workdir={run}"),
        "--config=configs/multi30k.py:en-de",
        f"--config.data.directory={folder}",
        f"--config.data.cache_directory={run.parent / 'cache'}",
        "--config.model.num_layers=1",
        f"--config.training.steps={STEPS}",
        "--config.training.warmup_steps=20",
        "--config.training.log_every=10",
        f"--config.training.validate_every={STEPS}",
        f"--config.checkpoints.every={STEPS}",
    ]
    first = subprocess.Popen(command)
    while first.poll() is None and not (run / "metrics.jsonl").exists():
        time.sleep(0.5)
    first.send_signal(signal.SIGTERM)
    expect(first.wait() == INTERRUPTED, f"the interrupted training ended with {first.returncode}")
    subprocess.run(command, check=True)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}
    expect(max(losses) == STEPS, f"training ended at step {max(losses)}, not {STEPS}")
    expect(losses[STEPS] < losses[min(losses)], f"the loss does not fall: {losses}")


def check_plan(run: Path) -> None:
    """Checks that an epoch uses every pair once, except dropped ones, with little padding."""
    config = load_config(run / "config.json")
    [corpus] = open_training(config.data)
    vocabulary = Vocabulary.load(run / "vocab")
    tokens = tokenize_corpus(corpus, vocabulary, Path(config.data.cache_directory))
    plan = make_plan([tokens.lengths], config.data, config.seed)
    used = np.concatenate([plan.batch(step).indices for step in range(plan.steps_per_epoch)])
    dropped = np.concatenate(list(plan.dropped.values()))
    counts = np.bincount(np.concatenate([used, dropped]), minlength=len(corpus))
    expect(bool((counts == 1).all()), "an epoch does not use every pair exactly once")
    _, padding = plan.padding_shares()
    expect(padding <= MAX_PADDING, f"{padding:.1%} of the target positions are padding")
    print(f"{len(used)} pairs, {len(dropped)} dropped, {padding:.1%} padding")


def check_scores(folder: Path, run: Path) -> None:
    """Checks that every sentence of the test set is translated and scored."""
    for language in ("en", "de"):
        with gzip.open(folder / f"test_2016_flickr.{language}.gz", "rt", encoding="utf-8") as text:
            lines = [next(text) for _ in range(NUM_SENTENCES)]
        (run.parent / f"first.{language}").write_text("".join(lines), "utf-8")
    output = run.parent / "scores.json"
    files = [f"--src={run.parent / 'first.en'}", f"--ref={run.parent / 'first.de'}"]
    command = [sys.executable, "-m", "t2t.evaluate", f"--workdir={run}", *files]
    subprocess.run([*command, f"--output={output}"], check=True)
    scores = json.loads(output.read_text("utf-8"))
    expect(
        scores["num_sentences"] == NUM_SENTENCES,
        f"{scores['num_sentences']} sentences were scored, not {NUM_SENTENCES}",
    )
    expect(0 <= scores["bleu"] <= 100, f"a BLEU of {scores['bleu']} is impossible")


def expect(holds: bool, otherwise: str) -> None:
    """Ends the program with `otherwise` unless the condition holds."""
    if not holds:
        sys.exit(f"check_multi30k: {otherwise}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
