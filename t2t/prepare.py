"""Downloads and prepares a recipe's data: `python -m t2t.prepare --config=configs/base.py`.

Training prepares small corpora itself, but not TFDS datasets such as WMT14, which take hours and
gigabytes. Data that were prepared before are left unchanged.
"""

from t2t.config.fields import DataConfig
from t2t.config.flags import define_config, read_config
from t2t.data import corpus_sources
from t2t.runtime import program


def main(data: DataConfig) -> None:
    """Prepares the data and prints the size of each split."""
    corpus_sources.prepare(data)
    for split in corpus_sources.list_splits(data):
        corpus = corpus_sources.open_split(data, split)
        print(f"{split}: {len(corpus):,} pairs ({corpus.name})")


if __name__ == "__main__":
    define_config()
    program.run(lambda: main(read_config().data))
