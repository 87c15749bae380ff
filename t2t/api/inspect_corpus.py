"""`inspect_data`: the report on a corpus before training."""

import logging
import tempfile
from pathlib import Path

from t2t.config.fields import Config
from t2t.data.corpus_report import DataReport, report_data
from t2t.data.corpus_sources import open_training
from t2t.data.parts import list_tags
from t2t.data.tokenizer import Vocabulary, train_vocabulary

_log = logging.getLogger(__name__)


def inspect_data(config: Config, vocabulary: Path | None = None) -> DataReport:
    """Computes lengths, duplicates, overlap of the splits, unknown sub-words and dropped pairs.

    `t2t.data.corpus_report.format_report` formats the report as text. `vocabulary` is the folder of
    one; None: one is trained on the corpus, and discarded.

    Raises:
        DataError: a corpus is missing or invalid.
        VocabularyError: the vocabulary cannot be read.
    """
    if vocabulary:
        return report_data(config, Vocabulary.load(vocabulary))
    _log.info("training the vocabulary")
    corpora, tags = open_training(config.data), list_tags(config.data)
    with tempfile.TemporaryDirectory() as folder:
        trained = train_vocabulary(corpora, config.tokenizer, Path(folder), tags)
    return report_data(config, trained)
