"""Opens the corpora that a `DataConfig` names, each from its source."""

import copy
import dataclasses
from collections.abc import Sequence

from t2t.config.fields import DataConfig
from t2t.config.variants import call_variant
from t2t.data import hugging_face, multi30k, phrasebook, tfds_corpus
from t2t.data.corpus import (
    ConcatenatedCorpus,
    Corpus,
    DataError,
    TextCorpus,
    facts_folder,
)
from t2t.data.directions import choose_direction, find_tag, list_directions
from t2t.data.filters import filter_corpora
from t2t.storage.atomic_files import (
    check_bucket,
    explain_write_errors,
)
from t2t.storage.paths import make_path


def check_paths(data: DataConfig) -> None:
    """Raises an error for a path that cannot work, before anything is computed.

    Raises:
        PathError: a scheme is unknown, or its client is not installed.
        DataError: the cache is in a bucket that cannot be written.
    """
    for each in list_directions(data):
        files = [*each.train_src, *each.train_tgt, each.validation_src, each.validation_tgt]
        files += [entry.partition("=")[2] for entry in each.hf_files]
        for path in (each.directory, *files, each.test_src, each.test_tgt):
            make_path(path)
    cache = make_path(data.cache_directory)
    with explain_write_errors(DataError, f"data.cache_directory={cache}"):
        check_bucket(cache)


def list_parts(data: DataConfig) -> list[DataConfig]:
    """The config of each direction and source, direction by direction, without weights and filters.

    data.source="multi30k+text" has two sources, in that order.
    """
    return [
        dataclasses.replace(each, source=name, train_weights=(), temperature=0.0, filters=())
        for each in list_directions(data)
        for name in data.source.split("+")
    ]


def open_training(data: DataConfig) -> list[tuple[Corpus, float]]:
    """Opens the training corpora; returns each with its weight.

    The weight is the number of times that an epoch uses each pair of the corpus.

    Raises:
        DataError: A corpus is missing or invalid.
    """
    corpora = [corpus for each in list_directions(data) for corpus in _open_direction(each)]
    weights = list(data.train_weights) or [1.0] * len(corpora)
    if data.temperature:
        weights = find_weights([len(corpus) for corpus in corpora], data.temperature)
    return list(zip(corpora, weights, strict=True))


def _open_direction(data: DataConfig) -> list[Corpus]:
    """Opens the training corpora of one direction, without the pairs that filters drop."""
    corpora = filter_corpora(
        [corpus for part in list_parts(data) for corpus in _open_part(part)],
        data.filters,
        lambda: [open_split(data, split) for split in list_splits(data) if split != "train"],
        make_path(data.cache_directory),
    )
    return [_tag(corpus, data) for corpus in corpora]


def find_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """Weights with which corpora have shares of an epoch that grow as size ** (1 / temperature).

    `sizes` are numbers of pairs, among them those that are too long for training.

    The largest corpus is used once per epoch: weight = (size / largest) ** (1 / temperature - 1)
    (Arivazhagan et al. 2019, section 4.2; 1 keeps the sizes, infinity makes all shares equal).
    """
    # Rounded, so that a weight of 3 is no 3.0000000000000004, which has a fraction to be drawn.
    weights = [(size / max(sizes)) ** (1 / temperature - 1) for size in sizes]
    return [max(round(weight, 9), 1e-9) for weight in weights]


def open_split(data: DataConfig, split: str) -> Corpus:
    """Opens one split; of several sources it is the first one's that has the split.

    Text files that the config names come before the splits of other sources. "train" holds every
    pair that training uses once, whatever the weights of the corpora.

    Raises:
        ConfigError: The config has several directions; `list_directions` gives one of each.
        DataError: The split is unknown or invalid.
    """
    data = choose_direction(data)
    if split == "train":
        corpora = [corpus for corpus, _ in open_training(data)]
        return corpora[0] if len(corpora) == 1 else ConcatenatedCorpus(corpora)
    for part in sorted(list_parts(data), key=lambda part: part.source != "text"):
        if (corpus := _find_split(part, split)) is not None:
            return _tag(corpus, part)
    raise _unknown_split(data, split)


def open_validation(data: DataConfig) -> dict[str, Corpus]:
    """Opens the validation split of each direction that has one, by its name, such as en-de.

    Without data.directions the only name is "".
    """
    return {
        "".join(each.directions): open_split(each, "validation")
        for each in list_directions(data)
        if "validation" in list_splits(each)
    }


def check_test_files(data: DataConfig) -> None:
    """Opens the files of held-out splits other than validation, which training does not read.

    Raises:
        DataError: A file is missing or invalid.
    """
    for part in list_parts(data):
        if part.source == "text" or part.hf_files:
            for split in set(_list_splits(part)) - {"train", "validation"}:
                _find_split(part, split)


def _tag(corpus: Corpus, data: DataConfig) -> Corpus:
    """The corpus with the tag of its direction, if the config has directions."""
    if not (tag := find_tag(data)):
        return corpus
    tagged = copy.copy(corpus)  # a plugin may return one corpus for several directions
    tagged.tag, tagged.name = tag, f"{data.directions[0]}: {corpus.name}"
    return tagged


def _unknown_split(data: DataConfig, split: str) -> DataError:
    return DataError(
        f"split {split!r} is unknown; data.source={data.source!r} has "
        f"{', '.join(list_splits(data))} here"
        f"{'; name it in data.hf_files, such as ' + split + '=FILE' if data.hf_files else ''}"
    )


def list_splits(data: DataConfig) -> tuple[str, ...]:
    """Names of the splits that `open_split` takes; a registered source may have more."""
    return tuple(dict.fromkeys(name for part in list_parts(data) for name in _list_splits(part)))


def _list_splits(data: DataConfig) -> tuple[str, ...]:
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
            return phrasebook.SPLITS
        case _:
            common = ("train", "validation", "test")
            return tuple(split for split in common if _find_split(data, split) is not None)


def _open_part(data: DataConfig) -> list[Corpus]:
    """Opens the training corpora of one source."""
    if data.source == "text":
        known = facts_folder(data)
        files = zip(data.train_src, data.train_tgt, strict=True)
        return [TextCorpus(*pair, known) for pair in files]
    if (corpus := _find_split(data, "train")) is None:
        raise _unknown_split(data, "train")
    return [corpus]


def _find_split(data: DataConfig, split: str) -> Corpus | None:
    """Opens a split of one source; None if the source does not have it."""
    match data.source:
        case "text" | "multi30k" | "tfds" | "hf" | "phrasebook" if split not in _list_splits(data):
            return None
        case "text":
            files = getattr(data, f"{split}_src"), getattr(data, f"{split}_tgt")
            return TextCorpus(*files, facts_folder(data))
        case "multi30k":
            return multi30k.open_multi30k(data, split)
        case "tfds":
            return tfds_corpus.open_tfds(data, split)
        case "hf":
            return hugging_face.open_hf(data, split)
        case "phrasebook":
            return phrasebook.open_phrasebook(data, split)
        case other:
            corpus: Corpus | None = call_variant(
                "data.source", other, data, split,
                is_valid=lambda value: value is None or isinstance(value, Corpus),
            )  # fmt: skip
            return corpus


def prepare(data: DataConfig) -> None:
    """Downloads and prepares the data of the corpora that are still missing.

    Raises:
        DataError: The data cannot be downloaded or prepared; the message says what to do.
    """
    for part in list_parts(data):
        match part.source:
            case "multi30k":
                multi30k.prepare_multi30k(part)
            case "tfds":
                tfds_corpus.prepare_tfds(part)
            case "hf":
                hugging_face.prepare_hf(part)
