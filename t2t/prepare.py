"""Prepares what training reads: `python -m t2t.prepare --config=configs/base.py --workdir=RUN`.

It downloads the data, trains the vocabulary into the run directory, and tokenises the corpora into
data.cache_directory; either may be in a bucket. It needs no accelerator. What is there already is
kept, so the same command continues an interrupted one. Several processes (--distributed) share the
tokenising. Training then starts in seconds; it prepares small corpora itself.

Without --workdir it only downloads the data, and prints the size of each split.
"""

import logging
from pathlib import Path

import jax
from absl import flags

from t2t.config.fields import Config, DataConfig
from t2t.config.flags import define_config, read_config, show_in_help
from t2t.data import corpus_sources
from t2t.data.directions import list_directions
from t2t.data.packing import make_plan
from t2t.data.preparation import make_vocabulary, tokenize, tokenize_together
from t2t.data.sampled_epochs import tokenize_epoch
from t2t.runtime import program
from t2t.runtime.distributed import is_first, join, process_0_first
from t2t.storage.paths import make_run_path
from t2t.training.checkpoint import list_measures
from t2t.training.run_directory import lock_run, open_run

_log = logging.getLogger(__name__)


def main(config: Config, workdir: Path | None) -> None:
    """Prepares the data, and a run's vocabulary and tokens; prints what there is."""
    corpus_sources.check_paths(config.data)
    process_0_first(lambda: corpus_sources.prepare(config.data))
    process_0_first(lambda: describe_splits(config.data))  # process 0 reads large files first
    if workdir is not None:
        with lock_run(workdir):
            open_run(workdir, config, list_measures(workdir))
            prepare_run(config, workdir)


def describe_splits(data: DataConfig) -> None:
    """Opens each split, and prints its size in process 0."""
    for each in list_directions(data):
        for split in corpus_sources.list_splits(each):
            corpus = corpus_sources.open_split(each, split)
            if is_first():
                print(f"{split}: {len(corpus):,} pairs ({corpus.name})", flush=True)


def prepare_run(config: Config, workdir: Path) -> None:
    """Makes the vocabulary and the tokens of a run, and prints their sizes in process 0."""
    data = config.data
    corpora, weights = zip(*corpus_sources.open_training(data), strict=True)
    vocabulary = make_vocabulary(config, workdir, corpora)
    tokenized = tokenize_together(corpora, vocabulary, data)
    for corpus in corpus_sources.open_validation(data).values():
        tokenize(corpus, vocabulary, data)
    if not is_first():
        return
    if data.subword_sampling:
        tokenized = tokenize_epoch(config, corpora, vocabulary, 0)
    lengths = [(corpus.src_lengths, corpus.tgt_lengths) for corpus in tokenized]
    plan = make_plan(lengths, data, config.seed, weights)
    sub_words = [sum(int(side.sum()) for side in sides) for sides in zip(*lengths, strict=True)]
    print(
        f"vocabulary: {vocabulary.tgt.vocab_size:,} sub-words in {workdir / 'vocab'}\n"
        f"tokens: {sub_words[0]:,} source and {sub_words[1]:,} target sub-words in "
        f"{data.cache_directory}\n"
        f"first epoch: {plan.steps_per_epoch:,} batches in {len(plan.shapes)} shapes; dropped: "
        f"{plan.describe_dropped()}\n"
        f"next: python -m t2t.train with the same --config, flags and --workdir={workdir}"
    )


def run() -> None:
    """Prepares as the flags say."""
    config = read_config()
    workdir = None if flags.FLAGS.workdir is None else make_run_path(flags.FLAGS.workdir)
    jax.config.update("jax_platforms", "cpu")  # leave the accelerators to others
    join(**program.read_hosts())
    main(config, workdir)


if __name__ == "__main__":
    define_config()
    flags.DEFINE_string("workdir", None, "The run directory whose vocabulary is trained.")
    show_in_help("workdir")
    program.define_hosts()
    program.run(run)
