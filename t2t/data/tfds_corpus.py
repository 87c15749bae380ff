"""Translation datasets of TFDS (TensorFlow Datasets), prepared as array_record files.

TensorFlow is not needed.
"""

import json
from pathlib import Path
from typing import Any

from t2t.config.fields import DataConfig
from t2t.data.corpus import (
    Corpus,
    DataError,
    DistantCorpus,
    Pair,
    check_languages,
    facts_folder,
    hash_strings,
)
from t2t.storage.atomic_files import explain_write_errors, make_folder, write_file
from t2t.storage.paths import make_local_path


def _choose_dataset(data: DataConfig, split: str) -> tuple[str, str]:
    """Returns (field, name) of the dataset that has this split."""
    is_held_out = split != "train" and data.tfds_held_out_name
    field = "tfds_held_out_name" if is_held_out else "tfds_name"
    return f"data.{field}", getattr(data, field)


def _make_builder(data: DataConfig, split: str) -> Any:
    """Creates the TFDS builder of the dataset that has this split, prepared or not."""
    # Imported here because it is slow and only this source needs it. The second import registers
    # the translation datasets, which the first does not.
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate

    field, name = _choose_dataset(data, split)
    remedy = (
        "data.source='tfds' is read from local files only; name in data.directory a local or "
        "shared folder, or data.source='text' with files in a bucket"
    )
    directory = make_local_path(data.directory, remedy) if data.directory else None
    try:
        return tfds.builder(name, data_dir=directory, file_format="array_record")
    except ValueError as error:  # an unknown dataset, configuration or version
        raise DataError(
            f"{field}={name!r}: {str(error).splitlines()[0]}; "
            "the names are listed at https://www.tensorflow.org/datasets/catalog, and files of "
            "the dataset in data.directory must be array_record files"
        ) from None


def list_tfds_splits(data: DataConfig) -> tuple[str, ...]:
    """Names of the splits, on this host or as another one found them."""
    if not data.tfds_held_out_name:
        return _list_splits(data, "train")
    held_out = (split for split in _list_splits(data, "validation") if split != "train")
    return ("train", *held_out)


def _list_splits(data: DataConfig, split: str) -> tuple[str, ...]:
    """Names of all splits of the dataset that has this split."""
    builder = _make_builder(data, split)
    return tuple(builder.info.splits or _recall(data, split, builder))


def prepare_tfds(data: DataConfig) -> None:
    """Downloads and prepares what is missing, and notes its sizes in the cache."""
    for split in ("train", "validation") if data.tfds_held_out_name else ("train",):
        _prepare_dataset(data, split)


def _prepare_dataset(data: DataConfig, split: str) -> None:
    """Prepares the whole dataset that has this split."""
    builder = _make_builder(data, split)
    # Imported here as TFDS is in `_make_builder`. These errors have no common class.
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.extractor import ExtractError
    from tensorflow_datasets.core.download.util import DownloadError

    try:
        builder.download_and_prepare()
    except (OSError, DownloadError, ExtractError, NonMatchingChecksumError) as error:
        field, name = _choose_dataset(data, split)
        raise DataError(
            f"{field}={name!r} cannot be prepared in {builder.data_dir}: "
            f"{error}; preparing needs a network connection, a server that answers, and disk space"
        ) from None
    _remember(data, builder)


def open_tfds(data: DataConfig, split: str) -> Corpus:
    """Opens a split of a dataset that is on this host, or was prepared on another one."""
    builder = _make_builder(data, split)
    if builder.info.splits:
        check_languages(data, tuple(builder.info.features))
        return TfdsCorpus(builder, split, (data.src_language, data.tgt_language))
    return DistantCorpus(str(builder.data_dir), **_recall(data, split, builder)[split])


def _remember(data: DataConfig, builder: Any) -> None:
    """Writes to the cache directory what is known of each split, for hosts without the dataset."""
    languages = data.src_language, data.tgt_language
    splits = {split: TfdsCorpus(builder, split, languages) for split in builder.info.splits}
    facts = {
        split: {"name": corpus.name, "length": len(corpus), "fingerprint": corpus.fingerprint()}
        for split, corpus in splits.items()
    }
    path = _facts_path(data, builder)
    with explain_write_errors(DataError, path, "data.cache_directory sets the folder"):
        make_folder(path.parent)
        write_file(path, json.dumps(facts, indent=2))


def _recall(data: DataConfig, split: str, builder: Any) -> dict[str, Any]:
    """Returns what `_remember` wrote: the arguments of `DistantCorpus` of each split."""
    try:
        facts: dict[str, Any] = json.loads(_facts_path(data, builder).read_text("utf-8"))
    except (OSError, ValueError):
        field, name = _choose_dataset(data, split)
        raise DataError(
            f"{field}={name!r} is not prepared in {builder.data_dir}, nor in "
            f"data.cache_directory={data.cache_directory}; "
            "run `python -m t2t.prepare --config=...` with this config first"
        ) from None
    return facts


def _facts_path(data: DataConfig, builder: Any) -> Path:
    identity = hash_strings(builder.info.full_name, data.src_language, data.tgt_language)
    return facts_folder(data) / f"tfds-{identity[:32]}.json"


class TfdsCorpus(Corpus):
    """A split of a TFDS translation dataset, prepared as array_record."""

    def __init__(self, builder: Any, split: str, languages: Pair):
        self._languages = languages
        self._records = builder.as_data_source(split=split)
        info = builder.info.splits[split]
        # Not a hash of millions of records, which would take too long: TFDS gives the same text for
        # the same version, sizes and shards.
        sizes = info.num_examples, int(info.num_bytes), info.shard_lengths
        self._identity = [builder.info.full_name, split, *languages, *map(str, sizes)]
        self.name = f"{builder.info.full_name}, {split}"

    def __len__(self) -> int:
        return len(self._records)

    def read(self, start: int, stop: int) -> list[Pair]:
        """Records [start, stop), decoded."""
        src, tgt = self._languages
        records = self._records.__getitems__(range(start, stop))
        return [(record[src].decode(), record[tgt].decode()) for record in records]

    def fingerprint(self) -> str:
        """A hash of the dataset's version, split, languages and sizes; not of its text."""
        return hash_strings("tfds", *self._identity)
