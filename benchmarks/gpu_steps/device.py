"""Names the device, its driver and the versions, and runs `t2t.doctor`."""

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Collection

import jax

from benchmarks.contest import ROOT
from benchmarks.gpu_steps.results import Results, end_with_parent, make_parser
from t2t.training.provenance import find_revision, find_versions

QUERY = "name,driver_version,memory.total,power.limit,clocks.max.sm"


def main() -> None:
    """Writes the rows."""
    flags = make_parser(__doc__).parse_args()
    end_with_parent()
    results = Results(flags.output, ("device", "driver", "versions", "t2t.doctor"))
    with results.measuring("device"):
        devices = jax.devices()
        kind, platform = devices[0].device_kind, devices[0].platform
        results.add("device", f"{len(devices)} x {kind}", platform=platform, kind=kind)
    with results.measuring("driver"):
        program = shutil.which("nvidia-smi")
        command = [program or "", f"--query-gpu={QUERY}", "--format=csv,noheader"]
        text = _run(command).strip() if program else "no nvidia-smi"
        results.add("driver", text, query=QUERY)
    with results.measuring("versions"):
        names = sorted(
            {
                one.name.lower()
                for one in importlib.metadata.distributions()
                if one.name.lower().startswith(("jax", "nvidia-", "torch", "triton"))
            }
        )
        versions = find_versions([*names, "flax", "optax", "numpy", "sentencepiece", "ctranslate2"])
        shown = ("python", "jax", "jaxlib", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "torch")
        text = ", ".join(f"{name} {versions[name]}" for name in shown if name in versions)
        results.add("versions", text, versions=versions, **find_revision())
    with results.measuring("t2t.doctor"):
        lines = _run([sys.executable, "-m", "t2t.doctor"], expected=(0, 1)).splitlines()
        wrong = [line.partition(":")[0] for line in lines if "  WRONG: " in line]
        text = f"found problems: {', '.join(wrong)}" if wrong else "found no problem"
        results.add("t2t.doctor", text, lines=lines)


def _run(command: list[str], expected: Collection[int] = (0,)) -> str:
    """Returns the output of a program; raises `RuntimeError` with it if the program fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in expected:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
