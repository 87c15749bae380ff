"""t2t.translate: one line of output for each line of input."""

import io
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from t2t.api.line_translator import LineTranslator, decode_lines, translate_lines
from t2t.data.corpus import DataError, TextFile
from t2t.evaluation.requests import ModelRequest
from t2t.training import provenance
from tests import programs
from tests.programs import make_environment
from tests.tiny_run import make_run

pytestmark = pytest.mark.usefixtures("shared_programs")

LINES = [
    b"Two dogs run.\n",
    b"\n",
    b"A girl \xff\xfe climbs.\n",
    "🙂\t日本語\u2028 ½\r\n".encode(),
    b"Dogs climb.",  # no line end
]


def start(run: Path, *flags: str, stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Starts the program in a Python of its own, with pipes or a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "t2t.translate", f"--workdir={run}", *flags],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=make_environment(),
    )


def call(run: Path, *flags: str, given: bytes = b"") -> subprocess.CompletedProcess[str]:
    return programs.run("t2t.translate", f"--workdir={run}", *flags, given=given)


def test_each_line_gives_a_line_however_many_are_read_ahead(run: Path) -> None:
    translator = LineTranslator(ModelRequest((run,)))
    together, apart = (
        [found.text for found, *_ in translate_lines(translator, iter(LINES), read_ahead)]
        for read_ahead in (None, 2)
    )
    assert together == apart
    assert [bool(text) for text in together] == [True, False, True, True, True]


def test_damaged_lines_are_read_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    text = list(decode_lines(iter([*LINES, b"\xc3\n"])))
    assert text[0] == "Two dogs run."
    assert text[2] == "A girl \ufffd\ufffd climbs."
    assert text[3] == "🙂\t日本語\u2028 ½"
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "lines that are not valid UTF-8: 2, first line 3; U+FFFD replaces the invalid bytes"
    ]


@given(st.lists(st.binary().filter(lambda line: not re.search(b"\n|^\xef\xbb\xbf", line))))
def test_any_bytes_are_a_line_of_text_for_each_line(lines: list[bytes]) -> None:
    found = [*decode_lines(iter([line + b"\n" for line in lines]))]
    assert len(found) == len(lines)
    for text, line in zip(found, lines, strict=True):
        assert "\n" not in text
        assert "\ufffd" in text or text.encode() == line.removesuffix(b"\r")


@example("\ufeffa\nb")
@given(st.text("ab \n\r\x0b\x0c\x1e\x85\u2028\ufeff", min_size=1) | st.text(min_size=1))
def test_standard_input_has_the_lines_that_a_file_has(tmp_path: Path, text: str) -> None:
    """Translating a file through a pipe thus gives the same lines as its evaluation."""
    path = tmp_path / "text.en"
    path.write_bytes(text.encode())
    file = TextFile(path)
    assert [*decode_lines(io.BytesIO(text.encode()))] == file.read(0, len(file))


def test_what_happened_to_long_lines_is_said_once(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [b"Dogs climb. Two dogs run.\n", b"Dogs climb.\n", b"\t \n"]
    assert len([*translate_lines(LineTranslator(ModelRequest((run,))), iter(lines), 1)]) == 3
    assert caplog.text.count("lines hold several sentences") == 1


def test_terminal_gets_a_prompt_and_each_line_its_answer(run: Path) -> None:
    terminal, stdin = pty.openpty()
    process = start(run, stdin=stdin)
    assert process.stdout
    assert process.stderr
    os.write(terminal, b"Dogs climb.\n")
    assert process.stdout.readline().strip()
    os.write(terminal, b"A girl climbs.\n")
    assert process.stdout.readline().strip()
    os.write(terminal, b"\x04")  # Ctrl-D
    assert process.wait(600) == 0
    errors = process.stderr.read()
    assert errors.count(b"> ") == 3
    assert b"Traceback" not in errors
    for stream in (process.stdout, process.stderr):
        stream.close()
    os.close(stdin)
    os.close(terminal)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_samples=2"], "decoding.num_samples=2 is not used by decoding.strategy='beam'"),
        (["--strategy=sampling", "--n_best=2"], "use --num_samples=2"),
        (["--n_best=9"], "--n_best=9 does not fit decoding.beam_size="),
        (["--strategy=sampling", "--backend=ctranslate2"], "='sampling' needs --backend=jax"),
        (["--prefixes=in.txt", "--backend=ctranslate2"], "--prefixes needs --backend=jax"),
        (["--strategy=sampling", "--n_best=0"], "--n_best=0 must be positive"),
        (["--measure_model=metricx=."], "is for --mbr=metricx; add it, or leave this out"),
        (["--input=no.txt", "--output=out"], "--input=no.txt is no file"),
        (["--input=in.txt"], "--input=in.txt needs --output=DIR"),
        (["--input=in.txt", "--output=."], "is the folder of"),
        (["--input=in.txt,sub/in.txt", "--output=out"], "would both become"),
        (["--input=in.txt", "--output=out", "--read_ahead=1"], "--read_ahead is for standard"),
        (["--part=2/4"], "--part is for --input; add it"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    run: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("in.txt", "sub/in.txt"):
        (tmp_path / name).write_text("Dogs.\n")
    flags = ["t2t.translate", f"--workdir={run}", *flags]
    assert message in programs.refuse(*flags, folder=tmp_path, given=b"Dogs climb.\n")


def test_prefixes_come_from_a_file_with_one_for_each_line(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "prefixes.txt"
    path.write_text("Zwei\n\n", "utf-8")
    done = call(run, f"--prefixes={path}", "--read_ahead=1", given=b"".join(LINES[:2]))
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first.startswith("Zwei")
    assert not second
    for count in (1, 3):
        prefixes, translator = iter([b"Hunde\n"] * count), LineTranslator(ModelRequest((run,)))
        with pytest.raises(DataError, match="prefixes"):
            list(translate_lines(translator, iter(LINES[:2]), prefixes=prefixes))


def test_pipe_gets_each_answer_at_once_without_reading_ahead(run: Path) -> None:
    process = start(run, "--read_ahead=1", "--n_best=2")
    assert process.stdin
    assert process.stdout
    answers = []
    # Short lines, since each class of lengths is a program of its own.
    for line, count in ((b"Dogs climb.\n", 2), (b"\n", 1), (b"A \xff.\n", 2)):
        process.stdin.write(line)
        process.stdin.flush()
        answers += [process.stdout.readline() for _ in range(count)]
    process.stdin.write(b"Dogs climb.")  # without a line end
    output, errors = process.communicate()
    answers += output.splitlines(keepends=True)
    assert process.returncode == 0
    assert all(answer.endswith(b"\n") for answer in answers)
    assert [int(answer.split(b"\t")[0]) for answer in answers] == [1, 1, 2, 3, 3, 4, 4]
    assert b"not valid UTF-8: 1" in errors


def test_files_are_translated_as_through_a_pipe(run: Path, tmp_path: Path) -> None:
    path, output = tmp_path / "a.txt", tmp_path / "out"
    path.write_bytes(b"".join(LINES))
    flags = ["--strategy=sampling", "--num_samples=2", "--shard_lines=2"]
    done = call(run, *flags, f"--input={tmp_path}/*.txt", f"--output={output}")
    assert "5 lines done, " in done.stderr
    assert "; in a.txt\n" in done.stderr
    piped = call(run, *flags[:-1], given=path.read_bytes()).stdout
    assert (output / "a.txt").read_text("utf-8") == piped
    assert [line.split("\t")[0] for line in piped.splitlines()] == [*"112334455"]


def test_settings_name_code_plugins_packages_and_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ModelRequest((make_run(tmp_path / "run"),))
    before = LineTranslator(request).record_settings()
    assert before["versions"].keys() > {"jax", "jaxlib", "flax", "sentencepiece", "numpy"}
    assert LineTranslator(request).record_settings() == before
    monkeypatch.setattr(provenance, "hash_code", lambda *_: "of other code")
    other = ModelRequest(request.workdirs, "100")
    after = LineTranslator(other).record_settings()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"code", "checkpoints", "parameters"}
