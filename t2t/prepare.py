"""Downloads and prepares a recipe's data: `python -m t2t.prepare --config=configs/base.py`.

Training does this itself where it takes seconds, but not for TFDS datasets such as WMT14, which
take hours and gigabytes. What is there already is not touched.
"""

from t2t import cli
from t2t.config import DataConfig
from t2t.data import sources


def main(data: DataConfig) -> None:
    """Prepares the data and prints what each split holds."""
    sources.prepare(data)
    for split in sources.list_splits(data):
        corpus = sources.open_split(data, split)
        print(f"{split}: {len(corpus):,} pairs ({corpus.name})")


if __name__ == "__main__":
    cli.define_config()
    cli.run(lambda: main(cli.read_config().data))
