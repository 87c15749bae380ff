"""Prepares what training reads: the run's vocabulary, and the tokens of its corpora.

`python -m t2t.prepare` does it once, in one process or shared by several. Training does it itself
for a small corpus, and asks for it where it would take long.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import jax

from t2t.config.fields import Config, DataConfig
from t2t.data.corpus import Corpus, DataError, hash_strings
from t2t.data.corpus_sources import find_training_text, measure_training_text, open_training
from t2t.data.parts import list_tags
from t2t.data.token_cache import (
    TokenizedCorpus,
    count_shards,
    is_tokenized,
    tokenize_corpus,
)
from t2t.data.tokenizer import Vocabulary, VocabularyError, train_vocabulary
from t2t.runtime.distributed import process_0_first, wait_for_all
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.storage.file_facts import recall
from t2t.storage.paths import make_path

# Larger corpora are not prepared by training, while all devices wait, but by t2t.prepare.
LARGE_TEXT = 2 << 30  # bytes of text; WMT14 English-German has 1.2 GB

_log = logging.getLogger(__name__)


def make_vocabulary(
    config: Config, workdir: Path, corpora: Sequence[Corpus], weights: Sequence[float]
) -> Vocabulary:
    """Loads the run's vocabulary, or trains it on the training corpora in process 0.

    `weights` are those of the corpora in an epoch.

    Raises:
        ConfigError: `vocab_size` is too large or too small for the text.
        VocabularyError: the vocabulary is damaged, or of another text.
    """
    text = hash_strings(*(corpus.fingerprint() for corpus in corpora))

    def make() -> Vocabulary:
        directory = workdir / "vocab"
        origin = directory / "text.sha256"
        if Vocabulary.is_saved(directory):
            if origin.exists() and origin.read_text("utf-8") != text:
                raise VocabularyError(
                    f"{directory} was trained on another text; remove it, to train it again, or "
                    f"only {origin}, to keep it"
                )
            return Vocabulary.load(directory)
        _log.info("training the vocabulary")
        tags = list_tags(config.data)
        vocabulary = train_vocabulary(corpora, config.tokenizer, directory, tags, weights)
        with explain_write_errors(VocabularyError, origin):
            write_file(origin, text)
        return vocabulary

    return process_0_first(make)


def tokenize(corpus: Corpus, vocabulary: Vocabulary, data: DataConfig) -> TokenizedCorpus:
    """Opens the tokens of a corpus; process 0 writes those that are missing."""
    directory = make_path(data.cache_directory)
    return process_0_first(lambda: tokenize_corpus(corpus, vocabulary, directory))


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


def check_prepared(config: Config, workdir: Path) -> None:
    """Checks that a large corpus was prepared; reads none of its text, unless for a new filter.

    Raises:
        DataError: it was not; the message has the command that does it.
    """
    if is_large(config.data) and not is_prepared(config, workdir):
        raise DataError(
            f"the training corpus is large and not prepared for {workdir}: run "
            f"`python -m t2t.prepare --config=... --workdir={workdir}` first, with the same config "
            "and flags; it needs no accelerator"
        )


def is_large(data: DataConfig) -> bool:
    """Returns whether preparing the training corpora takes more than some minutes.

    The text of sources that t2t does not know, and of those that are always small, counts as none.
    """
    return measure_training_text(data) > LARGE_TEXT


def is_prepared(config: Config, workdir: Path) -> bool:
    """Returns whether vocabulary and tokens are there."""
    if not Vocabulary.is_saved(workdir / "vocab"):
        return False
    cache = make_path(config.data.cache_directory)
    if any(recall(cache / "files", path) is None for path in find_training_text(config.data)):
        return False
    vocabulary = Vocabulary.load(workdir / "vocab")
    return all(is_tokenized(corpus, vocabulary, cache) for corpus, _ in open_training(config.data))
