"""Translation datasets of TFDS (TensorFlow Datasets), prepared as array_record files.

TensorFlow is not needed. Each split is copied to the cache as text (`cache_folders`), so hosts that
share the cache need no dataset.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2t.data.cache_folders import copy_pairs, find_text, is_copied, read_splits, write_splits
from t2t.data.corpus import Corpus, DataError, Pair, TextCorpus, hash_strings
from t2t.data.parts import Part, Source, check_languages
from t2t.storage.paths import first_line, make_local_path

_BLOCK = 1000  # records that are read together


def list_tfds_splits(part: Part) -> tuple[str, ...]:
    """Names of the splits, on this host or as another one found them.

    With data.tfds_held_out_name one dataset has "train" alone, the other one all other splits.

    Raises:
        DataError: the dataset is unknown, or was not prepared.
    """
    splits = _find_fingerprints(part, _make_builder(part))
    is_used = {True: part.weight is not None, False: part.held_out}
    return tuple(split for split in splits if is_used[split == "train"])


def open_tfds(part: Part, split: str) -> Corpus:
    """Opens a split of a dataset that is on this host, or was copied to the cache by another one.

    Raises:
        DataError: the dataset was not prepared, or lacks the languages.
    """
    builder = _make_builder(part)
    fingerprint = _find_fingerprints(part, builder)[split]
    copy = _find_copy(part, fingerprint)
    if not is_copied(copy):
        if not builder.info.splits:
            raise _unprepared(part, builder)
        copy_pairs(copy, _read_pairs(part, builder, split))
    name = f"{builder.info.full_name}, {split}"
    return TextCorpus(*find_text(copy), part.facts, name=name, fingerprint=fingerprint)


def prepare_tfds(part: Part) -> None:
    """Downloads and prepares the dataset, and copies its splits, as far as they are missing.

    Raises:
        DataError: it cannot be downloaded or prepared.
    """
    builder = _make_builder(part)
    # Imported here as TFDS is in `_make_builder`. These errors have no common class.
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.extractor import ExtractError
    from tensorflow_datasets.core.download.util import DownloadError

    try:
        builder.download_and_prepare()
    except (OSError, DownloadError, ExtractError, NonMatchingChecksumError) as error:
        raise DataError(
            f"{part.field}={part.dataset!r} cannot be prepared in {builder.data_dir}: "
            f"{error}; preparing needs a network connection, a server that answers, and disk space"
        ) from None
    write_splits(_splits_path(part, builder), _find_fingerprints(part, builder))
    for split in list_tfds_splits(part):
        open_tfds(part, split)


def find_tfds_text(part: Part) -> tuple[Path, Path]:
    """The files of the training text; they need not exist."""
    return find_text(_find_copy(part, _find_fingerprints(part, _make_builder(part))["train"]))


def measure_tfds(part: Part) -> int:
    """Bytes of the training text as the dataset says, 0 if it is not on this host."""
    splits = _make_builder(part).info.splits
    return int(splits["train"].num_bytes) if splits else 0


def _make_builder(part: Part) -> Any:
    """Creates the TFDS builder of the dataset, prepared or not."""
    # Imported here because it is slow and only this source needs it. The second import registers
    # the translation datasets, which the first does not.
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate

    remedy = (
        "data.source='tfds' is read from local files only; name in data.directory a local or "
        "shared folder, or data.source='text' with files in a bucket"
    )
    given = part.config.directory
    directory = make_local_path(given, remedy) if given else None
    try:
        return tfds.builder(part.dataset, data_dir=directory, file_format="array_record")
    except ValueError as error:  # an unknown dataset, configuration or version
        raise DataError(
            f"{part.field}={part.dataset!r}: {first_line(error)}; "
            "the names are listed at https://www.tensorflow.org/datasets/catalog, and files of "
            "the dataset in data.directory must be array_record files"
        ) from None


def _find_fingerprints(part: Part, builder: Any) -> dict[str, str]:
    """Returns split -> fingerprint, from the dataset or as another host noted them.

    Not hashes of the text, for which millions of records would be read: TFDS gives the same text
    for the same version, languages, sizes and shards.
    """
    if not builder.info.splits:
        known: dict[str, str] | None = read_splits(_splits_path(part, builder))
        if known is None:
            raise _unprepared(part, builder)
        return known
    check_languages(part, tuple(builder.info.features))
    found = {}
    for split, info in builder.info.splits.items():
        sizes = map(str, (info.num_examples, int(info.num_bytes), info.shard_lengths))
        identity = builder.info.full_name, split, *part.languages, *sizes
        found[split] = hash_strings("tfds", *identity)
    return found


def _splits_path(part: Part, builder: Any) -> Path:
    identity = hash_strings(builder.info.full_name, *part.languages)
    return part.cache / "tfds" / f"{identity[:32]}-splits.json"


def _find_copy(part: Part, fingerprint: str) -> Path:
    return part.cache / "tfds" / fingerprint[:32]


def _unprepared(part: Part, builder: Any) -> DataError:
    return DataError(
        f"{part.field}={part.dataset!r} is not prepared in {builder.data_dir}, nor in "
        f"data.cache_directory={part.cache}; "
        "run `python -m t2t.prepare --config=...` with this config first"
    )


def _read_pairs(part: Part, builder: Any, split: str) -> Iterator[Pair]:
    records = builder.as_data_source(split=split)
    src, tgt = part.languages
    for start in range(0, len(records), _BLOCK):
        for record in records.__getitems__(range(start, min(start + _BLOCK, len(records)))):
            yield record[src].decode(), record[tgt].decode()


SOURCE = Source(list_tfds_splits, open_tfds, prepare_tfds, find_tfds_text, measure_tfds)
