"""Prepares what training reads: the run's vocabulary, and the tokens of its corpora.

`python -m t2t.prepare` does it once, in one process or shared by several. Training does it itself
for a small corpus, and asks for it where it would take long.
"""

import dataclasses
import importlib.metadata
import logging
from collections.abc import Sequence
from pathlib import Path

import jax

from t2t.config.fields import Config, ConfigError, DataConfig, TokenizerConfig
from t2t.config.rules import validate
from t2t.data.corpus import Corpus, DataError, hash_strings
from t2t.data.corpus_sources import find_training_text, measure_training_text, open_training
from t2t.data.counted_vocabulary import count_special
from t2t.data.directions import find_tag, list_tags, list_tasks
from t2t.data.objectives import count_sentinels
from t2t.data.parts import TaskParts
from t2t.data.token_cache import TokenizedCorpus, count_shards, is_tokenized, tokenize_corpus
from t2t.data.tokenizer import (
    Vocabulary,
    VocabularyError,
    measure_several,
    open_given,
    train_vocabulary,
)
from t2t.runtime.distributed import process_0_first, wait_for_all
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.storage.file_facts import recall
from t2t.storage.paths import make_path

ORIGIN = "text.sha256"  # in vocab/: hash of the training text
# Larger corpora are not prepared by training, while all devices wait, but by t2t.prepare.
LARGE_TEXT = 2 << 30  # bytes of text; WMT14 English-German has 1.2 GB
_FORMAT = 2  # increase it when another vocabulary is trained on the same text

_log = logging.getLogger(__name__)


def make_vocabulary(config: Config, workdir: Path, corpora: Sequence[Corpus]) -> Vocabulary:
    """Loads the run's vocabulary, or trains it on the training corpora in process 0.

    Runs of the same text and settings share it in `data.cache_directory`. With `tokenizer.path`
    that vocabulary is copied instead.

    Raises:
        ConfigError: `vocab_size` is too large or too small for the text.
        VocabularyError: the vocabulary is damaged, of another text, or not that of
            `tokenizer.path`.
    """
    given = config.tokenizer.path
    text = hash_strings(*(corpus.fingerprint() for corpus in corpora))
    with process_0_first():
        directory = workdir / "vocab"
        origin = directory / ORIGIN
        if Vocabulary.is_saved(directory):
            is_other = origin.exists() and origin.read_text("utf-8") != text
            if is_other and not given:
                raise VocabularyError(
                    f"{directory} was trained on another text; remove it, to train it again, or "
                    f"only {origin}, to keep it"
                )
            vocabulary = Vocabulary.load(directory)
            if given:
                _check_same(given, vocabulary, directory)
            if not is_other:
                return vocabulary
        if given:
            vocabulary = open_given(given)
            if config.tokenizer.kind != "symbols":
                several = measure_several(corpora)
                vocabulary = dataclasses.replace(vocabulary, several_sentences=several)
            _copy_others(make_path(given), directory)  # first: a saved vocabulary is complete
            vocabulary.save(directory)
        else:
            vocabulary = _share_vocabulary(config, corpora, text)
            vocabulary.save(directory)
        with explain_write_errors(VocabularyError, origin):
            write_file(origin, text)
        return vocabulary


def _share_vocabulary(config: Config, corpora: Sequence[Corpus], text: str) -> Vocabulary:
    """Returns the vocabulary that was trained on this text before, or trains it and keeps it."""
    tags, shares = list_tags(config.data), [(corpus.sides, corpus.weight) for corpus in corpora]
    trainer = importlib.metadata.version("sentencepiece")
    facts = _FORMAT, trainer, text, shares, config.tokenizer, tags
    cache = make_path(config.data.cache_directory) / "vocabularies"
    folder = cache / hash_strings(repr(facts))[:32]
    if Vocabulary.is_saved(folder):
        try:
            vocabulary = Vocabulary.load(folder)
        except VocabularyError as error:
            _log.warning("%s; it is trained again", error)
        else:
            _log.info("the vocabulary of this text is in %s", folder)
            return vocabulary
    _log.info("training the vocabulary")
    return train_vocabulary(corpora, config.tokenizer, folder, tags)


def _copy_others(given: Path, directory: Path) -> None:
    """Copies what a vocab/ folder has besides models, such as the ids of an imported vocabulary."""
    for path in given.iterdir() if given.is_dir() else ():
        if path.suffix != ".model" and path.name != ORIGIN:
            with explain_write_errors(VocabularyError, directory):
                write_file(directory / path.name, path.read_bytes())


def _check_same(given: str, vocabulary: Vocabulary, directory: Path) -> None:
    """Raises `VocabularyError` if `tokenizer.path` exists and is another vocabulary."""
    if make_path(given).exists() and open_given(given).fingerprint() != vocabulary.fingerprint():
        raise VocabularyError(
            f"tokenizer.path={given} is not the vocabulary in {directory}, with which this run "
            "began; choose another --workdir, or the old tokenizer.path"
        )


def fill_tokenizer(config: Config, workdir: Path | None = None) -> Config:
    """Returns the config with the fields of `config.tokenizer` that follow from others.

    Without `tokenizer.path` there are at least as many sentinels as `data.objective` needs, and the
    size of a vocabulary of bytes follows from its tags and sentinels. With it all fields are those
    of its vocabulary: `vocab_size` is that of the larger one of two. If the path does not exist any
    more, the vocabulary that the run `workdir` has is read.

    Raises:
        ConfigError: the vocabulary cannot be used for this config.
    """
    given, tasks = config.tokenizer.path, list_tasks(config.data)
    needed = max(map(count_sentinels, tasks))
    if not given:
        sentinels = max(config.tokenizer.sentinels, needed)
        tokenizer = dataclasses.replace(config.tokenizer, sentinels=sentinels)
        if tokenizer.kind == "bytes":
            tokenizer.vocab_size = count_special(tokenizer, len(list_tags(config.data)))
        is_filled = tokenizer == config.tokenizer
        return config if is_filled else dataclasses.replace(config, tokenizer=tokenizer)
    own = workdir / "vocab" if workdir else None
    if own and Vocabulary.is_saved(own) and not make_path(given).exists():
        vocabulary = Vocabulary.load(own)
    else:
        vocabulary = open_given(given)
    sides = vocabulary.src, vocabulary.tgt
    for task in tasks:
        try:
            vocabulary.with_tag(find_tag(task), task.prefix)
        except VocabularyError as error:
            raise ConfigError(
                f"tokenizer.path={given} does not fit: {error}; without tokenizer.path, a "
                "vocabulary with all tags and prefixes is trained"
            ) from None
    sentinels = len(vocabulary.tgt.sentinel_ids)
    if sentinels < needed:
        most = max(tasks, key=count_sentinels)
        raise ConfigError(
            f"tokenizer.path={given} has {sentinels} sentinels, but data.objective="
            f"{most.objective!r} needs {needed}; leave tokenizer.path out, and one "
            "that has them is trained"
        )
    if len({side.kind for side in sides}) > 1 and config.data.subword_sampling:
        raise ConfigError(
            f"tokenizer.path={given} has a vocabulary of bpe and one of unigram, but "
            f"data.subword_sampling={config.data.subword_sampling} needs two of one kind; set it "
            "to 0"
        )
    # Two models may have the same ids, and segment text differently.
    if config.model.tie_embeddings in ("all", "input") and not vocabulary.has_common_ids:
        raise ConfigError(
            f"tokenizer.path={given} has two vocabularies, but model.tie_embeddings="
            f"{config.model.tie_embeddings!r} needs one; set model.tie_embeddings='decoder' or "
            "'none'"
        )
    tokenizer = TokenizerConfig(
        path=given,
        kind=sides[0].kind,
        vocab_size=max(side.vocab_size for side in sides),
        shared=vocabulary.has_common_ids,
        byte_fallback=all(side.has_bytes for side in sides),
        sentinels=sentinels,
        lowercase=all(side.split_words(["Aa"]) == [["aa"]] for side in sides),
    )
    return validate(dataclasses.replace(config, tokenizer=tokenizer))


def tokenize(corpus: Corpus, vocabulary: Vocabulary, data: DataConfig) -> TokenizedCorpus:
    """Opens the tokens of a corpus; process 0 writes those that are missing."""
    directory = make_path(data.cache_directory)
    with process_0_first():
        return tokenize_corpus(corpus, vocabulary, directory)


def tokenize_together(
    corpora: Sequence[Corpus], vocabulary: Vocabulary, data: DataConfig
) -> list[TokenizedCorpus]:
    """Tokenises corpora, each process a share of the shards; returns all of them."""
    directory = make_path(data.cache_directory)
    processes, first = jax.process_count(), 0  # number of the corpus's first shard among all
    for corpus in corpora:
        share = (jax.process_index() - first) % processes, processes
        tokenize_corpus(corpus, vocabulary, directory, share=share)
        first += count_shards(corpus)
    wait_for_all()
    return [tokenize(corpus, vocabulary, data) for corpus in corpora]


def check_prepared(config: Config, workdir: Path, tasks: Sequence[TaskParts]) -> None:
    """Checks that a large corpus was prepared; reads none of its text, unless for a new filter.

    Preparing the text of sources that t2t does not know, and of those that are always small, counts
    as quick.

    Raises:
        DataError: it was not; the message has the command that does it.
    """
    if measure_training_text(tasks) > LARGE_TEXT and not is_prepared(config, workdir):
        raise DataError(
            f"the training corpus is large and not prepared for {workdir}: run "
            f"`python -m t2t.prepare --config=... --workdir={workdir}` first, with the same config "
            "and flags; it needs no accelerator"
        )


def is_prepared(config: Config, workdir: Path) -> bool:
    """Returns whether vocabulary and tokens are there."""
    if not Vocabulary.is_saved(workdir / "vocab"):
        return False
    cache = make_path(config.data.cache_directory)
    if any(recall(cache / "files", path) is None for path in find_training_text(config.data)):
        return False
    vocabulary = Vocabulary.load(workdir / "vocab")
    return all(
        is_tokenized(corpus, vocabulary, cache)
        for corpus in open_training(config.data, config.tokenizer)
    )
