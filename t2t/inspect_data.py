"""Reports on a corpus before training: `python -m t2t.inspect_data --config=configs/multi30k.py`.

The report has sentence lengths, length ratios, duplicates, the overlap of the splits with train,
unknown sub-words, and the pairs that the filters drop. `--vocabulary=RUN/vocab` uses a run's
vocabulary; without it a vocabulary is trained on the corpus, and discarded afterwards.
`--output=FILE.json` saves the figures.
"""

from absl import flags

from t2t.config.flags import define_config, read_config
from t2t.runtime import program
from t2t.storage.paths import make_path


def main() -> None:
    """Prints the report that the flags ask for."""
    from t2t.data.corpus_report import report_data

    values = flags.FLAGS
    paths = (values.vocabulary, values.output)
    report_data(read_config(), *(make_path(path) if path else None for path in paths))


if __name__ == "__main__":
    define_config()
    flags.DEFINE_string(
        "vocabulary", None, "A vocabulary folder such as RUN/vocab; default: train a vocabulary."
    )
    flags.DEFINE_string("output", None, "Also write the figures to this JSON file.")
    program.run(main)
