"""Reports on a corpus before training: `python -m t2t.inspect_data --config=configs/multi30k.py`.

The report has sentence lengths, length ratios, duplicates, the overlap of the splits with train,
unknown sub-words, and the pairs that the filters drop. `--vocabulary=RUN/vocab` uses a run's
vocabulary; without it that of `tokenizer.path` is used, or else a vocabulary is trained on the
corpus, and discarded afterwards.
`--output=FILE.json` saves the figures.
"""

import dataclasses
import json
from pathlib import Path

from t2t.config.config_flag import read_config
from t2t.config.fields import Config
from t2t.config.requests import Request
from t2t.runtime import command_line
from t2t.storage.atomic_files import check_writable, explain_write_errors, write_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataRequest(Request):
    """The corpus of a recipe, and the vocabulary that it is read with."""

    config: str
    # a vocabulary folder such as RUN/vocab; default: tokenizer.path, or else train one
    vocabulary: Path | None = None
    output: Path | None = None  # also write the figures to this JSON file


def print_report(config: Config, vocabulary: Path | None, output: Path | None) -> None:
    """Prints the report, and writes its figures to `output` as JSON.

    Raises:
        DataError: `output` cannot be written.
    """
    from t2t.api.inspect_corpus import inspect_data
    from t2t.data.corpus import DataError
    from t2t.data.corpus_report import format_report

    if output:
        if output.is_dir():
            raise DataError(f"{output} is a folder; --output names the file to write")
        with explain_write_errors(DataError, output):
            check_writable(output.parent, output.name)
    report = inspect_data(config, vocabulary)
    print(format_report(report))
    if output:
        with explain_write_errors(DataError, output):
            write_file(output, json.dumps(dataclasses.asdict(report), indent=2) + "\n")


def main(request: DataRequest) -> None:
    """Prints the report."""
    print_report(read_config(), request.vocabulary, request.output)


if __name__ == "__main__":
    command_line.run(main)
