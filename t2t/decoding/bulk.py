"""Processes files in shards: Ctrl-C and SIGTERM lose nothing, and a kill the shard at hand.

Each input file becomes a file of the same name in the output folder; or a folder of this name, if
shards stay files of their own. Until it is complete, its shards are in `.NAME.shards/KEY/`, each
written whole or not at all. KEY is a hash of the settings and of the input's content, so no others'
shards are taken, whatever was removed from the folder. Several processes may share the work:
process i of n does the shards i, i + n, i + 2n, ... and whoever finishes last joins them, or
renames their folder. The result is the same, byte by byte, however often it was interrupted.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from t2t.config.field_types import InputPaths, PositiveInt
from t2t.config.fields import ConfigError
from t2t.config.requests import Flag, Request
from t2t.storage.atomic_files import (
    atomic_path,
    check_writable,
    explain_write_errors,
    write_file,
)
from t2t.storage.locks import lock
from t2t.storage.open_text import TextError, check_regular, pack, unpack
from t2t.storage.paths import find_version, hash_file, make_local_path

_log = logging.getLogger(__name__)

BATCHES_TOGETHER = 16  # their sentences are sorted by length, then batched
_REPORT = 10.0  # seconds from a report of progress to the next, at least
SETTINGS = "settings.json"  # what the files of an output folder were made with
_LOCK = f".{SETTINGS}.lock"  # beside them, of whoever reads or writes them
_SECTIONS = "settings", "inputs"  # of these settings
_NO_BUCKET = "--input and --output are local or shared folders; copy them"

# Maps the lines of a shard and the number of its first line to its content. Text is packed as the
# input file was.
ProcessShard = Callable[[list[bytes], int], str | bytes]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bulk(Request):
    """Files, which several processes may share."""

    # files, also .gz, .bz2, .xz, .zst; patterns such as 'in/*'
    input: InputPaths | None = None
    output: Annotated[str, Flag(needs="input")] = ""  # with --input: the folder of the results
    # with --input: lines that are saved together. Default: 16 batches
    shard_lines: Annotated[PositiveInt, Flag(needs="input")] | None = None
    # with --input: I/N does the I-th of N parts; start N processes
    part: Annotated[str, Flag(needs="input")] = "1/1"


class BulkPart(NamedTuple):
    """The part of the work that a process does, one of several."""

    number: int = 0
    total: int = 1


def read_part(text: str) -> BulkPart:
    """Parses --part: "2/4" is the second of four parts.

    Raises:
        ConfigError: it has another form.
    """
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ConfigError(f"--part={text} must be I/N with I from 1 to N, such as 2/4")
    return BulkPart(int(number) - 1, int(count))


class Progress:
    """Reports lines per second and the time left, by the share of the input's bytes."""

    def __init__(self, files: Sequence[Path], part: BulkPart):
        """`files` are still to be processed."""
        self._total = sum(path.stat().st_size for path in files)
        self.part, self._done, self._position = part, 0, 0
        self._lines, self._bytes, self._started = 0, 0, time.perf_counter()
        self._name, self._reported = "", self._started

    def skip(self, position: int) -> None:
        """Counts what precedes byte `position` of the current file as not to be processed."""
        self._position = position

    def add(self, name: str, lines: int, position: int) -> None:
        """Counts a shard of file `name` that was processed and ended at its byte `position`."""
        self._name, self._lines = name, self._lines + lines
        self._bytes += max(position - self._position, 0)
        self._position = position
        if time.perf_counter() - self._reported >= _REPORT:
            self.report()

    def report(self) -> None:
        """Logs what is done, unless there is nothing new."""
        if not self._name:
            return
        self._reported = time.perf_counter()
        seconds = self._reported - self._started
        left = max(self._total - self._done - self._position, 0) / self.part.total
        remaining = timedelta(seconds=round(seconds * left / max(self._bytes, 1)))
        _log.info(
            "%d lines done, %.1f lines/s, about %s left; in %s",
            self._lines, self._lines / seconds, remaining, self._name,
        )  # fmt: skip
        self._name = ""

    def finish(self, path: Path) -> None:
        """Counts the current file as done."""
        self._done += path.stat().st_size
        self._position = 0


def find_inputs(patterns: Sequence[str], output: str | Path) -> dict[Path, Path]:
    """Returns the path in the output folder for each input file; a pattern may have wildcards.

    Raises:
        ConfigError: there is no pattern or no output folder, which cannot be written, a pattern
            matches nothing, or two outputs would be one file.
        PathError: a path is in a bucket.
    """
    if not patterns:
        raise ConfigError("--input is empty; name files")
    if not output:
        raise ConfigError(f"--input={','.join(patterns)} needs --output=DIR")
    folder, inputs = make_local_path(output, _NO_BUCKET), dict[Path, Path]()
    made = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    with explain_write_errors(ConfigError, f"--output={folder}"):
        check_writable(made)
    for pattern in patterns:
        for each in _match(pattern):
            target = folder / each.name
            if each.name == SETTINGS:
                raise ConfigError(f"--input={each}: rename it; {target} describes the output")
            same = next((old for old, new in inputs.items() if new == target), None)
            if same is not None and same != each:
                raise ConfigError(f"--input: {same} and {each} would both become {target}")
            if target.exists() and target.samefile(each):
                raise ConfigError(f"--output={folder} is the folder of {each}; choose another")
            inputs[each] = target
    return inputs


def _match(pattern: str) -> list[Path]:
    """Returns the files of a pattern, which may be a name."""
    path = make_local_path(pattern, _NO_BUCKET)
    if path.exists():
        try:
            check_regular(path)
        except TextError as error:
            raise ConfigError(f"--input: {error}") from None
    found = [path] if path.is_file() else sorted(path.parent.glob(path.name))
    found = [each for each in found if each.is_file()]
    if not found:
        raise ConfigError(f"--input={pattern} is no file; name files, or give a pattern")
    return found


def process_files(
    inputs: Mapping[Path, Path],
    settings: Mapping[str, Any],
    process: ProcessShard,
    shard_lines: int,
    part: BulkPart = BulkPart(),  # noqa: B008  (immutable)
    suffix: str = "",
    begin_file: Callable[[int], None] | None = None,
) -> None:
    """Processes this process's part of the files that are not yet complete.

    `inputs` has the output path of each input file, all in one folder. `settings` are what the
    result depends on, as JSON; the folder may not have others. A shard has `shard_lines` lines,
    except the last of a file. With a `suffix` shards stay files of their own, which have it in
    their names. `begin_file` gets the number of each file before its shards are processed: files
    are numbered from 0 in the order in which they came to the folder. The first SIGINT or SIGTERM
    lets the shard at hand end and be saved.

    Raises:
        ConfigError: the output folder was made with other settings or cannot be written, or a file
            is damaged or changed while it was read.
        OSError: a file cannot be read or written.
        KeyboardInterrupt: a signal asked to stop.
    """
    versions = {path: find_version(path) for path in inputs}
    hashes = {path.name: hash_file(path) for path in inputs}
    settings = json.loads(json.dumps({**settings, "shard_lines": shard_lines}))
    folder = next(iter(inputs.values())).parent
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / _LOCK, wait=math.inf, required=False):
        names = check_settings(folder, settings, hashes)
    unfinished = {path: target for path, target in inputs.items() if not target.exists()}
    for target in inputs.values():
        if target not in unfinished.values():
            _log.info("%s is complete", target)
            shutil.rmtree(_shards_of(target), ignore_errors=True)
    progress = Progress([*unfinished], part)
    for path, target in unfinished.items():
        number = names.index(path.name)
        if begin_file:
            begin_file(number)
        key = json.dumps([settings, hashes[path.name], number], sort_keys=True)
        place = _shards_of(target) / hashlib.sha256(key.encode()).hexdigest()[:16]
        shards = _process_shards(path, target, place, process, shard_lines, suffix, progress)
        if find_version(path) != versions[path]:
            raise ConfigError(f"--input: {path} changed while it was read; use another --output")
        # Somebody may have emptied the folder meanwhile, and begun anew.
        with lock(folder / _LOCK, wait=math.inf, required=False):
            check_settings(folder, settings, hashes)
        with explain_write_errors(ConfigError, target):
            _finish(target, place, shards, joins=not suffix)
        progress.finish(path)
    progress.report()


def check_settings(
    folder: Path, settings: Mapping[str, Any], hashes: Mapping[str, str]
) -> list[str]:
    """Writes the folder's settings, or compares them with those that it has.

    `hashes` has the SHA-256 of each input file by its name. Returns the names of all of the
    folder's input files, in the order in which they came to it.

    Raises:
        ConfigError: they differ, or a file of the folder was not made by this program.
    """
    path = folder / SETTINGS
    try:
        old = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        old = {"settings": settings, "inputs": {}}
    except ValueError:
        old = None
    if not (isinstance(old, dict) and all(isinstance(old.get(name), dict) for name in _SECTIONS)):
        raise ConfigError(f"{path} is not of this program; use another --output")
    if old["settings"] != settings:
        names = old["settings"].keys() | settings.keys()
        changed = [
            f"{name}: {old['settings'].get(name)!r} -> {settings.get(name)!r}"
            for name in sorted(names)
            if old["settings"].get(name) != settings.get(name)
        ]
        raise ConfigError(
            f"--output={folder} was made with other settings ({', '.join(changed)}); use those, or "
            "another folder"
        )
    known = old["inputs"]
    for name, found in hashes.items():
        if known.get(name, found) != found:
            raise ConfigError(
                f"--input: {name} has changed since {folder} was begun; use another --output"
            )
        if name not in known and (folder / name).exists():
            raise ConfigError(
                f"{folder / name} exists, and was not made from --input={name}; use another "
                "--output"
            )
    new = {"settings": settings, "inputs": {**known, **hashes}}
    if new != old:
        with explain_write_errors(ConfigError, path):
            write_file(path, json.dumps(new, indent=2) + "\n")
    return [*new["inputs"]]


def _process_shards(
    path: Path,
    target: Path,
    place: Path,
    process: ProcessShard,
    shard_lines: int,
    suffix: str,
    progress: Progress,
) -> list[Path]:
    """Processes this process's missing shards of a file; returns the paths of all shards.

    `place` is the folder of the shards of `target`.
    """
    from t2t.runtime.signals import catch_signals  # here because JAX slows down --help

    part, shards = progress.part, []
    if not target.exists():
        with contextlib.suppress(FileNotFoundError):  # another process has just finished
            place.mkdir(parents=True, exist_ok=True)
    for number, (lines, position) in enumerate(_read_shards(path, shard_lines)):
        shards.append(shard := place / f"{number:06d}{suffix}")
        if number % part.total != part.number or shard.exists() or target.exists():
            progress.skip(position)
            continue
        with catch_signals(0) as is_interrupted:
            content = process(lines, number * shard_lines)
            if isinstance(content, str):
                content = pack(content.encode(), target.suffix)
            try:
                with explain_write_errors(ConfigError, shard):
                    write_file(shard, content)
            except ConfigError:
                if not target.exists():  # or the same part in another process was faster
                    raise
        progress.add(path.name, len(lines), position)
        if is_interrupted(0):
            progress.report()
            _log.info("stopped and saved; the same command continues")
            raise KeyboardInterrupt
    return shards


def _read_shards(path: Path, shard_lines: int) -> Iterator[tuple[list[bytes], int]]:
    """Yields the lines of each shard and the byte of the file up to which was read."""
    try:
        with path.open("rb") as raw, unpack(raw, f"--input: {path}") as lines:
            shard = list(itertools.islice(lines, shard_lines))
            while True:
                yield shard, raw.tell()
                shard = list(itertools.islice(lines, shard_lines))
                if not shard:
                    return
    except TextError as error:
        raise ConfigError(str(error)) from None


def _finish(target: Path, place: Path, shards: Sequence[Path], *, joins: bool) -> None:
    """Joins the shards, or renames their folder `place`, if all are there.

    Another process may do so at the same time.
    """
    if target.exists():
        shutil.rmtree(_shards_of(target), ignore_errors=True)
        return
    if not all(shard.exists() for shard in shards):
        _log.info("%s: other processes are still at work", target.name)
        return
    try:
        if joins:
            whole = place / "whole"
            with atomic_path(whole) as draft, draft.open("wb") as file:
                for shard in shards:
                    with shard.open("rb") as read:
                        shutil.copyfileobj(read, file)
            whole.replace(target)
        else:
            place.replace(target)
            for draft in target.glob(".*"):  # of a process that was killed
                draft.unlink(missing_ok=True)
    except FileNotFoundError:
        if not target.exists():  # or another process has just done so
            raise
    shutil.rmtree(_shards_of(target), ignore_errors=True)


def _shards_of(target: Path) -> Path:
    """Returns the folder of a file's shards, of all settings."""
    return target.with_name(f".{target.name}.shards")
