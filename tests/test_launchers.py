"""The shell scripts, as far as they run without a cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT, write_program

SCRIPTS = sorted(
    path
    for folder in ("launch", "scripts", "experiments")
    for path in (ROOT / folder).rglob("*.sh")
)

# A stub of the environment's Python, whose programs write little or nothing.
PYTHON = """#!/usr/bin/env bash
case "$*" in
*t2t.train*) echo "$@" >>"$STUBS/train.log" ;;
*t2t.evaluate*)
    folder=$STUBS/run/evaluations
    mkdir -p "$folder"
    echo "The dog runs." >"$folder/src.txt"
    echo "Der Hund läuft." >"$folder/hyp.txt"
    echo "Der Hund rennt." >"$folder/ref.txt"
    echo '{"texts": {"sources": "src.txt", "hypotheses": "hyp.txt", "references": "ref.txt"}}' \\
        >"$folder/test-best-100.json"
    ;;
*"-m pip"* | *"-m ensurepip"*) ;;
*) exec "$REAL_PYTHON" "$@" ;;
esac
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_is_valid_bash(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def hide_uv(folder: Path) -> str:
    """A PATH on which uv, if it is installed, installs nothing."""
    write_program(folder / "path" / "uv", "#!/bin/sh\n")
    return f"{folder}/path:{os.environ['PATH']}"


def test_quickstart_shows_translations(tmp_path: Path) -> None:
    write_program(tmp_path / "bin" / "python", PYTHON)
    names = {"T2T_ENVIRONMENT": str(tmp_path), "STUBS": str(tmp_path)}
    names |= {"REAL_PYTHON": sys.executable, "PATH": hide_uv(tmp_path)}
    done = subprocess.run(
        [ROOT / "launch" / "quickstart.sh", tmp_path / "run", "--config.training.steps=100"],
        env={name: value for name, value in os.environ.items() if name != "PYTHON"} | names,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "source       The dog runs.\ntranslation  Der Hund läuft.\n" in done.stdout
    assert (tmp_path / "train.log").read_text().endswith("/run --config.training.steps=100\n")


def source(commands: str, **given: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs commands behind launch/environment.sh; `given` are variables of the environment."""
    inherited = {name: value for name, value in os.environ.items() if "T2T_" not in name}
    return subprocess.run(
        ["bash", "-c", f"source launch/environment.sh; {commands}"],
        cwd=ROOT,
        env=inherited | {name: str(value) for name, value in given.items()},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        ("3.12", {}, f"{ROOT}/scripts/constraints/python3.12.txt\n"),
        ("3.12", {"T2T_CONSTRAINTS": ""}, "\n"),
        ("3.99", {}, "warning: t2t was not tested with Python 3.99"),
        ("3.12", {"T2T_CONSTRAINTS": "/no.txt"}, "error: T2T_CONSTRAINTS=/no.txt is no file\n"),
    ],
    ids=str,
)
def test_launchers_install_what_was_tested(
    tmp_path: Path, version: str, given: dict[str, str], expected: str
) -> None:
    python = write_program(tmp_path / "python", f"#!/bin/sh\necho {version}\n")
    done = source("python=$FAKE; find_constraints", FAKE=python, **given)
    assert (done.stdout + done.stderr).startswith(expected)
    assert done.returncode == expected.startswith("error")


MAKE_AGAIN = 'find_python() { fail "made again"; }; make_environment'


def test_environment_of_the_same_python_is_kept(tmp_path: Path) -> None:
    """The output of `python -VV` may contain brackets, a pattern in bash unless it is quoted."""
    write_program(tmp_path / "bin" / "python", PYTHON)
    names = {"PYTHON": sys.executable, "REAL_PYTHON": sys.executable, "PATH": hide_uv(tmp_path)}
    done = source(MAKE_AGAIN, T2T_ENVIRONMENT=tmp_path, **names)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[" in sys.version


def test_folder_that_is_no_environment_is_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("of value")
    done = source("make_environment", T2T_ENVIRONMENT=tmp_path)
    assert done.returncode == 1
    assert f"error: {tmp_path} was not made by the scripts in launch/" in done.stderr
    assert [*tmp_path.iterdir()] == [tmp_path / "thesis.tex"]


def test_environment_whose_making_is_interrupted_is_marked_and_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    (folder / "of an older one").mkdir(parents=True)
    (folder / "made-by-t2t").touch()
    stub = '#!/bin/bash\n[[ $* != "-m venv"* ]] || exit 130\nexec python3 "$@"\n'
    python = write_program(tmp_path / "python", stub)
    done = source("set -e; make_environment", T2T_ENVIRONMENT=folder, PYTHON=python)
    assert done.returncode == 130
    assert [*folder.iterdir()] == [folder / "made-by-t2t"]
    assert "error: made again" in source(MAKE_AGAIN, T2T_ENVIRONMENT=folder).stderr


def test_program_that_does_not_exist_is_one_message() -> None:
    command = ["launch/local.py", "--processes=2", "--", "no-such-program"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no-such-program is no program on the PATH" in done.stderr


def test_process_that_fails_ends_the_others() -> None:
    launch = (
        "import sys; sys.path.insert(0, 'launch'); import local; "
        "local.PATIENCE = 0; sys.exit(local.main())"
    )
    program = "import sys, time; '--process_id=1' in sys.argv and sys.exit(3); time.sleep(600)"
    flags = ["--processes=2", "--", sys.executable, "-c", program]
    done = subprocess.run(
        [sys.executable, "-c", launch, *flags], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (3, "[0] exited 137\n[1] exited 3\n")


def test_program_whose_output_cannot_be_written_ends() -> None:
    program = "print('\\n' * 200_000); print('end', end='\\n' * 200_000)"  # more than a pipe holds
    command = ["launch/local.py", "--processes=1", "--", sys.executable, "-c", program]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=full, timeout=600)
    assert done.returncode in (0, 120)  # 120: Python could not write what was left at its end


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("--config.seed=1", "RUN comes before the flags"),
        ("gs://b/run", "RUN is a local folder"),
        ("a,b", "RUN may not contain a comma"),
    ],
)
def test_quickstart_refuses_what_is_no_folder(run: str, message: str) -> None:
    quickstart = ROOT / "launch" / "quickstart.sh"
    done = subprocess.run([quickstart, run], capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr
