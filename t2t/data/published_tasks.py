"""Published tasks of sequences, read from folders with the files as their authors published them.

    cogs        NAME.tsv with sentence, meaning and kind: train, dev, test, gen (Kim and Linzen
                2020), and any other table of source, target and kind
    scan        NAME.txt with lines "IN: source OUT: target" (Lake and Baroni 2018)
    inflection  NAME.train, LANGUAGE.dev and LANGUAGE.gold with lemma, form and features, separated
                by ";" (the shared tasks of SIGMORPHON)

Sequences of all tasks are symbols that spaces separate (`tokenizer.kind=symbols`). A word of
inflection is written letter by letter, a space in it as "␣". Its features follow it, in brackets,
which tells them from letters: "w a l k [V] [PST]" and "w a l k e d".
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from t2t.config.fields import DataConfig
from t2t.data.corpus import Corpus, DataError, ListCorpus, TextFile
from t2t.data.parts import Part, Source
from t2t.storage.paths import make_path

SPACE = "␣"  # in place of a space within a word of inflection
_NAMES = {"dev": "validation", "valid": "validation", "gold": "test"}  # splits that we name so


class Item(NamedTuple):
    """A line of a task: source, target and the kind to which it belongs, which may be empty."""

    source: str
    target: str
    kind: str = ""


class PublishedTask(NamedTuple):
    """How the files of a task are found, and their lines read."""

    find_files: Callable[[Path, str], dict[str, Path]]  # from folder and `data.subset`, by split
    read: Callable[[str], Item | None]  # a line; None: it has another form
    form: str  # of a line, for messages


def _find_tables(folder: Path, subset: str) -> dict[str, Path]:
    """Finds NAME.tsv, a split each."""
    if subset:
        raise DataError(
            f"data.subset={subset!r}: {folder} has one training set, train.tsv; leave it out"
        )
    return {_NAMES.get(path.stem, path.stem): path for path in sorted(folder.glob("*.tsv"))}


def _find_commands(folder: Path, subset: str) -> dict[str, Path]:
    """Finds one file for each split whose name has `subset` and the name of the split."""
    found = dict[str, Path]()
    paths = [path for path in sorted(folder.glob("*.txt")) if subset in path.name]
    for name in ("train", "dev", "valid", "test"):
        own = [path for path in paths if name in re.split(r"[\W_]", path.stem)]
        if len(own) > 1:
            raise DataError(
                f"data.subset={subset!r} fits {own[0].name}, {own[1].name} and perhaps others in "
                f"{folder}; write more of the name of one"
            )
        found |= {_NAMES.get(name, name): path for path in own}
    return found


def _find_words(folder: Path, subset: str) -> dict[str, Path]:
    """Finds the training set NAME.train, and the other splits of its language."""
    names = sorted(path.stem for path in folder.glob("*.train"))
    if len(names) > 1 and subset not in names:
        raise DataError(
            f"data.subset={subset!r} names no training set in {folder}; use one of "
            f"{', '.join(names)}"
        )
    name = subset or "".join(names)
    files = {"train": folder / f"{name}.train"}
    for suffix in ("dev", "gold", "test"):
        for stem in (name, name.partition("_")[0]):
            if (path := folder / f"{stem}.{suffix}").exists():
                files.setdefault(_NAMES.get(suffix, suffix), path)
    return {split: path for split, path in files.items() if path.exists()}


def _read_table(line: str) -> Item | None:
    cells = line.split("\t")
    return Item(*cells) if len(cells) == 3 and all(map(str.strip, cells)) else None


def _read_command(line: str) -> Item | None:
    found = re.fullmatch(r"IN: (.+) OUT: (.+)", line.strip())
    return Item(*found.groups()) if found else None


def _read_word(line: str) -> Item | None:
    item = _read_table(line)
    if item is None:
        return None
    lemma, form = (" ".join(word.replace(" ", SPACE)) for word in item[:2])
    features = [f"[{feature}]" for feature in re.split("[;, ]+", item.kind) if feature]
    return Item(" ".join([lemma, *features]), form) if features else None


TASKS = {
    "cogs": PublishedTask(
        _find_tables, _read_table, "three filled columns, separated by tabs: source, target, kind"
    ),
    "scan": PublishedTask(_find_commands, _read_command, '"IN: source OUT: target"'),
    "inflection": PublishedTask(
        _find_words, _read_word, "three filled columns, separated by tabs: lemma, form, features"
    ),
}


def find_files(data: DataConfig) -> dict[str, Path]:
    """Returns the file of each split.

    Raises:
        DataError: the folder is missing or has no training set, or `data.subset` does not fit it.
    """
    task, folder = TASKS[data.source], make_path(data.directory)
    if not data.directory or not folder.is_dir():
        raise DataError(
            f"data.directory={data.directory!r} is no folder; name the one with the files of "
            f"data.source={data.source!r}"
        )
    files = task.find_files(folder, data.subset)
    if "train" not in files:
        wanted = {"cogs": "no train.tsv", "scan": "no .txt file with train in its name"}
        raise DataError(
            f"{folder} has {wanted.get(data.source, 'no file NAME.train')}"
            f"{f' for data.subset={data.subset!r}' * bool(data.subset)}; name the folder with the "
            f"files of data.source={data.source!r}"
        )
    return files


def open_task(part: Part, split: str) -> Corpus | None:
    """Opens a split; returns None if the folder has no file of it.

    Raises:
        DataError: as `find_files`, or a line has another form; the message names it.
    """
    data, task = part.config, TASKS[part.config.source]
    path = find_files(data).get(split)
    if path is None:
        return None
    file = TextFile(path, part.facts)
    items = []
    for number, line in enumerate(file.read(0, len(file)), start=1):
        if not line.strip() and number == len(file):
            continue
        item = task.read(line)
        if item is None:
            raise DataError(f"{path}, line {number} is not {task.form}")
        items.append(item)
    kinds = [item.kind for item in items]
    pairs = [(item.source, item.target) for item in items]
    return ListCorpus(str(path), pairs, kinds if any(kinds) else None)


SOURCE = Source(
    lambda part: tuple(find_files(part.config)),
    open_task,
    find_text=lambda part: [find_files(part.config)["train"]],
)
