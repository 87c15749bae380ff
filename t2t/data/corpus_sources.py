"""Opens the corpora that a `DataConfig` names: config, parts, source, pairs."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from t2t.config.fields import DataConfig, TokenizerConfig
from t2t.config.variants import call_variant
from t2t.data.corpus import Corpus, DataError, TextCorpus
from t2t.data.directions import choose_task, find_tag
from t2t.data.parts import Part, Source, TaskParts, check_languages, resolve
from t2t.runtime.distributed import process_0_first
from t2t.storage.atomic_files import check_bucket, explain_write_errors
from t2t.storage.open_text import PACKED_SUFFIXES
from t2t.storage.paths import make_path, measure_size

_CASED = TokenizerConfig()  # by default text is spelled as it is written


class Data(NamedTuple):
    """The corpora that training reads."""

    training: list[Corpus]  # with their weights
    validation: dict[str, Corpus]  # of each task with this split, by its name, such as en-de
    splits: tuple[str, ...]  # the names of the first task's splits
    corpora: dict[str, list[Corpus]]  # by split, as the run's ledger records them


def open_data(tasks: Sequence[TaskParts], tokenizer: TokenizerConfig = _CASED) -> Data:
    """Opens the corpora of all tasks that training reads; process 0 opens them first.

    It reads, filters and copies what is not in the cache; the others find it there. Files of other
    splits are opened as well, so that their errors come before training.

    Raises:
        ConfigError, DataError: as `open_training`, or another split is invalid, or the main task
            of a mixture has no validation split, but another one has.
    """
    with process_0_first():
        training = _open_training(tasks, tokenizer)
    validation = {}
    with process_0_first():
        for each in tasks:
            if "validation" in _list_splits(each.parts):
                validation[each.config.task] = _open_held_out(each, "validation")
            for part in each.parts:
                for split in part.files.keys() - {"train", "validation"}:
                    open_part(part, split)
    main = tasks[0]
    if main.config.mixture and validation and main.config.task not in validation:
        raise DataError(
            f"data.mixture: {main.config.task}, its first task, has no validation split, by which "
            f"the best checkpoint is chosen, but {next(iter(validation))} has; name its files, or "
            "put another task first"
        )
    splits = _list_splits(main.parts)
    corpora = {"train": training}
    if validation:
        corpora["validation"] = [*validation.values()]
    return Data(training, validation, splits, corpora)


def check_paths(data: DataConfig) -> list[TaskParts]:
    """Resolves the tasks of a config whose paths can be used, before anything is computed.

    Raises:
        PathError: a scheme is unknown, or its client is not installed.
        DataError: the cache is in a bucket that cannot be written.
    """
    tasks = resolve(data)
    for each in tasks:
        make_path(each.config.directory)
    cache = make_path(data.cache_directory)
    with explain_write_errors(DataError, f"data.cache_directory={cache}"):
        check_bucket(cache)
    return tasks


def check_sources(data: DataConfig) -> None:
    """Checks the names of sources, and that they have the config's languages; opens none.

    Raises:
        ConfigError, DataError: a source is unknown, or has other languages.
    """
    for each in resolve(data):
        for part in each.parts:
            check_languages(part, _find_source(part).languages)


def open_training(data: DataConfig, tokenizer: TokenizerConfig = _CASED) -> list[Corpus]:
    """Opens the training corpora, with their weights.

    Filters compare text as the vocabulary of `tokenizer` spells it.

    Raises:
        ConfigError: filters need the vocabulary that `tokenizer.path` names, which is not there.
        DataError: A corpus is missing or invalid.
    """
    return _open_training(resolve(data), tokenizer)


def _open_training(tasks: Sequence[TaskParts], tokenizer: TokenizerConfig) -> list[Corpus]:
    corpora = []
    for each in tasks:
        for corpus in _open_task(each, tokenizer):
            corpus.task = each.config.task
            if each.config.mixture:
                corpus.name = f"{corpus.task}: {corpus.name}"
            corpora.append(corpus)
    parts = [part for each in tasks for part in each.parts]
    weights = [part.weight for part in parts if part.weight is not None]
    if temperature := tasks[0].config.temperature:
        weights = find_weights([len(corpus) for corpus in corpora], temperature)
    for corpus, weight in zip(corpora, weights, strict=True):
        corpus.weight = weight
    return corpora


def _open_task(task: TaskParts, tokenizer: TokenizerConfig) -> list[Corpus]:
    """Opens the training corpora of one task, without the pairs that filters drop."""
    corpora, data = [], task.config
    for part in task.training:
        if (corpus := open_part(part, "train")) is None:
            raise _unknown_split(TaskParts(part.config, [part]), "train")
        corpora.append(corpus)
    if not data.filters:
        return corpora
    from t2t.data.text_filters import filter_corpora

    held_out = []
    if "overlap" in data.filters:
        others = [split for split in _list_splits(task.parts) if split != "train"]
        held_out = [_open_held_out(task, split) for split in others]
    return filter_corpora(
        corpora, data.filters, held_out, make_path(data.cache_directory), tokenizer
    )


def find_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """Weights with which corpora have shares of an epoch that grow as size ** (1 / temperature).

    `sizes` are numbers of pairs, among them those that are too long for training.

    The largest corpus is used once per epoch: weight = (size / largest) ** (1 / temperature - 1)
    (Arivazhagan et al. 2019, section 4.2; 1 keeps the sizes, infinity makes all shares equal).
    """
    # Rounded, so that a weight of 3 is no 3.0000000000000004, which has a fraction to be drawn.
    weights = [(size / max(sizes)) ** (1 / temperature - 1) for size in sizes]
    return [max(round(weight, 9), 1e-9) for weight in weights]


def open_split(data: DataConfig, split: str, tokenizer: TokenizerConfig = _CASED) -> Corpus:
    """Opens one split; of several sources it is the first one's that has the split.

    Of a mixture it is the split of the main task.

    Text files that the config names come before the splits of other sources. "train" holds every
    pair that training uses once, whatever the weights of the corpora; for `tokenizer` see
    `open_training`.

    Raises:
        ConfigError: The config has several directions; `list_tasks` gives each. Or as in
            `open_training`.
        DataError: The split is unknown or invalid.
    """
    [task] = resolve(choose_task(data))
    if split != "train":
        return _open_held_out(task, split)
    corpora = _open_task(task, tokenizer)
    if len(corpora) == 1:
        return corpora[0]
    from t2t.data.derived_corpora import ConcatenatedCorpus

    return ConcatenatedCorpus(corpora)


def _open_held_out(task: TaskParts, split: str) -> Corpus:
    for part in sorted(task.parts, key=lambda part: part.config.source != "text"):
        if (corpus := open_part(part, split)) is not None:
            return corpus
    raise _unknown_split(task, split)


def _unknown_split(task: TaskParts, split: str) -> DataError:
    data = task.config
    owner = f"{data.task}: " if data.task else ""
    return DataError(
        f"{owner}split {split!r} is unknown; data.source={data.source!r} has "
        f"{', '.join(_list_splits(task.parts))} here"
        f"{'; name it in data.hf_files, such as ' + split + '=FILE' if data.hf_files else ''}"
    )


def _open_text(part: Part, split: str) -> Corpus:
    src, tgt = part.files[split]
    corpus = TextCorpus(src, tgt, part.facts, name=str(tgt) if src == tgt else "")
    corpus.check_filled()
    return corpus


def _open_registered(part: Part, split: str) -> Corpus | None:
    corpus: Corpus | None = call_variant(
        "data.source", part.config.source, part.config, split,
        is_valid=lambda value: value is None or isinstance(value, Corpus),
    )  # fmt: skip
    return copy.copy(corpus)  # it may be one corpus for several directions


def _list_registered(part: Part) -> list[str]:
    """The splits that training asks for; there may be more."""
    common = ("train", "validation", "test")
    return [split for split in common if _open_registered(part, split) is not None]


_TEXT = Source(lambda part: part.files, _open_text, find_text=lambda part: part.files["train"])
_REGISTERED = Source(_list_registered, _open_registered)


def _find_source(part: Part) -> Source:
    """The source of a part; the modules of others are not imported."""
    match part.config.source:
        case "phrasebook":
            from t2t.data.phrasebook import SOURCE
        case "multi30k":
            from t2t.data.multi30k import SOURCE
        case "tfds":
            from t2t.data.tfds_corpus import SOURCE
        case "hf":
            from t2t.data.hugging_face import SOURCE
        case "cogs" | "scan" | "inflection":
            from t2t.data.published_tasks import SOURCE
        case "text":
            return _TEXT
        case _:
            return _REGISTERED
    return SOURCE


def open_part(part: Part, split: str) -> Corpus | None:
    """Opens a split of a part, with what tells its task apart; None if the source does not have it.

    For an objective that reads text alone, its pairs have no sources.

    Raises:
        ConfigError: the source is not known.
        DataError: the split is invalid.
    """
    source = _find_source(part)
    if source is not _REGISTERED and split not in source.list_splits(part):
        return None
    check_languages(part, source.languages)
    corpus = source.open(part, split)
    if corpus is not None and part.config.is_text_alone:
        from t2t.data.derived_corpora import TargetsAlone

        return TargetsAlone(corpus)
    if corpus is not None:
        corpus.tag, corpus.prefix = find_tag(part.config), part.config.prefix
        if part.config.directions:
            corpus.name = f"{part.config.directions[0]}: {corpus.name}"
    return corpus


def list_splits(data: DataConfig) -> tuple[str, ...]:
    """Names of the splits that `open_split` takes; a registered source may have more."""
    return _list_splits([part for each in resolve(data) for part in each.parts])


def _list_splits(parts: Sequence[Part]) -> tuple[str, ...]:
    found = (name for part in parts for name in _find_source(part).list_splits(part))
    return tuple(dict.fromkeys(found))


def prepare(data: DataConfig) -> None:
    """Downloads and prepares the data of the corpora that are still missing.

    Raises:
        DataError: The data cannot be downloaded or prepared; the message says what to do.
    """
    for each in resolve(data):
        for part in each.parts:
            _find_source(part).prepare(part)


def find_training_text(data: DataConfig) -> list[Path]:
    """The files of text that training reads; those that are copied from a data set may be missing.

    Raises:
        DataError: a data set was not prepared.
    """
    parts = [part for each in resolve(data) for part in each.training]
    return [path for part in parts for path in _find_source(part).find_text(part)]


def measure_training_text(tasks: Sequence[TaskParts]) -> int:
    """Bytes of the training text, estimated where it is compressed or not yet copied."""
    total = 0
    for part in (part for each in tasks for part in each.training):
        files = part.files.get("train") or _find_source(part).find_text(part)
        size = sum(
            measure_size(path) * (3 if path.suffix in (*PACKED_SUFFIXES, ".parquet") else 1)
            for path in dict.fromkeys(files)  # text alone is both sides of its corpus
        )
        total += size or _find_source(part).measure(part)
    return total
