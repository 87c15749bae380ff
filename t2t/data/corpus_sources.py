"""Opens the corpora that a `DataConfig` names, each from its source."""

from t2t import phrasebook
from t2t.config.fields import DataConfig
from t2t.config.variants import find_variant
from t2t.data import hugging_face, multi30k, tfds_corpus
from t2t.data.corpus import (
    ConcatenatedCorpus,
    Corpus,
    DataError,
    ListCorpus,
    TextCorpus,
    check_languages,
    find_memory,
)
from t2t.storage.atomic_files import check_writable, explain_write_errors
from t2t.storage.paths import is_bucket, make_path


def check_paths(data: DataConfig) -> None:
    """Raises an error for a path that cannot work, before anything is computed.

    Raises:
        PathError: a scheme is unknown, or its client is not installed.
        DataError: the cache is in a bucket that cannot be written.
    """
    files = [*data.train_src, *data.train_tgt, data.validation_src, data.validation_tgt]
    files += [entry.partition("=")[2] for entry in data.hf_files]
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
    if data.source != "text":
        return [(open_split(data, "train"), 1.0)]
    files = zip(data.train_src, data.train_tgt, strict=True)
    weights = data.train_weights or (1.0,) * len(data.train_src)
    memory = find_memory(data)
    return [
        (TextCorpus(*pair, memory), weight) for pair, weight in zip(files, weights, strict=True)
    ]


def open_split(data: DataConfig, split: str) -> Corpus:
    """Opens one split; "train" holds every pair once, whatever the weights of the corpora.

    Raises:
        DataError: The split is unknown or invalid.
    """
    if data.source == "multi30k":
        split = multi30k.find_split(split)
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
            return multi30k.SPLITS
        case "tfds":
            return tfds_corpus.list_tfds_splits(data)
        case "hf":
            return hugging_face.list_hf_splits(data)
        case "phrasebook":
            return tuple(phrasebook.SIZES)
        case _:
            common = ("train", "validation", "test")
            return tuple(split for split in common if _find_split(data, split) is not None)


def _find_split(data: DataConfig, split: str) -> Corpus | None:
    match data.source:
        case "text" | "multi30k" | "tfds" | "hf" | "phrasebook" if split not in list_splits(data):
            return None
        case "text":
            return _open_text(data, split)
        case "multi30k":
            return multi30k.open_multi30k(data, split)
        case "tfds":
            return tfds_corpus.open_tfds(data, split)
        case "hf":
            return hugging_face.open_hf(data, split)
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
    match data.source:
        case "multi30k":
            multi30k.prepare_multi30k(data)
        case "tfds":
            tfds_corpus.prepare_tfds(data)
        case "hf":
            hugging_face.prepare_hf(data)


def _open_text(data: DataConfig, split: str) -> Corpus:
    if split == "train":
        parts = [corpus for corpus, _ in open_training(data)]
        return parts[0] if len(parts) == 1 else ConcatenatedCorpus(parts)
    files = getattr(data, f"{split}_src"), getattr(data, f"{split}_tgt")
    return TextCorpus(*files, find_memory(data))


def _open_phrasebook(data: DataConfig, split: str) -> Corpus:
    check_languages(data, ("en", "de"))
    pairs = phrasebook.generate(split)
    if data.src_language == "de":
        pairs = [(german, english) for english, german in pairs]
    return ListCorpus(f"phrasebook, {split}", pairs)
