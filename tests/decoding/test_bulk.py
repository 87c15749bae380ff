"""Translation in shards: resumed after kills, shared between processes, in order."""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from t2t.config.fields import ConfigError
from t2t.decoding import bulk
from t2t.decoding.bulk import Part, find_inputs, process_files
from t2t.storage.atomic_files import write_file

LINES = [f"line {number} \u2028 x\n".encode() for number in range(23)]

# Translates with a fake model; kills itself at one of the operations on files.
KILLED = """
import os, signal, sys
from pathlib import Path
from t2t.decoding.bulk import find_inputs, process_files

left = int(sys.argv[2])

def watch(event, arguments):
    global left
    changes = ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree")
    name = str(arguments[0]) if arguments else ""
    if watching and (event in changes or event == "open") and "__pycache__" not in name:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def translate(lines, first):
    return "".join(f"{first + n} {line.decode().upper()}" for n, line in enumerate(lines))

folder = Path(sys.argv[1])
watching = False
sys.addaudithook(watch)
inputs = find_inputs([str(folder / "*.txt*")], folder / "out")
watching = True
process_files(inputs, {"beam": 4}, translate, 5)
print(left)
"""

# Translates a part with a fake model that needs a moment for each shard, or dies at the second one.
PART = """
import os, signal, sys, time
from pathlib import Path
from t2t.decoding.bulk import Part, find_inputs, process_files
from tests.decoding.test_bulk import shout

def translate(lines, first):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.002 * (first % 7))
    return shout(lines, first)

folder, number, left = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
inputs = find_inputs([str(folder / "*.txt*")], folder / "out")
sys.stdin.read()  # until all have started
process_files(inputs, {"beam": 4}, translate, 5, Part(number, 3))
"""


def shout(lines: list[bytes], first: int) -> str:
    return "".join(f"{first + n} {line.decode().upper()}" for n, line in enumerate(lines))


def make_inputs(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_bytes(b"".join(LINES))
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"".join(LINES[:10]), mtime=0))
    (folder / "empty.txt").write_bytes(b"")


def read(folder: Path) -> dict[str, bytes]:
    """The files of the output folder; a killed process may leave hidden drafts."""
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("[!.]*"))}


def run(folder: Path, **options: object) -> dict[str, bytes]:
    inputs = find_inputs([str(folder / "*.txt*")], folder / "out")
    process_files(inputs, {"beam": 4}, shout, 5, **options)  # type: ignore[arg-type]
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

    def start(folder: Path, operations: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(folder), str(operations)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    left = int(start(tmp_path, 10_000).stdout)
    total = 10_000 - left
    assert total > 40
    for point in range(20):
        folder = tmp_path / str(point)
        make_inputs(folder)
        assert start(folder, 1 + point * total // 20).returncode == -9
        assert run(folder) == expected, point


def test_processes_share_the_shards(tmp_path: Path, expected: dict[str, bytes]) -> None:
    make_inputs(tmp_path)
    done: list[int] = []

    def count(lines: list[bytes], first: int) -> str:
        done.append(first)
        return shout(lines, first)

    inputs = find_inputs([str(tmp_path / "*.txt*")], tmp_path / "out")
    for number in (2, 0, 1):
        assert "a.txt" not in read(tmp_path) if (tmp_path / "out").exists() else True
        process_files(inputs, {"beam": 4}, count, 5, Part(number, 3))
    assert sorted(done) == [0, 0, 0, 5, 5, 10, 15, 20]
    assert read(tmp_path) == expected


@pytest.mark.parametrize("is_killed", [False, True])
def test_processes_at_work_at_the_same_time_give_the_same_files(
    is_killed: bool, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    make_inputs(tmp_path)

    def start(number: int, left: int = 0) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", PART, str(tmp_path), str(number), str(left)]
        return subprocess.Popen(command, stdin=subprocess.PIPE)

    parts = [start(0), start(1, 2 * is_killed), start(2)]
    for part in parts:
        assert part.stdin
        part.stdin.close()
    assert [part.wait() for part in parts] == [0, -signal.SIGKILL * is_killed, 0]
    if is_killed:
        assert "a.txt" not in read(tmp_path)
        again = start(1)
        again.communicate()
        assert again.returncode == 0
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
    assert not [*(tmp_path / "out").glob(".*")]


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


def test_input_that_changes_while_it_is_translated_is_refused(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    path = tmp_path / "a.txt"

    def edit(lines: list[bytes], first: int) -> str:
        path.write_bytes(b"".join(LINES) + b"more\n")
        return shout(lines, first)

    with pytest.raises(ConfigError, match=r"a\.txt changed while it was read; use another"):
        process_files(find_inputs([str(path)], tmp_path / "out"), {}, edit, 50)
    assert not (tmp_path / "out" / "a.txt").exists()


def test_folder_of_other_settings_or_inputs_is_refused(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    run(tmp_path)
    inputs = find_inputs([str(tmp_path / "a.txt")], tmp_path / "out")
    with pytest.raises(ConfigError, match=r"was made with other settings \(beam: 4 -> 5\)"):
        process_files(inputs, {"beam": 5}, shout, 5)
    text = (tmp_path / "a.txt").read_bytes()
    (tmp_path / "a.txt").write_bytes(text.swapcase())  # as many bytes
    with pytest.raises(ConfigError, match=r"a\.txt has changed since .* was begun"):
        process_files(inputs, {"beam": 4}, shout, 5)


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


@pytest.mark.parametrize("text", ["{", "[]", '{"editor": 1}'])
def test_settings_of_another_program_are_refused(text: str, tmp_path: Path) -> None:
    make_inputs(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "settings.json").write_text(text)
    with pytest.raises(ConfigError, match=r"settings\.json is not of this program; use another"):
        run(tmp_path)


def test_file_that_would_replace_the_settings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("text\n")
    with pytest.raises(ConfigError, match=r"settings\.json: rename it"):
        find_inputs([str(tmp_path / "settings.json")], tmp_path / "out")


def test_file_that_is_no_translation_is_kept(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("of value")
    with pytest.raises(ConfigError, match=r"out/a\.txt exists, and was not made from --input"):
        run(tmp_path)
    assert (tmp_path / "out" / "a.txt").read_text() == "of value"


def test_pipes_and_other_encodings_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ConfigError, match=r"pipe\.txt is a pipe .* write the text to a file"):
        find_inputs([str(tmp_path / "pipe.txt")], tmp_path / "out")
    (tmp_path / "b.txt").write_bytes("Hund\n".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"b\.txt is UTF-16, not UTF-8; convert it: iconv -f"):
        run(tmp_path)
