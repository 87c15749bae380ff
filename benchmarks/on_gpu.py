"""Measures t2t on one GPU in 19 minutes: `python -m benchmarks.on_gpu --out=FOLDER`.

It needs no network, and besides JAX for CUDA a few packages: `benchmarks/fetch_gpu_wheels.sh`
downloads them to `wheels/`, from where they are used without being installed.

Each step is a process with its own time limit, and what it finds is in FOLDER as soon as it is
known. FOLDER/on_gpu.md is a table of all steps; FOLDER/on_gpu.json has all figures. The same
command again measures what is missing: first the steps that were not reached, then the others.

--checkout names a checkout of github.com/google/flax, whose WMT example is measured beside t2t.
--dry_run does every step in toy size on the CPU; its figures mean nothing.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT
from benchmarks.gpu_steps.results import FAILED, NOT_REACHED, is_measured, read_reason, read_rows
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import write_file
from t2t.storage.locks import lock

DONE = "done"
SHORTEST = 5.0  # seconds: no step is started that has less time
SLOWER = 6  # a dry run may take so many times as long, since its machine may be busy


@dataclasses.dataclass(frozen=True)
class Step:
    """A program of benchmarks/gpu_steps/."""

    name: str
    seconds: float  # its time limit
    about: str


STEPS = (  # the most valuable first; the first one names the device
    Step("first", 300, "gradients of attention, a short training, each change for GPUs"),
    Step("device", 30, "device, driver, versions, t2t.doctor"),
    Step("training", 180, "time and memory of training steps"),
    Step("resume", 150, "a run that was killed and resumed, bit for bit, and its loss"),
    Step("peers", 240, "training beside the Flax WMT example and PyTorch"),
    Step("decoding", 120, "translation with beam 4"),
    Step("twins", 90, "fast operations against their formulas"),
    Step("profile", 30, "kernels of a training step"),
)
SECONDS = sum(step.seconds for step in STEPS)


def find_missing(folder: Path, steps: Sequence[Step]) -> list[Step]:
    """Returns the steps to run: those not started in an earlier call, then those with gaps."""
    rows = {step: read_rows(find_file(folder, step)) for step in steps}
    missing = [
        step for step in steps if not rows[step] or not all(map(is_measured, rows[step].values()))
    ]
    return sorted(missing, key=lambda step: bool(rows[step]))


def find_file(folder: Path, step: Step) -> Path:
    """Returns the file that a step writes its rows to."""
    return folder / f"{step.name}.json"


def run_limited(
    command: Sequence[str], log: Path, seconds: float, environment: Mapping[str, str]
) -> str:
    """Runs a program, and kills it and all that it started at the time limit.

    What it prints is shown; its errors go to `log`. Returns `DONE`, or what happened instead.
    """
    with log.open("w") as errors:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
    try:
        status = child.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return DONE if status == 0 else FAILED + read_reason(log, status)


def describe(folder: Path, ends: Mapping[str, Mapping[str, Any]]) -> str:
    """Formats the rows of all steps as a table in Markdown; `ends` says how each step ended."""
    lines = []
    for step in STEPS:
        rows = read_rows(find_file(folder, step))
        end = ends.get(step.name, {}).get("end", DONE if rows else NOT_REACHED)
        if end != DONE or not rows:
            lines.append([step.name, step.about, end])
        lines += [[step.name, name, row["text"]] for name, row in rows.items()]
    return format_table(lines, ["step", "what", "result"], markdown=True)


def write_results(folder: Path, facts: Mapping[str, Any], ends: Mapping[str, Any]) -> None:
    """Writes the table and all figures."""
    rows = {step.name: read_rows(find_file(folder, step)) for step in STEPS}
    steps = {name: {**ends.get(name, {}), "rows": found} for name, found in rows.items()}
    write_file(folder / "on_gpu.json", json.dumps({**facts, "steps": steps}, indent=2) + "\n")
    write_file(folder / "on_gpu.md", describe(folder, ends) + "\n")


def make_environment(folder: Path, wheels: Path, dry_run: bool) -> dict[str, str]:
    """Returns the environment of the steps, with the packages of the wheels before others."""
    packages = folder / "packages"
    packages.mkdir(exist_ok=True)
    python = f"-cp{sys.version_info.major}{sys.version_info.minor}-"
    for wheel in sorted(wheels.glob("*.whl")):
        if python not in wheel.name and "-none-any" not in wheel.name:
            continue  # of another Python
        unpacked = packages / f"{wheel.name}.unpacked"
        if not unpacked.exists():
            zipfile.ZipFile(wheel).extractall(packages)
            unpacked.touch()
    path = [str(packages), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    defaults = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "CUDA_VISIBLE_DEVICES": "0",
        # Several processes use the GPU, one of them at a time.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    fixed = {"PYTHONPATH": os.pathsep.join(path)}
    if dry_run:
        fixed["JAX_PLATFORMS"] = "cpu"
        defaults["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # toys: compile fast
    return {**defaults, **os.environ, **fixed}


def read_earlier(folder: Path, dry_run: bool) -> dict[str, Any]:
    """Returns how the steps of earlier calls ended.

    Raises:
        ValueError: they were dry runs and this is none, or the other way round.
    """
    path = folder / "on_gpu.json"
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text("utf-8"))
    if earlier["dry_run"] != dry_run:
        kind = "a dry run" if earlier["dry_run"] else "measurements"
        raise ValueError(f"--out={folder} holds {kind}; choose another folder")
    return {
        name: {key: value for key, value in step.items() if key != "rows"}
        for name, step in earlier["steps"].items()
        if "end" in step
    }


def run_steps(flags: argparse.Namespace, steps: Sequence[Step]) -> bool:
    """Runs the steps that are missing; returns whether all have all of their rows.

    Raises:
        ValueError: the folder cannot be used, or JAX sees no GPU.
    """
    started, folder = time.monotonic(), flags.out
    patience = SLOWER if flags.dry_run else 1
    ends = read_earlier(folder, flags.dry_run)
    environment = make_environment(folder, flags.wheels, flags.dry_run)
    facts = {"command": shlex.join(["python", "-m", "benchmarks.on_gpu", *sys.argv[1:]])}
    facts |= {"dry_run": flags.dry_run}
    write_results(folder, facts, ends)
    for step in find_missing(folder, steps):
        left = patience * flags.seconds - (time.monotonic() - started)
        if left < SHORTEST:
            break
        limit = min(left, patience * step.seconds)
        print(f"{step.name}: {step.about}, at most {limit:.0f} s", flush=True)
        command = [sys.executable, "-m", f"benchmarks.gpu_steps.{step.name}"]
        command += [f"--output={find_file(folder, step)}", f"--seconds={limit}"]
        command += [f"--checkout={flags.checkout}"] * bool(flags.checkout)
        command += ["--dry_run"] * flags.dry_run
        before = time.monotonic()
        end = run_limited(command, folder / f"{step.name}.log", limit, environment)
        seconds = time.monotonic() - before
        print(f"{step.name}: {end}, {seconds:.0f} s", flush=True)
        ends[step.name] = {"end": end, "seconds": round(seconds, 1)}
        write_results(folder, facts, ends)
        check_platform(folder, flags.dry_run)
    return not find_missing(folder, steps)


def check_platform(folder: Path, dry_run: bool) -> None:
    """Raises `ValueError` if the first step found no GPU."""
    device = read_rows(find_file(folder, STEPS[0])).get("device", {})
    if not dry_run and device.get("platform", "gpu") != "gpu":
        find_file(folder, STEPS[0]).unlink()  # so that the next call looks again
        raise ValueError(
            f"JAX found no GPU but {device['text']}; pip install -e '.[cuda]', or try the "
            "command with --dry_run"
        )


def parse_flags() -> tuple[argparse.Namespace, list[Step]]:
    """Returns the flags and the steps that they choose; ends the program if they are wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/on_gpu"), help="results: %(default)s"
    )
    names = ",".join(step.name for step in STEPS)
    parser.add_argument("--steps", default=names, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all steps: %(default)s")
    parser.add_argument("--checkout", type=Path, help="checkout of github.com/google/flax")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="folder of wheels")
    parser.add_argument("--dry_run", action="store_true", help="toy sizes on the CPU")
    flags = parser.parse_args()
    if unknown := set(flags.steps.split(",")) - set(names.split(",")):
        parser.error(f"--steps={','.join(sorted(unknown))} is unknown; use some of {names}")
    if flags.seconds < SHORTEST:
        parser.error(f"--seconds={flags.seconds:g} is too short for any step; use {SECONDS:g}")
    if flags.checkout and not flags.checkout.is_dir():
        parser.error(f"--checkout={flags.checkout} is no folder")
    if flags.wheels != parser.get_default("wheels") and not [*flags.wheels.glob("*.whl")]:
        parser.error(f"--wheels={flags.wheels} has no wheels; see benchmarks/fetch_gpu_wheels.sh")
    flags.out = flags.out.resolve()
    flags.checkout = flags.checkout and flags.checkout.resolve()
    return flags, [step for step in STEPS if step.name in flags.steps.split(",")]


def main() -> int:
    """Runs the steps and prints the table; returns 0 if nothing is missing, 1 if something is."""
    flags, steps = parse_flags()
    try:
        refusal = f"--out={flags.out} is in use by another call; wait for it"
        with lock(flags.out / "lock", refusal, ValueError, wait=0.0):
            complete = run_steps(flags, steps)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"\n{(flags.out / 'on_gpu.md').read_text('utf-8')}\nAll figures: {flags.out}/on_gpu.json")
    return 0 if complete else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which also ends the running step
    sys.exit(main())
