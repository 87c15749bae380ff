"""Opens the corpora of a `DataConfig`: text files, TFDS, Multi30k, the phrasebook, or registered.

Multi30k (Elliott et al. 2016) may be used for research and education only, not commercially: its
sentences describe Flickr images, and the terms of Flickr30k apply.
"""

import gzip
import hashlib
import http.client
import json
import urllib.request
import zlib
from pathlib import Path
from typing import Any

from t2t import phrasebook
from t2t.config.fields import DataConfig
from t2t.config.variants import find_variant
from t2t.data.corpus import (
    ConcatenatedCorpus,
    Corpus,
    DataError,
    ListCorpus,
    Pair,
    TextCorpus,
    hash_strings,
)
from t2t.data.filters import filter_corpora
from t2t.storage.atomic_files import (
    check_writable,
    explain_write_errors,
    make_folder,
    write_file,
)
from t2t.storage.paths import is_bucket, make_path

MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
_MULTI30K_LANGUAGES = ("en", "de", "fr")
_MULTI30K_STEMS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
MULTI30K_CHECKSUMS = {  # SHA-256 of the text, because a .gz contains its time stamp
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}


def check_paths(data: DataConfig) -> None:
    """Raises an error for a path that cannot work, before anything is computed.

    Raises:
        PathError: a scheme is unknown, or its client is not installed.
        DataError: the cache is in a bucket that cannot be written.
    """
    files = (*data.train_src, *data.train_tgt, data.validation_src, data.validation_tgt)
    for path in (data.directory, *files, data.test_src, data.test_tgt):
        make_path(path)
    cache = make_path(data.cache_directory)
    if is_bucket(cache):
        with explain_write_errors(DataError, f"data.cache_directory={cache}"):
            check_writable(cache)


def open_training(data: DataConfig) -> list[tuple[Corpus, float]]:
    """Opens the training corpora; returns each with its weight.

    The weight is the number of times that an epoch uses each pair of the corpus.

    Raises:
        DataError: A corpus is missing or invalid.
    """
    corpora: list[Corpus]
    if data.source == "text":
        memory = find_memory(data)
        files = zip(data.train_src, data.train_tgt, strict=True)
        corpora = [TextCorpus(*pair, memory) for pair in files]
    else:
        corpora = [_open_known_split(data, "train")]

    def open_held_out() -> list[Corpus]:
        return [open_split(data, split) for split in list_splits(data) if split != "train"]

    corpora = filter_corpora(corpora, data.filters, open_held_out, make_path(data.cache_directory))
    return [*zip(corpora, data.train_weights or (1.0,) * len(corpora), strict=True)]


def open_split(data: DataConfig, split: str) -> Corpus:
    """Opens one split; "train" holds every pair that training uses once, whatever the weights.

    Raises:
        DataError: The split is unknown or invalid.
    """
    if split == "train":
        parts = [corpus for corpus, _ in open_training(data)]
        return parts[0] if len(parts) == 1 else ConcatenatedCorpus(parts)
    return _open_known_split(data, split)


def _open_known_split(data: DataConfig, split: str) -> Corpus:
    """Opens one split, which must exist; training text of one corpus without `data.filters`."""
    if data.source == "multi30k":
        names = {stem: name for name, stem in _MULTI30K_STEMS.items()}
        split = names.get(split, split)
    corpus = _find_split(data, split)
    if corpus is None:
        raise DataError(
            f"split {split!r} is unknown; data.source={data.source!r} has "
            f"{', '.join(list_splits(data))} here"
        )
    return corpus


def list_splits(data: DataConfig) -> tuple[str, ...]:
    """Names of the splits that `open_split` takes; a registered source may have more."""
    match data.source:
        case "text":
            held_out = {"validation": data.validation_src, "test": data.test_src}
            return ("train", *(split for split, path in held_out.items() if path))
        case "multi30k":
            return tuple(_MULTI30K_STEMS)
        case "tfds":
            builder = _make_builder(data)
            return tuple(builder.info.splits or _recall_tfds(data, builder))
        case "phrasebook":
            return tuple(phrasebook.SIZES)
        case _:
            common = ("train", "validation", "test")
            return tuple(split for split in common if _find_split(data, split) is not None)


def _find_split(data: DataConfig, split: str) -> Corpus | None:
    match data.source:
        case "text" | "multi30k" | "tfds" | "phrasebook" if split not in list_splits(data):
            return None
        case "text":
            return _open_text(data, split)
        case "multi30k":
            return _open_multi30k(data, split)
        case "tfds":
            return _open_tfds(data, split)
        case "phrasebook":
            return _open_phrasebook(data, split)
        case other:
            corpus: Corpus | None = find_variant("data.source", other)(data, split)
            return corpus


def prepare(data: DataConfig) -> None:
    """Downloads and prepares the data of the corpora that are still missing.

    Raises:
        DataError: The data cannot be downloaded or prepared; the message says what to do.
    """
    if data.source == "multi30k" and not data.directory:
        for split in _MULTI30K_STEMS:
            _find_multi30k(data, split)
    elif data.source == "tfds":
        builder = _make_builder(data)
        try:
            builder.download_and_prepare()
        except OSError as error:
            raise DataError(
                f"data.tfds_name={data.tfds_name!r} cannot be prepared in {builder.data_dir}: "
                f"{error}; preparing needs a network connection and disk space"
            ) from None
        _remember_tfds(data, builder)


def _open_text(data: DataConfig, split: str) -> Corpus:
    files = getattr(data, f"{split}_src"), getattr(data, f"{split}_tgt")
    return TextCorpus(*files, find_memory(data))


def find_memory(data: DataConfig) -> Path:
    """The folder of what was found in text files (`file_facts`)."""
    return make_path(data.cache_directory) / "files"


def _open_phrasebook(data: DataConfig, split: str) -> Corpus:
    _check_languages(data, ("en", "de"))
    pairs = phrasebook.generate(split)
    if data.src_language == "de":
        pairs = [(german, english) for english, german in pairs]
    return ListCorpus(f"phrasebook, {split}", pairs)


def _check_languages(data: DataConfig, known: tuple[str, ...]) -> None:
    pair = data.src_language, data.tgt_language
    if not set(pair) <= set(known) or pair[0] == pair[1]:
        raise DataError(
            f"data.src_language={pair[0]!r} and data.tgt_language={pair[1]!r}: "
            f"data.source={data.source!r} translates between two of {', '.join(known)}"
        )


def _open_multi30k(data: DataConfig, split: str) -> Corpus:
    src, tgt = _find_multi30k(data, split)
    return TextCorpus(src, tgt, find_memory(data))


def _find_multi30k(data: DataConfig, split: str) -> list[Path]:
    """The source and target files; downloads missing ones unless `data.directory` is set."""
    _check_languages(data, _MULTI30K_LANGUAGES)
    folder = make_path(data.directory or f"{data.cache_directory}/multi30k")
    files = []
    for language in (data.src_language, data.tgt_language):
        name = f"{_MULTI30K_STEMS[split]}.{language}"
        found = [path for path in (folder / name, folder / f"{name}.gz") if path.exists()]
        if not found and data.directory:
            raise DataError(
                f"data.directory={data.directory!r} holds neither {name} nor {name}.gz; name the "
                "folder that does, or leave data.directory empty to download Multi30k"
            )
        files.append(found[0] if found else _download_multi30k(name, folder))
    return files


def _download_multi30k(name: str, folder: Path) -> Path:
    url = f"{MULTI30K_URL}/{name}.gz"
    by_hand = f"put {name}.gz into {folder} by hand, or name its folder in data.directory"
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            packed = response.read()
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        raise DataError(f"{url} cannot be downloaded: {error}; {by_hand}") from None
    try:
        checksum = hashlib.sha256(gzip.decompress(packed)).hexdigest()
    except (OSError, EOFError, zlib.error):
        checksum = "unknown, because it is not a complete gzip file,"
    if checksum != MULTI30K_CHECKSUMS[name]:
        raise DataError(
            f"{url} is not the expected file: SHA-256 of the text is {checksum} instead of "
            f"{MULTI30K_CHECKSUMS[name]}; {by_hand}"
        )
    path = folder / f"{name}.gz"
    with explain_write_errors(DataError, path, "data.cache_directory sets the folder"):
        make_folder(folder)
        write_file(path, packed)
    return path


def _make_builder(data: DataConfig) -> Any:
    """Creates the TFDS builder, whether or not its data are prepared."""
    # Imported here because it is slow and only this source needs it. The second import registers
    # the translation datasets, which the first does not.
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate

    directory = make_path(data.directory) if data.directory else None
    if directory and is_bucket(directory):
        raise DataError(
            f"data.directory={data.directory!r}: data.source='tfds' is read from local files only; "
            "name a local or shared folder, or data.source='text' with files in a bucket"
        )
    try:
        return tfds.builder(data.tfds_name, data_dir=directory, file_format="array_record")
    except ValueError as error:  # an unknown dataset, configuration or version
        raise DataError(
            f"data.tfds_name={data.tfds_name!r}: {str(error).splitlines()[0]}; "
            "the names are listed at https://www.tensorflow.org/datasets/catalog, and files of "
            "the dataset in data.directory must be array_record files"
        ) from None


def _open_tfds(data: DataConfig, split: str) -> Corpus:
    """Opens a split of a dataset that is on this host, or was prepared on another one."""
    builder = _make_builder(data)
    if builder.info.splits:
        _check_languages(data, tuple(builder.info.features))
        return TfdsCorpus(builder, split, (data.src_language, data.tgt_language))
    return DistantCorpus(str(builder.data_dir), **_recall_tfds(data, builder)[split])


def _remember_tfds(data: DataConfig, builder: Any) -> None:
    """Writes to the cache directory what is known of each split, for hosts without the dataset."""
    languages = data.src_language, data.tgt_language
    splits = {split: TfdsCorpus(builder, split, languages) for split in builder.info.splits}
    facts = {
        split: {"name": corpus.name, "length": len(corpus), "fingerprint": corpus.fingerprint()}
        for split, corpus in splits.items()
    }
    path = _find_tfds_facts(data, builder)
    with explain_write_errors(DataError, path, "data.cache_directory sets the folder"):
        make_folder(path.parent)
        write_file(path, json.dumps(facts, indent=2))


def _recall_tfds(data: DataConfig, builder: Any) -> dict[str, Any]:
    """Returns what `_remember_tfds` wrote: the arguments of `DistantCorpus` of each split."""
    try:
        facts: dict[str, Any] = json.loads(_find_tfds_facts(data, builder).read_text())
    except (OSError, ValueError):
        raise DataError(
            f"data.tfds_name={data.tfds_name!r} is not prepared in {builder.data_dir}, nor in "
            f"data.cache_directory={data.cache_directory}; "
            "run `python -m t2t.prepare --config=...` with this config first"
        ) from None
    return facts


def _find_tfds_facts(data: DataConfig, builder: Any) -> Path:
    identity = hash_strings(builder.info.full_name, data.src_language, data.tgt_language)
    return find_memory(data) / f"tfds-{identity[:32]}.json"


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


class DistantCorpus(Corpus):
    """A corpus of which this host has no text, but perhaps the tokens."""

    def __init__(self, directory: str, name: str, length: int, fingerprint: str):
        """`directory`: where the text would be."""
        self._directory, self._length, self._fingerprint = directory, length, fingerprint
        self.name = name

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> list[Pair]:  # noqa: ARG002
        """Raises `DataError`: the text is not here."""
        raise DataError(
            f"the text of {self.name} is not in {self._directory}; prepare it there with "
            "`python -m t2t.prepare --config=...`, or name a folder that has it in data.directory. "
            "Training needs it only if it was not prepared with --workdir, or for "
            "training.bleu_every"
        )

    def fingerprint(self) -> str:
        """The fingerprint that the corpus has where its text is."""
        return self._fingerprint
