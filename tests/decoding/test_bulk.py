"""Translation in shards: resumed after kills, shared between processes, in order."""

import errno
import gzip
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from t2t.config.fields import ConfigError
from t2t.decoding import bulk
from t2t.decoding.bulk import BulkPart, find_inputs, process_files
from t2t.storage.atomic_files import write_file
from tests import programs

LINES = [f"line {number} \u2028 x\n".encode() for number in range(23)]


def shout(lines: list[bytes], first: int) -> str:
    return "".join(f"{first + n} {line.decode().upper()}" for n, line in enumerate(lines))


def work(folder: Path, left: int, part: BulkPart) -> None:
    """Translates a part with a fake model; dies when no operation on files is left.

    At the end it writes how many are left.
    """

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        changes = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree")
        if event in changes and str(folder) in str(arguments[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def translate(lines: list[bytes], first: int) -> str:
        time.sleep(0.002 * (first % 7))
        return shout(lines, first)

    inputs = find_inputs([str(folder / "*.txt*")], folder / "out")
    sys.addaudithook(watch)
    process_files(inputs, {"beam": 4}, translate, 5, part)
    (folder / "left").write_text(str(left))


def make_inputs(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_bytes(b"".join(LINES))
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"".join(LINES[:10]), mtime=0))
    (folder / "empty.txt").write_bytes(b"")


def read(folder: Path) -> dict[str, bytes]:
    """The files of the output folder; a killed process may leave hidden drafts."""
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("[!.]*"))}


def run(folder: Path) -> dict[str, bytes]:
    inputs = find_inputs([str(folder / "*.txt*")], folder / "out")
    process_files(inputs, {"beam": 4}, shout, 5)
    return read(folder)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    make_inputs(folder)
    return run(folder)


def test_lines_are_in_order_and_packed_as_their_input(expected: dict[str, bytes]) -> None:
    text = "".join(f"{n} {line.decode().upper()}" for n, line in enumerate(LINES)).encode()
    assert expected["a.txt"] == text
    assert gzip.decompress(expected["b.txt.gz"]) == b"".join(text.splitlines(True)[:10])
    assert expected.keys() == {"a.txt", "b.txt.gz", "empty.txt", "settings.json"}
    assert expected["empty.txt"] == b""


def test_work_killed_at_any_of_twenty_points_gives_the_same_files(
    tmp_path: Path, expected: dict[str, bytes]
) -> None:
    make_inputs(tmp_path)
    programs.call(work, tmp_path, 10_000, BulkPart()).join()
    total = 10_000 - int((tmp_path / "left").read_text())
    assert total > 40
    for point in range(20):
        folder = tmp_path / str(point)
        make_inputs(folder)
        process = programs.call(work, folder, 1 + point * total // 20, BulkPart())
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert run(folder) == expected, point


@pytest.mark.parametrize(
    ("numbers", "saved"),
    [([signal.SIGINT], 3), ([signal.SIGTERM] * 2, 3), ([signal.SIGINT] * 2, 2)],
)
def test_a_signal_loses_nothing_but_a_second_ctrl_c_the_shard_at_hand(
    tmp_path: Path, expected: dict[str, bytes], numbers: list[signal.Signals], saved: int
) -> None:
    make_inputs(tmp_path)

    def translate(lines: list[bytes], first: int) -> str:
        for number in numbers if first == 10 else ():
            signal.raise_signal(number)
        return shout(lines, first)

    inputs = find_inputs([str(tmp_path / "*.txt*")], tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        process_files(inputs, {"beam": 4}, translate, 5)
    assert len([*(tmp_path / "out" / ".a.txt.shards").glob("*/*")]) == saved
    assert run(tmp_path) == expected


def test_processes_share_the_shards(tmp_path: Path, expected: dict[str, bytes]) -> None:
    make_inputs(tmp_path)
    done: list[int] = []

    def count(lines: list[bytes], first: int) -> str:
        done.append(first)
        return shout(lines, first)

    inputs = find_inputs([str(tmp_path / "*.txt*")], tmp_path / "out")
    for number in (2, 0, 1):
        assert "a.txt" not in read(tmp_path) if (tmp_path / "out").exists() else True
        process_files(inputs, {"beam": 4}, count, 5, BulkPart(number, 3))
    assert sorted(done) == [0, 0, 0, 5, 5, 10, 15, 20]
    assert read(tmp_path) == expected


def test_processes_at_work_at_the_same_time_give_the_same_files(
    tmp_path: Path, expected: dict[str, bytes]
) -> None:
    make_inputs(tmp_path)
    parts = [programs.call(work, tmp_path, 10_000, BulkPart(n, 3)) for n in range(3)]
    for part in parts:
        part.join()
    assert [part.exitcode for part in parts] == [0] * 3
    assert read(tmp_path) == expected


def test_a_part_that_is_started_twice_ends_well_in_both(
    tmp_path: Path, expected: dict[str, bytes]
) -> None:
    make_inputs(tmp_path)
    inputs = find_inputs([str(tmp_path / "*.txt*")], tmp_path / "out")
    translated: list[int] = []

    def translate_late(lines: list[bytes], first: int) -> str:
        if not translated:  # meanwhile another process finishes and joins everything
            assert run(tmp_path) == expected
        translated.append(first)
        return shout(lines, first)

    process_files(inputs, {"beam": 4}, translate_late, 5)
    assert translated == [0]
    assert read(tmp_path) == expected
    assert [*(tmp_path / "out").glob(".*")] == [tmp_path / "out" / ".settings.json.lock"]


def test_processes_with_other_files_keep_each_others_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_inputs(tmp_path)
    barrier = threading.Barrier(2)

    def write_late(path: Path, content: str) -> None:
        time.sleep(0.2)
        write_file(path, content)

    def work(name: str) -> None:
        barrier.wait()
        process_files(find_inputs([str(tmp_path / name)], tmp_path / "out"), {}, shout, 50)

    monkeypatch.setattr(bulk, "write_file", write_late)
    threads = [threading.Thread(target=work, args=[name]) for name in ("a.txt", "b.txt.gz")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert settings["inputs"].keys() == {"a.txt", "b.txt.gz"}


def test_folder_of_other_settings_or_inputs_is_refused(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    path = tmp_path / "a.txt"
    text = path.read_bytes()

    def edit(lines: list[bytes], first: int) -> str:
        path.write_bytes(text + b"more\n")
        return shout(lines, first)

    inputs = find_inputs([str(path)], tmp_path / "edited")
    with pytest.raises(ConfigError, match=r"a\.txt changed while it was read; use another"):
        process_files(inputs, {"beam": 4}, edit, 50)
    assert not (tmp_path / "edited" / "a.txt").exists()
    path.write_bytes(text)
    run(tmp_path)
    inputs = find_inputs([str(path)], tmp_path / "out")
    with pytest.raises(ConfigError, match=r"was made with other settings \(beam: 4 -> 5\)"):
        process_files(inputs, {"beam": 5}, shout, 5)
    path.write_bytes(text.swapcase())  # as many bytes
    with pytest.raises(ConfigError, match=r"a\.txt has changed since .* was begun"):
        process_files(inputs, {"beam": 4}, shout, 5)


def begin(folder: Path, settings: dict[str, int], shard_lines: int = 5) -> None:
    """Translates the first shard of a.txt, as before a kill."""

    def translate(lines: list[bytes], first: int) -> str:
        signal.raise_signal(signal.SIGINT)  # after this shard
        return "".join(f"old {first + n}\n" for n in range(len(lines)))

    inputs = find_inputs([str(folder / "a.txt")], folder / "out")
    with pytest.raises(KeyboardInterrupt):
        process_files(inputs, settings, translate, shard_lines)


@pytest.mark.parametrize("removed", ["settings.json", "*"], ids=["the settings", "what is seen"])
@pytest.mark.parametrize("change", ["settings", "shard_lines", "input", "both"])
def test_shards_of_other_settings_or_inputs_are_never_taken(
    tmp_path: Path, expected: dict[str, bytes], removed: str, change: str
) -> None:
    """Neither are they after the files that say what they are of were removed by hand."""
    make_inputs(tmp_path)
    other = b"".join(LINES).swapcase()  # as many bytes and lines
    (tmp_path / "a.txt").write_bytes(other if change in ("input", "both") else b"".join(LINES))
    settings = {"beam": 1 if change in ("settings", "both") else 4}
    begin(tmp_path, settings, 4 if change == "shard_lines" else 5)
    for path in (tmp_path / "out").glob(removed):
        if not path.name.startswith("."):  # as in a shell
            path.unlink()
    make_inputs(tmp_path)
    assert run(tmp_path) == expected
    assert [*(tmp_path / "out").glob(".*")] == [tmp_path / "out" / ".settings.json.lock"]


def test_folder_that_was_begun_anew_gets_nothing_of_the_work_before(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    inputs = find_inputs([str(tmp_path / "a.txt")], tmp_path / "out")

    def translate(lines: list[bytes], first: int) -> str:
        if first == 20:  # meanwhile somebody empties the folder, and starts another search
            (tmp_path / "out" / "settings.json").unlink()
            process_files(inputs, {"beam": 1}, shout, 5, BulkPart(1, 2))
        return shout(lines, first)

    with pytest.raises(ConfigError, match=r"was made with other settings \(beam: 1 -> 4\)"):
        process_files(inputs, {"beam": 4}, translate, 5)
    assert not (tmp_path / "out" / "a.txt").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("out/settings.json", b"{", r"settings\.json is not of this program; use another"),
        ("out/settings.json", b"[]", r"settings\.json is not of this program; use another"),
        ("out/settings.json", b'{"settings": {}}', r"settings\.json is not of this program; use"),
        ("out/a.txt", b"of value", r"out/a\.txt exists, and was not made from --input"),
        ("b.txt", "Hund\n".encode("utf-16"), r"b\.txt is UTF-16, not UTF-8; convert it: iconv -f"),
    ],
)
def test_files_that_are_no_texts_or_no_translations_are_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    make_inputs(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        run(tmp_path)
    assert (tmp_path / name).read_bytes() == content


def test_files_that_are_no_inputs_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "settings.json").write_text("text\n")
    for name, message in (
        ("pipe.txt", r"pipe\.txt is a pipe .* write the text to a file"),
        ("settings.json", r"settings\.json: rename it"),
    ):
        with pytest.raises(ConfigError, match=message):
            find_inputs([str(tmp_path / name)], tmp_path / "out")


def test_full_disk_is_named_and_what_is_finished_is_kept(
    tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_inputs(tmp_path)

    def write(path: Path, content: str | bytes) -> None:
        if path.name == "000002":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, content)

    monkeypatch.setattr(bulk, "write_file", write)
    with pytest.raises(ConfigError, match=r"000002 cannot be written: No space left on device"):
        run(tmp_path)
    monkeypatch.undo()
    assert run(tmp_path) == expected
