"""experiments/multi30k.sh with a stub of the programs."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A stub of the environment's Python that only records the programs. "broken" ends one training;
# "endless" lets programs run until they are told to stop.
RECORDER = """#!/usr/bin/env bash
case "$*" in
*t2t.*)
    trap 'echo stopped >>"$STUBS/stopped"; exit 75' TERM
    echo "$@" >>"$STUBS/programs.log"
    [[ ! -e $STUBS/broken || "$*" != *teacher-de-en* ]] || { echo "no space"; exit 2; }
    while [[ -e $STUBS/endless ]]; do sleep 0.1; done
    ;;
*"-m pip"*) ;;
*) exec "$REAL_PYTHON" "$@" ;;
esac
"""


def start_multi30k(folder: Path, *arguments: str, generations: str = "1") -> subprocess.Popen[str]:
    for name in ("train.en.gz", "train.de"):
        (folder / name).touch()
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "python").write_text(RECORDER)
    (folder / "bin" / "python").chmod(0o755)
    names = {"T2T_ENVIRONMENT": str(folder), "STUBS": str(folder), "REAL_PYTHON": sys.executable}
    names |= {"T2T_MULTI30K": str(folder), "T2T_GENERATIONS": generations}
    return subprocess.Popen(
        [ROOT / "experiments" / "multi30k.sh", *arguments],
        env={name: value for name, value in os.environ.items() if name != "PYTHON"} | names,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_multi30k(folder: Path, *arguments: str, generations: str = "1") -> tuple[int, str]:
    """Returns the exit status and what was printed as errors."""
    process = start_multi30k(folder, *arguments, generations=generations)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_students_learn_from_translations_in_both_directions(tmp_path: Path) -> None:
    done = run_multi30k(tmp_path, "en-de", str(tmp_path / "runs"), "--config.seed=3")
    assert done == (0, "")
    commands = (tmp_path / "programs.log").read_text().splitlines()
    programs = [command.split()[1] for command in commands]
    assert programs == [
        *("t2t.train", "t2t.train", "t2t.translate", "t2t.translate", "t2t.train", "t2t.train"),
        *["t2t.evaluate"] * 4,
    ]
    assert all("--config.seed=3" in commands[i] for i in (0, 1, 4, 5))
    [student] = [command for command in commands[4:6] if "student-en-de" in command]
    files = re.findall(r"--config\.data\.train_(src|tgt)='(\S+)'", student)
    translated = tmp_path / "runs" / "translated-"
    assert files == [
        ("src", str(tmp_path / "train.en.gz")),
        ("tgt", f"{translated}en-de/train.en.gz"),
        ("src", f"{translated}de-en/train.de"),
        ("tgt", str(tmp_path / "train.de")),
    ]


def test_students_of_the_second_generation_learn_from_what_those_of_the_first_translate(
    tmp_path: Path,
) -> None:
    assert run_multi30k(tmp_path, "en-de", str(tmp_path / "runs"), generations="2") == (0, "")
    commands = (tmp_path / "programs.log").read_text().splitlines()
    runs = [re.findall(rf"--workdir={tmp_path}/runs/(\w+)-", command)[0] for command in commands]
    assert runs == [
        *["teacher"] * 4,  # training and translation, each in both directions
        *["student"] * 4,
        *["student2"] * 2,
        *["student2"] * 4,  # evaluation on two splits
    ]
    assert all("/translated-" in command for command in commands[4:6])
    assert all("/translated2-" in command for command in commands[6:8])
    for command in commands[8:10]:
        assert "/translated2-en-de/train.en.gz'" in command
        assert "/translated2-de-en/train.de'" in command
        assert "/translated-" not in command
        assert "--config.training.steps=13500 --config.model.dropout=0.1 " in command


def test_students_do_not_start_without_both_teachers(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    status, errors = run_multi30k(tmp_path, "en-de", str(tmp_path / "runs"))
    assert status == 2
    assert errors.endswith("teacher-de-en.log:\nno space\n")
    assert "/student-" not in (tmp_path / "programs.log").read_text()


def test_a_signal_stops_both_directions_once(tmp_path: Path) -> None:
    (tmp_path / "endless").touch()
    with start_multi30k(tmp_path, "en-de", str(tmp_path / "runs")) as process:
        log = tmp_path / "programs.log"
        while process.poll() is None and (
            not log.exists() or log.read_text().count("t2t.train") < 2
        ):
            time.sleep(0.1)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 75
    assert (tmp_path / "stopped").read_text() == "stopped\n" * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name two of the languages en, de and fr"),
        (["en"], "name two of the languages en, de and fr"),
        (["en-en"], "name two of the languages en, de and fr"),
        (["en-cs"], "name two of the languages en, de and fr"),
        (["en-de", "--config.seed=1"], "RUNS comes before the flags"),
        (["en-de", "gs://bucket/runs"], "RUNS is a local folder"),
        (["en-de", "it's"], "RUNS and T2T_MULTI30K may not contain ' or \\"),
        (["en-de", "a,b"], "RUNS and T2T_MULTI30K may not contain ' or \\ or a comma"),
    ],
    ids=str,
)
def test_multi30k_explains_wrong_arguments(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    status, errors = run_multi30k(tmp_path, *arguments)
    assert status == 1
    assert message in errors


def test_multi30k_explains_a_wrong_number_of_generations(tmp_path: Path) -> None:
    status, errors = run_multi30k(tmp_path, "en-de", generations="two")
    assert status == 1
    assert "T2T_GENERATIONS is a number from 1 to 9" in errors
