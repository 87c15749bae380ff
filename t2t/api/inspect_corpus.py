"""`inspect_data`: the report on a corpus before training."""

import dataclasses
import logging
import tempfile
from pathlib import Path

from t2t.config.fields import Config
from t2t.data.corpus_report import DataReport, report_data
from t2t.data.corpus_sources import open_training
from t2t.data.directions import list_tags
from t2t.data.preparation import fill_tokenizer
from t2t.data.tokenizer import Vocabulary, open_given, train_vocabulary

_log = logging.getLogger(__name__)


def inspect_data(config: Config, vocabulary: Path | None = None) -> DataReport:
    """Computes lengths, duplicates, overlap of the splits, unknown sub-words and dropped pairs.

    `t2t.data.corpus_report.format_report` formats the report as text. `vocabulary` is the folder of
    one; None: that of `tokenizer.path`, or one that is trained on the corpus, and discarded.

    Raises:
        ConfigError: the vocabulary of `tokenizer.path` cannot be used for this config.
        DataError: a corpus is missing or invalid.
        VocabularyError: the vocabulary cannot be read.
    """
    if vocabulary:
        tokenizer = dataclasses.replace(config.tokenizer, path=str(vocabulary))
        own = dataclasses.replace(config, tokenizer=tokenizer)
        return report_data(own, Vocabulary.load(vocabulary))
    config = fill_tokenizer(config)
    if config.tokenizer.path:
        return report_data(config, open_given(config.tokenizer.path))
    _log.info("training the vocabulary")
    corpora, tags = open_training(config.data, config.tokenizer), list_tags(config.data)
    with tempfile.TemporaryDirectory() as folder:
        trained = train_vocabulary(corpora, config.tokenizer, Path(folder), tags)
    return report_data(config, trained)
