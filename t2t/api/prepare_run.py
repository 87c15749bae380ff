"""`prepare`: downloads data, and makes the vocabulary and the tokens of a run."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from t2t.config.fields import Config
from t2t.data import corpus_sources
from t2t.data.directions import find_tasks
from t2t.data.objectives import make_objectives, plan_lengths
from t2t.data.packing import make_plan
from t2t.data.parts import TaskParts
from t2t.data.preparation import fill_tokenizer, make_vocabulary, tokenize, tokenize_together
from t2t.data.sampled_epochs import tokenize_epoch
from t2t.data.stages import format_stage, list_stages, measure_stages
from t2t.runtime.distributed import is_first, process_0_first, wait_for_all
from t2t.storage.paths import check_new_run_path
from t2t.training.resume import keep_source, open_run, settle_options
from t2t.training.run_directory import lock_run


def prepare(
    config: Config, workdir: Path | None, report: Callable[[str], object] = lambda line: None
) -> None:
    """Prepares the data, and a run's vocabulary and tokens; process 0 reports what there is."""
    if workdir is not None and not (workdir / "config.json").exists():
        check_new_run_path(workdir)
    config = fill_tokenizer(config if workdir is None else keep_source(workdir, config), workdir)
    tasks = corpus_sources.check_paths(config.data)
    with process_0_first():
        corpus_sources.prepare(config.data)
    with process_0_first():  # process 0 reads large files first
        for each in tasks:
            for split in corpus_sources.list_splits(each.config):
                corpus = corpus_sources.open_split(each.config, split, config.tokenizer)
                if is_first():
                    report(f"{split}: {len(corpus):,} pairs ({corpus.name})")
    if workdir is not None:
        with lock_run(workdir):
            prepare_run(tasks, config, workdir, report)


def prepare_run(
    tasks: Sequence[TaskParts],
    config: Config,
    workdir: Path,
    report: Callable[[str], object],
) -> None:
    """Makes the vocabulary and the tokens of a run, and reports their sizes in process 0."""
    data, opened = config.data, corpus_sources.open_data(tasks, config.tokenizer)
    corpora = opened.training
    open_run(workdir, config, opened.corpora)
    vocabulary = make_vocabulary(config, workdir, corpora)
    settle_options(workdir, config, vocabulary)
    tokenized = tokenize_together(corpora, vocabulary, data)
    for corpus in opened.validation.values():
        tokenize(corpus, vocabulary, data)
    if data.subword_sampling and is_first():
        tokenized = tokenize_epoch(config, corpora, vocabulary, 0)
    wait_for_all()
    if not is_first():
        return
    own = find_tasks(data, corpora)
    lengths = plan_lengths(make_objectives(own, vocabulary), tokenized)
    stages = list_stages(data, corpora)
    plan = make_plan(lengths, data, config.seed, stages[0].weights, tasks=own)
    shares = measure_stages(stages, plan, corpora)
    sub_words = [sum(int(side.sum()) for side in sides) for sides in zip(*lengths, strict=True)]
    report(
        f"vocabulary: {vocabulary.tgt.vocab_size:,} sub-words in {workdir / 'vocab'}\n"
        f"tokens: {sub_words[0]:,} source and {sub_words[1]:,} target sub-words in "
        f"{data.cache_directory}\n"
        f"first epoch: {plan.steps_per_epoch:,} batches in {len(plan.shapes)} shapes; dropped: "
        f"{plan.describe_dropped(corpora)}\n"
        + "".join(f"{format_stage(stage)}\n" for stage in shares)
        + "next: python -m t2t.train with the same --config, flags and --workdir="
        f"{shlex.quote(str(workdir))}"
    )
